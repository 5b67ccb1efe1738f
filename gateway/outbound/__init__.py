"""Outbound messages: delivery, the gates that throttle it, notices, and the supervised adapters that send."""
