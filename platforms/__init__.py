"""Chat services behind one interface, `PlatformAdapter`: Telegram, Discord and a local web chat.

An adapter receives and sends; it decides nothing. The gateway makes one per account and keeps it running:

    adapter: PlatformAdapter = TelegramAdapter(settings, store=store, clock=clock)
    await adapter.run(intake)                   # hands every event to `Intake.accept`, until cancelled
    for part in adapter.render(markdown):       # parts within the platform's limit
        await adapter.send(SendRequest(chat=chat, part=part, key=key))

`base` is the interface, `text`, `files` and `buttons` are shared by the adapters; each service has a package of its
own. What SDKs raise becomes one of `hermes_state.errors` before it leaves a package.
"""

from platforms.base import (
    AdapterHealth,
    AdapterState,
    Capabilities,
    Intake,
    MenuCommand,
    PlatformAdapter,
    Preview,
    SendRequest,
)

__all__ = [
    "AdapterHealth",
    "AdapterState",
    "Capabilities",
    "Intake",
    "MenuCommand",
    "PlatformAdapter",
    "Preview",
    "SendRequest",
]
