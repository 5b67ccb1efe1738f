"""Full-text search over every stored message, compressed or not.

Rows that were created only for a view are not indexed, so each message is found once, in the session that it was
written in.
"""

import heapq
import re
import sqlite3
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Literal, TypeAlias, Unpack

import msgspec

from hermes_state.search.fts5 import Fts5Matches
from hermes_state.search.fuzzy import near_words
from hermes_state.search.query import (
    LETTER,
    QUESTION_WORDS,
    Expression,
    Query,
    Term,
    any_pattern,
    one_line,
    parse_query,
)
from hermes_state.search.ranking import RANKED_HITS, MatchReader, SearchFilter, best_of
from hermes_state.search.relevance import expression_of, named_speakers, neighbours, relevant
from hermes_state.search.tsquery import TsMatches
from hermes_state.search.words import Forms, content_words, forms_of, similar_to
from hermes_state.sessions import LINEAGE_KEY
from hermes_state.store.segment import INDEXED_CHARACTERS, folded, fts_row, searched_text
from hermes_state.store.sql import Connection, columns, select
from hermes_state.text import shortened
from hermes_state.transcripts import load_message
from hermes_state.values import (
    ChatId,
    ChatKey,
    LineageId,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    Transcript,
    TurnId,
)

SNIPPET_CHARACTERS = 200
SHOWN_TERMS = 48
"""Maximum number of terms that a snippet shows."""
SINGLE_WORD_HITS = 120
"""Number of newest matches that are ranked if the query is a single word."""
MAX_WORDS, MAX_NAMED = 16, 8
"""Maximum number of a question's words that are searched, and of those that `tried_words` names."""

Order: TypeAlias = Literal["best", "newest"]


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A matching message. `score` is higher for a better match, and 0 if sorted by time."""

    message_id: MessageId
    session_id: SessionId
    session_key: str
    lineage_id: LineageId
    lineage_key: str  # key of the conversation's first session
    chat_id: ChatId
    chat: ChatKey
    role: MessageRole
    origin: Origin
    sender_name: str | None
    created_at: Millis
    text: str
    score: float = 0.0
    body: MessageBody | None = None
    snippet: str = ""
    """About `SNIPPET_CHARACTERS` characters with most of the query's words, on one line, with `…` where text is cut."""


def search(
    db: Connection, query: str, *, order: Order = "best", limit: int = 20, **filters: Unpack[SearchFilter]
) -> list[FoundMessage]:
    """Return the messages that match `query`, which can be any text. A query without words matches nothing.

    People can deliberately write slow queries, so run this with a short time limit: `store.read_within(1.0, search,
    ...)`.
    """
    return search_and_tell(db, query, order=order, limit=limit, **filters)[0]


def search_and_tell(
    db: Connection, query: str, *, order: Order = "best", limit: int = 20, **filters: Unpack[SearchFilter]
) -> tuple[list[FoundMessage], tuple[str, ...]]:
    """Search like `search`. If a word of the query is unknown, also return the words that were searched instead.

    Messages that contain the query word for word come first, then those with the rarest and most words. Words that
    are unknown are replaced with known words that differ in one letter. Quotes and operators are exact.
    """
    parsed, matches = parse_query(query), match_reader(db, **filters)
    if parsed is None:
        return [], ()
    is_phrase = len(parsed.terms) == 1 and 1 < len(parsed.words) < QUESTION_WORDS  # a short Chinese word, for example
    if not parsed.words or order == "newest" or is_phrase:
        hits = ranked(matches, parsed, order, limit)
        if hits or not parsed.words:
            return load_found(matches, hits, parsed.wanted), ()
    asked = {forms_of(word): word for word in content_words(parsed.words)[:MAX_WORDS]}
    speakers = named_speakers(matches, parsed.words)
    most = RANKED_HITS if len(asked) > 1 else SINGLE_WORD_HITS
    found = _find_words(matches, asked, most, {forms_of(name) for name in speakers})
    similar = _find_similar(matches, asked, speakers) if len(asked) > 1 and order == "best" else {}
    unknown = [word for forms, word in asked.items() if forms not in found and forms not in similar]
    found |= _find_words(matches, near_words(matches, unknown), most)
    if order == "newest":
        hits = [(row_id, 0.0) for row_id in sorted({*chain(*found.values())}, reverse=True)]
    else:
        hits = relevant(matches, found, similar, speakers, parsed.words, limit)
        best = max((score for _, score in hits), default=0.0)
        whole = matches.best(parsed.whole, [parsed.whole], limit) if parsed.whole is not None else []
        hits = best_of({**dict(hits), **{row_id: best + score for row_id, score in whole}}.items(), limit)
    wanted = tuple(dict.fromkeys((*chain(*found), *_wanted(parsed))))
    told = tuple(asked.get(forms, forms[0].text) for forms in found) if unknown else ()
    return load_found(matches, hits[:limit], wanted), told


