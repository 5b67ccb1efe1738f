"""Model calls: one protocol, its implementations, and what to do when a call fails."""
