"""Memory: notes that outlive conversations, and what else stands in files and joins a system prompt.

A `MemoryDirectory` has a folder for each chat, with `MEMORY.md` about the work and `USER.md` about the people. The tool
`memory` and `/memory` change single entries (notes.py); before a compression a model is asked what it wants to note
(`agent.memory_flush`). A `SectionReader` (sections.py) reads them when a session begins, with the persona, a
workspace's context file and the index of the skills (skills.py).

>>> from agent.memory.notes import added, entries_in, replaced
>>> notes = added(added("", "likes short answers"), "lives in Porto")
>>> print(replaced(notes, "Porto", "lives in Lisbon"), end="")
- likes short answers
- lives in Lisbon
>>> [entry.text for entry in entries_in(notes)]
['likes short answers', 'lives in Porto']
"""
