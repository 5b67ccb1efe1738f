"""The ground floor: the values every package shares, and the durable store."""
