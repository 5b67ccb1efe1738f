"""The database: group commit (`writer`), SQL helpers (`sql`), locks of transactions (`locks`), and migrations.

A transaction is one plain function, written with the helpers of `sql`; `writer.Store` runs it. Writers queue: up to 256
of their functions share one transaction and one commit, and one that raises takes back its own changes only.
"""
