"""Import of conversations, notes, skills, the persona and schedules from other gateways.

source = SOURCES["hermes"](folder)              # reads lazily; `source.faults` lists what could not be read
for conversation in source.conversations(): ...
await import_source(source, …)
"""
