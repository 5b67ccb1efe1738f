"""Chat services behind one interface, `PlatformAdapter`: Telegram, Discord and a local web chat.

An adapter transports messages and makes no decisions. The gateway creates one per account and keeps it running:

    adapter: PlatformAdapter = TelegramAdapter(settings, store=store, clock=clock)
    await adapter.run(intake)                   # hands every event to `Intake.accept`, until cancelled
    for part in adapter.render(markdown):       # parts within the platform's limit
        await adapter.send(SendRequest(chat=chat, part=part, key=key))
"""
