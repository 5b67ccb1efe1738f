"""Engines that can hold the gateway's state, and what each of them has of its own: files, locks, migrations."""
