"""Rows about models: calls (`ledger`) and learned properties (`profiles`)."""
