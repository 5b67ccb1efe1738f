"""Lossless context engine: messages that leave the model's view stay in a tree of summaries and can be opened again."""
