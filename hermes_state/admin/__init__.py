"""Queries and housekeeping for operators: lineage, overview, pairings, retention."""
