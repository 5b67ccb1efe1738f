"""Configured models: selection, clients, prices and context windows."""
