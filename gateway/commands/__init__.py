"""Chat commands, the same on every platform.

Each module defines the handlers of related commands. `table.py` lists all commands in the order of `/help`.

    async def ping(request: CommandRequest) -> CommandResult:
        return say("I am here.")

    COMMANDS = (..., Command("ping", CommandKind.READ, ping, "check that the bot is running"))

A handler reads the database and can call models. It returns its changes as `CommandResult.apply`. In one transaction,
`runner.py` runs `apply`, stores the reply and settles the inbox row, so running the command again does nothing. A
`CommandError` becomes the reply. Long work runs in `CommandContext.tasks`, where `/stop` can cancel it.
"""
