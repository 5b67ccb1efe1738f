"""What is stored for tools beside their runs: approvals and todos."""