def _find_words(
    matches: MatchReader, words: Iterable[Forms], limit: int, names: Container[Forms] = ()
) -> dict[Forms, list[int]]:
    """Return the known words and names, each with the ids of the newest messages that contain it."""
    found = {forms: matches.newest(expression_of(forms), limit) for forms in words}
    return {forms: ids for forms, ids in found.items() if ids or forms in names}


def _find_similar(
    matches: MatchReader, asked: Mapping[Forms, str], speakers: Container[str]
) -> dict[Forms, tuple[Forms, list[int]]]:
    """Return the words with a similar meaning that are known, and their ids, for each word that is not a name.

    No word is returned twice, or if it is asked for.
    """
    taken, similar = {*chain(*asked)}, dict[Forms, tuple[Forms, list[int]]]()
    for own, word in asked.items():
        forms = () if word in speakers else tuple(term for term in similar_to(word) if term not in taken)
        if forms and (ids := matches.newest(expression_of(forms), RANKED_HITS)):
            taken.update(forms)
            similar[own] = forms, ids
    return similar


def match_reader(db: Connection, **filters: Unpack[SearchFilter]) -> MatchReader:
    return Fts5Matches(db, **filters) if isinstance(db, sqlite3.Connection) else TsMatches(db, **filters)


def ranked(matches: MatchReader, parsed: Query, order: Order, limit: int) -> list[tuple[int, float]]:
    """Return the ids and scores of the rows that match a query."""

    def found(expression: Expression, terms: Sequence[Term], limit: int) -> dict[int, float]:
        return dict(
            matches.best(expression, terms, limit)
            if order == "best"
            else dict.fromkeys(matches.newest(expression, limit), 0.0)
        )

    hits = _pasted(matches.db, parsed, found, limit)
    if parsed.expression is not None and (order == "newest" or len(hits) < limit):
        others = found(parsed.expression, parsed.terms, limit)
        best = max(others.values(), default=0.0)
        hits = others | {row_id: score + best for row_id, score in hits.items()}
    return heapq.nlargest(limit, hits.items(), key=lambda hit: (hit[1], hit[0]))


def load_beside(db: Connection, hits: Sequence[FoundMessage], turn_id: TurnId) -> dict[MessageId, Transcript]:
    """Load the messages before and after each hit in its conversation, without the messages of the turn."""
    beside = neighbours(match_reader(db, turn_id=turn_id), [hit.message_id for hit in hits], 1)
    return {
        MessageId(row_id): tuple(load_message(db, MessageId(other)) for other in others if other is not None)
        for row_id, others in beside
    }


def load_found(matches: MatchReader, hits: Sequence[tuple[int, float]], wanted: Sequence[Term]) -> list[FoundMessage]:
    """Load the rows of `hits` (ids and scores), with snippets around the wanted terms."""
    scores = dict(hits)
    if not scores:
        return []
    # Ids grow with time, so the limit can be applied before `since`. A part of a document needs a message.
    query = f"""SELECT m.id AS message_id, m.session_id, s.key AS session_key, m.lineage_id,
      {LINEAGE_KEY} AS lineage_key, m.chat_id, {columns(ChatKey, "c", "chat")}, m.role, m.origin, m.sender_name,
      m.created_at, coalesce(m.text, '') AS text, m.body
    FROM messages m JOIN sessions s ON s.id = m.session_id JOIN chats c ON c.id = s.chat_id
    WHERE m.created_at >= ? AND (m.seq > 0 OR m.replaces_id IS NOT NULL) AND m.id IN ({", ".join("?" * len(scores))})"""
    rows = {int(row.message_id): row for row in select(matches.db, FoundMessage, query, (matches.since or 0, *scores))}
    return [
        msgspec.structs.replace(row, score=score, snippet=_snippet(searched_text(row.text, row.body), wanted))
        for message_id, score in scores.items()
        if (row := rows.get(message_id)) is not None
    ]


