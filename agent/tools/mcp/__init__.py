"""MCP servers, whose tools are named `<server>__<tool>`.

The SDK is imported, in a thread, only if servers are configured.
"""
