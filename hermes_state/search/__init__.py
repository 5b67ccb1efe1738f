"""Full-text search over all messages, for any text that a person types.

`full_text.search` looks into the index, best matches or newest first, in everything, one chat or one conversation.
`query` makes a tree of a person's words, which `fts5` and `tsquery` write for their engines, and `store.segment` cuts
text.
"""
