"""Access: roles, permissions, and pairing by code. Call `AccessControl.load` after a transaction from `pairing.py`."""
