"""State of tools, except for their runs: approvals, to-do lists, schedules and sub-agents."""
