"""PostgreSQL: the engine for gateways with several nodes."""
