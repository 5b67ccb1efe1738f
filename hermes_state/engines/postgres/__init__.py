"""PostgreSQL as the engine of the store: several writers side by side, on several machines."""
