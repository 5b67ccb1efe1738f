"""Scheduled messages: the tool, and the calculation of times from cron expressions."""
