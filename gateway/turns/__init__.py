"""Turns: a lane for every chat, and one turn after the other in it, from the claim to the stored answer."""
