"""Full-text search over everything that was said, whatever a person types.

`search` looks into the index, best matches or newest first, in everything, one chat or one conversation; `parse_query`
makes a tree of a person's words, which `fts5` and `tsquery` write for their engines, and `store.segment` cuts text.

>>> [term.text for term in parse_query('red -door "blue house"').wanted]
['red', 'blue house']
>>> parse_query("-door") is None
True
"""

from hermes_state.search.full_text import FoundMessage, Order, search, snippet_of
from hermes_state.search.query import Query, parse_query

__all__ = ["FoundMessage", "Order", "Query", "parse_query", "search", "snippet_of"]
