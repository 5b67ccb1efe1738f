"""Context engine that loses nothing: messages that leave the view stay in a tree of summaries and can be reopened."""
