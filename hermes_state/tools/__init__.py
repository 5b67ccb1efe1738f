"""State of tools, without their runs: approvals, todos, schedules, sub-agents."""
