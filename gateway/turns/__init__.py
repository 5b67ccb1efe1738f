"""Turns: each chat has a lane that runs the chat's turns in order, from the queued message to the stored answer."""
