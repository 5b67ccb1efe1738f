"""Stored state of approvals, to-do lists, schedules and sub-agents. Tool runs are in `hermes_state.tool_runs`."""
