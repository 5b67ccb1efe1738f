"""Who may use the gateway: roles, permissions and pairing."""
