"""Engines of the gateway's state, each with its own files, locks and migrations."""
