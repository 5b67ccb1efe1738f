"""Outbound messages: delivery, the gates that throttle delivery, notices, and the supervised adapters."""
