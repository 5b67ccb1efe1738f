"""Tool `terminal`, the shell commands that it runs, and their sandbox."""
