"""Queries and housekeeping for operators.

`lineage_queries` finds chats, sessions and messages by id across all chats. `overview` counts the stored rows, even
while no daemon runs. `pairings` grants access by code. `retention` removes old settled rows and maintains the database.

>>> from hermes_state.admin import pairings
>>> pairings.hash_code("K7QM-4XPA") == pairings.hash_code("k7qm4xpa")
True
"""

__all__ = ["lineage_queries", "overview", "pairings", "retention"]
