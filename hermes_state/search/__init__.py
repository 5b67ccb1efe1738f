"""Full-text search over everything that was said, whatever a person types.

`full_text.search` looks into the index, best matches or newest first, in everything, one chat or one conversation.
`query` makes a tree of a person's words, which `fts5` and `tsquery` write for their engines, and `store.segment` cuts
text.
"""
