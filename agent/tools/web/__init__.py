"""Tools that reach the web: one reads a page, one asks a search engine.

Nothing of an HTTP client and nothing that reads pages is loaded before the first call.
"""
