"""Memory: notes that outlive conversations, and other files that join a system prompt.

A `MemoryDirectory` (notes.py) has a folder for each chat, with `MEMORY.md` about the work and `USER.md` about the
people. The tool `memory`, `/memory` and the flush before a compression change entries. A `SectionReader` (sections.py)
reads them when a session begins, with the persona, a context file and the index of the skills (skills.py).

>>> from agent.memory.notes import added, entries_in, replaced
>>> notes = added(added("", "likes short answers"), "lives in Porto")
>>> print(replaced(notes, "Porto", "lives in Lisbon"), end="")
- likes short answers
- lives in Lisbon
>>> [entry.text for entry in entries_in(notes)]
['likes short answers', 'lives in Porto']
"""
