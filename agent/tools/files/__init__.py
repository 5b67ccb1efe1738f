"""Files of a chat: the workspace, and the tools that read, write, search and send its files."""
