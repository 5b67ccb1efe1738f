"""State of tools beside their runs: approvals and todos."""
