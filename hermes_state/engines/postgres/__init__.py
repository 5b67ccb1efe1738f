"""PostgreSQL: the engine for a gateway of several nodes."""
