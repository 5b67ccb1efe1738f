"""Access: roles and permissions of people, and pairing by code.

`permissions.py` judges every message, command and button by configuration and pairings: `judge` before anything is
stored, `role_of` whenever something is about to be done. `pairing.py` has the transactions that offer a code to a
stranger, approve it and revoke it; whoever ran one calls `AccessControl.load`, so that it holds from the next event
on.
"""
