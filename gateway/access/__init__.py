"""Access: the roles and permissions of users, and pairing by code.

After a transaction from `pairing.py`, call `AccessControl.load`, so that the change applies to the next event.
"""
