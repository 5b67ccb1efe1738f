"""This gateway among others that share its database."""
