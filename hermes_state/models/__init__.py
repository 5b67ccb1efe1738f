"""What is stored about models: a row for every call (ledger), and what was learned of each (profiles)."""
