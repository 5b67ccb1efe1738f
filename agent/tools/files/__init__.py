"""A chat's files: the workspace, and the tools that read, write, search and send files in it."""
