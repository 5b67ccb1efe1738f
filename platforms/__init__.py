"""Chat services behind one interface, `PlatformAdapter`: Telegram, Discord and a local web chat.

An adapter receives and sends, and makes no decisions. The gateway creates one adapter per account and keeps it running:

    adapter: PlatformAdapter = TelegramAdapter(settings, store=store, clock=clock)
    await adapter.run(intake)                   # hands every event to `Intake.accept`, until cancelled
    for part in adapter.render(markdown):       # parts within the platform's limit
        await adapter.send(SendRequest(chat=chat, part=part, key=key))
"""
