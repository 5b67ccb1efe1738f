"""The database: group commit (`writer`), SQL helpers (`sql`), locks of transactions (`locks`), and migrations.

A transaction is a plain function, written with the helpers of `sql` and run by `writer.Store`. Up to 256 queued
functions share one commit. If a function raises, only its own changes are undone.
"""
