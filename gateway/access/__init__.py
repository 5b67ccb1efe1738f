"""Access: roles and permissions of people, and pairing by code.

After a transaction of `pairing.py`, call `AccessControl.load`, so that the change takes effect with the next event.
"""
