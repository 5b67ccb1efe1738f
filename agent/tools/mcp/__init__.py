"""MCP servers, whose tools become `<server>__<tool>`. Only where there are servers, a thread imports the SDK."""
