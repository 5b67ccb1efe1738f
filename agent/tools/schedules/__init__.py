"""Schedules of the agent: the tool, and the times that cron expressions stand for."""
