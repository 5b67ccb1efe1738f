"""Commands: what people can ask the gateway itself, the same on every platform.

A module has the handlers of some commands; `table.py` lists all of them in the order of help.

    async def ping(request: CommandRequest) -> CommandResult:
        return say("I am here.")

    COMMANDS = (..., Command("ping", CommandKind.READ, ping, "whether I am here"))

A handler reads and calls models. Its changes go into `CommandResult.apply`, which `runner.py` runs in one transaction
with the reply and the settlement of the inbox row, so that a replay is a no-op. A `CommandError` is an answer. Long
work runs in `CommandContext.tasks`, where `/stop` finds it.
"""
