"""What fits into a model's context window."""
