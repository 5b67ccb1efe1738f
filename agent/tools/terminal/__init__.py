"""The terminal: the tool, running commands, and their sandbox."""
