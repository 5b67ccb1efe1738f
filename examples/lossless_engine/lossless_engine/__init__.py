"""A context engine that loses nothing: what leaves the view stays in a tree of summaries, down to each message."""
