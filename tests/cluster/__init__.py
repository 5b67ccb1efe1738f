"""Several nodes on one PostgreSQL database, as real processes."""
