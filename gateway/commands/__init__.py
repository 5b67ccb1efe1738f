"""Commands: what people can ask the gateway itself, the same on every platform.

A module holds the handlers of some commands; `table.py` lists all of them in the order of help.

    async def ping(request: CommandRequest) -> CommandResult:
        return say("I am here.")

    COMMANDS = (..., Command("ping", CommandKind.READ, ping, "whether I am here"))

A handler reads and calls models; what it changes goes into `CommandResult.apply`, which `runner.py` runs in one
transaction with the reply and the settlement of the inbox row, so that a replay is a no-op. A `CommandError` is an
answer. Kinds say when a command runs, `CommandContext` what handlers work with (`registry.py`); long work goes
through `tasks.py`, where `/stop` finds it.
"""
