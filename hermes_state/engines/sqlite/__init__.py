"""State in one SQLite file: the engine of a gateway on one machine."""
