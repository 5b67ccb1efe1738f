"""Tools that read and search the web. No HTTP client or parser is imported before the first call."""
