"""State in one SQLite file, for a gateway on a single machine."""
