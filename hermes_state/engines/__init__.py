"""Database engines, each with its own files, locks and migrations."""
