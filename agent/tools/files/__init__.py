"""Files of a chat: its workspace, and the tools that read, write, search and send what lies in it."""
