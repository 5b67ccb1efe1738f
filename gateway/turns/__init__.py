"""Turns: each chat has a lane that runs its turns in order, from the waiting message to the stored answer."""
