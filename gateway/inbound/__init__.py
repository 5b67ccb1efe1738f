"""Inbound events: each is authorised, deduplicated and stored before it is acknowledged."""
