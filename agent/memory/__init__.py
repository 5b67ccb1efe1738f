"""Long-term memory: notes that are kept when a conversation ends, and the other files that system prompts contain.

A `MemoryDirectory` (notes.py) has a folder for each chat, with `MEMORY.md` about the work and `USER.md` about the
people. The tool `memory`, the command `/memory` and the memory flush change entries. A `SectionReader` (sections.py)
reads the notes when a session begins, together with the persona, a context file and the list of skills (skills.py).

>>> from agent.memory.notes import added, entries_in, replaced
>>> notes = added(added("", "likes short answers"), "lives in Porto")
>>> print(replaced(notes, "Porto", "lives in Lisbon"), end="")
- likes short answers
- lives in Lisbon
>>> [entry.text for entry in entries_in(notes)]
['likes short answers', 'lives in Porto']
"""
