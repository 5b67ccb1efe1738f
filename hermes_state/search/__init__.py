"""Full-text search over all messages, for any text that a person types.

`full_text.search` returns the best or newest matches everywhere, in a chat or in a conversation. `query` parses the
text, `fts5` and `tsquery` translate it for their engine, and `store.segment` splits text into words.
"""
