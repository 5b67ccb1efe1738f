"""Protocols that models are spoken to in, one module each."""