def _pasted(
    db: Connection, parsed: Query, found: Callable[[Expression, Sequence[Term], int], dict[int, float]], limit: int
) -> dict[int, float]:
    """Return the scores, by id, of rows that contain the query's words next to each other.

    If a word follows a dash, as in `find . -name foo`, the rows must contain the query with its dashes.
    """
    if parsed.whole is None:
        return {}
    hits = found(parsed.whole, [parsed.whole], max(limit, 100) if parsed.has_exclusions else limit)
    if parsed.has_exclusions:
        columns_of = "SELECT text, body FROM messages WHERE id = ?"
        texts = {row_id: fts_row(*db.execute(columns_of, (row_id,)).fetchone()) for row_id in hits}
        hits = {row_id: hits[row_id] for row_id in hits if parsed.text in one_line(texts[row_id][:INDEXED_CHARACTERS])}
    return hits


def tried_words(query: str, order: Order = "best") -> str | None:
    """Return a sentence that says which words were searched in which forms, or None if the query is exact or empty."""
    parsed = parse_query(query)
    if parsed is None or not parsed.words:
        return None
    words, forms = content_words(parsed.words)[:MAX_WORDS], "other endings and similar spellings"
    if len(words) > 1 and order == "best":
        forms = "other endings, similar spellings and (in English) similar meanings"
    named = ", ".join(shortened(word, 40) for word in words[:MAX_NAMED])
    return f"I searched for each of these words, also with {forms}: {named}."


def snippet_of(text: str, query: str) -> str:
    """Return a new snippet for a match whose text has changed since the search, for example by redaction."""
    return _snippet(text, _wanted(parse_query(query)))


def _wanted(parsed: Query | None) -> tuple[Term, ...]:
    """Return the terms that a snippet shows. For a question, these are the forms of its content words.

    If there are several content words, the words of similar meaning follow.
    """
    if parsed is None or not parsed.words:
        return parsed.wanted if parsed is not None else ()
    words = content_words(parsed.words)
    return tuple(chain(*map(forms_of, words), *map(similar_to, words if len(words) > 1 else ())))


def marked(snippet: str, query: str) -> list[tuple[str, bool]]:
    """Split a snippet into pieces. The second item of each pair is True if the piece matches a word of the query."""
    wanted, compared = _wanted(parse_query(query))[:SHOWN_TERMS], folded(snippet)
    pieces, end = list[tuple[str, bool]](), 0
    for match in pattern.finditer(compared) if (pattern := _pattern(wanted, LETTER)) is not None else ():
        start, last = match.start(), match.end() - 1
        if len(compared) != len(snippet):
            start, last = max(end, _original(snippet, start)), _original(snippet, last)
        pieces += [(snippet[end:start], False), (snippet[start : last + 1], True)]
        end = last + 1
    return [piece for piece in [*pieces, (snippet[end:], False)] if piece[0]]


@lru_cache(maxsize=64)  # one entry per search, reused for its hits
def _pattern(wanted: tuple[Term, ...], edge: str) -> re.Pattern[str] | None:
    """Return a pattern that finds the first four words of any wanted term in folded text."""
    pattern = any_pattern(wanted, 4, edge)
    return re.compile(pattern) if pattern else None


def _snippet(text: str, wanted: Sequence[Term]) -> str:
    compared, shown = folded(text[:INDEXED_CHARACTERS]), tuple(wanted[:SHOWN_TERMS])
    at = next((place for edge in (LETTER, "") if (place := _place(compared, shown, edge)) is not None), 0)
    at = at if len(compared) == min(len(text), INDEXED_CHARACTERS) else _original(text, at)
    start = max(0, min(at - SNIPPET_CHARACTERS // 3, len(text) - SNIPPET_CHARACTERS))
    end = start + SNIPPET_CHARACTERS
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"


def _original(text: str, place: int) -> int:
    """Return the index in `text` that corresponds approximately to the index `place` in the folded text."""
    start, end = 0, len(text)
    while end - start > 1:
        middle = (start + end) // 2
        if (length := len(folded(text[start:middle]))) <= place:
            start, place = middle, place - length
        else:
            end = middle
    return start


def _place(compared: str, wanted: tuple[Term, ...], edge: str) -> int | None:
    """Return the first index at which most of the terms are close together. `edge` is passed to `Term.pattern`."""
    pattern = _pattern(wanted, edge)
    best, last = (0, 0), dict[str, int]()
    for match in islice(pattern.finditer(compared), 2_000) if pattern else ():
        last[match[0]] = match.start()
        near = [start for start in last.values() if match.end() - start <= SNIPPET_CHARACTERS * 2 // 3]
        best = max(best, (len(near), -min(near, default=0)))
    return -best[1] if best[0] else None
