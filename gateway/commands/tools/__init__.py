"""Commands for what the agent may use and keeps: tools and approvals, memory, the todo list."""
