"""MCP servers: their tools beside the agent's own.

`ServerRegistry` keeps one task for each configured server; what a server lists becomes tools named
`<server>__<tool>`. The SDK is imported by `connection` alone, in a thread and only where there are servers.
"""
