"""The terminal: its tool, running commands, and the sandbox that they run in."""
