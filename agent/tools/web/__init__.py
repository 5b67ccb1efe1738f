"""Tools that read and search the web. The first call imports the HTTP client and the parser."""
