"""Queries and housekeeping for operators.

`lineage_queries` finds chats, sessions and messages by the names that people give, over all chats; `overview` counts
what is stored, also in a file that no daemon has open; `pairings` gives access by code; `retention` removes what is
settled and old, and puts the files in order.

>>> from hermes_state.admin import pairings
>>> pairings.hash_code("K7QM-4XPA") == pairings.hash_code("k7qm4xpa")
True
"""

__all__ = ["lineage_queries", "overview", "pairings", "retention"]
