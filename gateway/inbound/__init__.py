"""Inbound events: authorised, stored, deduplicated, and only then acknowledged."""
