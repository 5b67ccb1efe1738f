"""What arrives: authorised, stored, and only then acknowledged."""
