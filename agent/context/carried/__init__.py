"""Standing rules, preferences and facts, copied into each new record, and the audit of a model's summary.

A record is the text that replaces older messages: a summary, followed by these sections.

`sections.py` writes the sections. `rules.py` and `facts.py` choose their lines from the earlier record and from the
rows that leave the view. `phrases.py` recognises rules in eleven languages. `preferences.py` recognises preferences and
decisions. `audit.py` removes invented lines from a summary.

>>> from agent.context.carried.rules import Rule
>>> from agent.context.carried.sections import Carried
>>> Carried(rules=[Rule(id=4, text="Always answer in German.")]).behind("They talked.").splitlines()
['They talked.', '', '## Standing rules', '- [m4] Always answer in German.']
"""
