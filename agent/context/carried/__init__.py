"""Carried past every summary by code: standing rules and facts of a record, and the audit of what a model wrote.

`sections.py` reads the two sections back from the earlier record and joins them with the rows that leave the view;
`rules.py` and `facts.py` say what belongs there. `audit.py` leaves out of a summary what nobody
has said. Rules are told from other sentences by expressions in eleven languages (phrases.py, phrases.toml).

>>> from agent.context.carried.rules import Rule
>>> from agent.context.carried.sections import Carried
>>> Carried(rules=[Rule(id=4, text="Always answer in German.")]).behind("They talked.").splitlines()
['They talked.', '', '## Standing rules', '- [m4] Always answer in German.']
"""
