"""State of tools besides their runs: approvals, todos, schedules, sub-agents."""
