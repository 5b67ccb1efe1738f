"""Stored rows about models: one for every call (ledger), and what was learned of each model (profiles)."""
