"""Access: roles and permissions of people, and pairing by code.

After a transaction of `pairing.py`, call `AccessControl.load`, so that it holds from the next event on.
"""
