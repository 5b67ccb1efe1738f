"""MCP servers, whose tools are named `<server>__<tool>`. The SDK is only imported, in a thread, if servers exist."""
