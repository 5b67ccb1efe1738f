"""Cluster: several gateways that share a PostgreSQL database."""
