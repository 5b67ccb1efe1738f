"""SQLite: the engine for a gateway on a single machine, with one database file."""
