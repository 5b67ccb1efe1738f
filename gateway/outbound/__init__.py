"""Outbound messages: their delivery, gates that throttle the delivery, notices to chats, and supervised adapters."""
