"""Rows about model calls (`ledger`) and learned model properties (`profiles`)."""
