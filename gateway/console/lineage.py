"""Lineage of a chat: its sessions as a tree, and what each compression replaced."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from gateway.console.opened import Comparison, find_hits, show
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import duration
from gateway.operator import lookups
from hermes_state.admin.lineage_tree import LineageNode, find_session_of, load_nodes, load_prompt_sizes
from hermes_state.chats import Chat, find_chat, load_chat
from hermes_state.errors import CommandError
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection
from hermes_state.text import dollars
from hermes_state.values import EndReason, LineageId, SessionId, SessionKind, parse_recall_id
from platforms.console import ConsolePage, Values, WebPerson

MAX_NODES = 1_000
MAX_LABELLED = 60
"""Maximum number of sessions in a row for which the tree has room for words."""
CHART_CALLS, CHART_PARTS = 3_000, 300
"""Model calls whose prompts the chart shows, and the points for them. Compressions show the sizes before that."""
ENDS = {
    EndReason.RESET: "ended by a reset",
    EndReason.EXPIRED: "ended after a long pause",
    EndReason.SWITCHED: "left for another conversation",
    EndReason.FINISHED: "finished",
}


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    name, redact = field_of(query, "chat"), context.live.redactor()

    wanted = parse_recall_id(query.get("message", ""))

    def read(db: Connection) -> tuple[Chat, list[LineageNode], SessionId | None]:
        chat = _find_chat(db, person, name)
        session = find_session_of(db, chat.id, wanted) if wanted is not None else None
        return chat, load_nodes(db, chat.id, MAX_NODES + 1), session

    chat, loaded, holder = await context.store.read(read)
    nodes = loaded[-MAX_NODES:]
    is_own = chat.key == person.chat_key(chat.key.chat_ref)
    if not is_own:
        await context.record(person, "read lineage", chat.key.name)
    opened, words = _opened(nodes, query, holder), query.get("words", "").strip()[:200]
    hits = await find_hits(context.store, chat.id, words, nodes, redact)
    page: Values = {}
    if opened is not None:
        ended = opened.parent_id if opened.layer is not None else None  # session that the compression ended
        source, child = (opened.id, None) if ended is None else (ended, opened.id)
        compared = await context.store.read(Comparison.load, source, child)
        marked = frozenset(hit.id for hit in hits)
        page = await asyncio.to_thread(show, compared, query.get("from", ""), wanted, marked, redact)
    return {
        "name": name,
        "is_own": is_own,
        "chart": await _load_chart(context, nodes, opened),
        "rows": await asyncio.to_thread(_rows, nodes, name, opened, redact),
        "is_cut": len(loaded) > MAX_NODES,
        "opened": None if opened is None else {**_details(opened, redact), **page},
        "words": words,
        "hits": hits,
    }


def _find_chat(db: Connection, person: WebPerson, name: str) -> Chat:
    """Return the person's own chat, or for admins any chat with a name such as `telegram:42`. Raises `CommandError`."""
    if person.is_admin and ":" in name:
        return load_chat(db, lookups.find_chat(db, name))
    if (chat := find_chat(db, person.chat_key(name))) is None:
        raise CommandError("There is no conversation in this chat. Open the chat and write a message first.")
    return chat


def _opened(nodes: Sequence[LineageNode], query: Mapping[str, str], holder: SessionId | None) -> LineageNode | None:
    """Return the requested session. For a message, this is the session whose compression replaced or kept it first."""
    if key := query.get("session", ""):
        found = next((node for node in nodes if node.key == key), None)
    elif query.get("message"):
        later = (node for node in nodes if node.layer is not None and node.parent_id == holder)
        found = next(later, None) or next((node for node in nodes if node.id == holder), None)
    else:
        return None
    if found is None:
        raise CommandError("This chat has no such session or message. Choose one in the lineage of the chat.")
    return found


async def _load_chart(
    context: ConsoleContext, nodes: Sequence[LineageNode], opened: LineageNode | None
) -> Mapping[str, object] | None:
    """Return a chart of the context size of one conversation over time; None without two known sizes."""
    if not nodes:
        return None
    shown = nodes[-1] if opened is None else opened
    mine = [node for node in nodes if node.lineage_id == shown.lineage_id]
    sizes = await context.store.read(load_prompt_sizes, shown.lineage_id, CHART_CALLS, CHART_PARTS)
    steps = [node for node in mine if node.tokens_before is not None and node.tokens_after is not None]
    points: list[tuple[int, int]] = [(one.at, one.tokens) for one in sizes]
    points += [(node.started_at, size or 0) for node in steps for size in (node.tokens_before, node.tokens_after)]
    points.sort(key=lambda point: point[0])
    if len(points) < 2:
        return None
    first, last, largest = points[0][0], points[-1][0], max(1, *(tokens for _, tokens in points))
    if len(points) > CHART_PARTS * 2:  # so many falls would fill the area, so the chart shows the largest sizes
        highest = dict[int, tuple[int, int]]()
        for point in points:
            part = (point[0] - first) * CHART_PARTS // max(1, last - first)
            highest[part] = max(highest.get(part, point), point, key=lambda one: one[1])
        points, steps = [*highest.values()], []
    width = 1_000 / max(1, last - first)
    return {
        "line": " ".join(f"{(at - first) * width:.1f},{200 - tokens * 190 / largest:.1f}" for at, tokens in points),
        "ticks": "".join(f"M{(node.started_at - first) * width:.1f} 200v-8" for node in steps),
        "largest": largest,
        "newest": points[-1][1],
        "first": first,
        "last": last,
    }


# ---- the tree


def _rows(
    nodes: Sequence[LineageNode], name: str, opened: LineageNode | None, redact: Redactor
) -> Sequence[Mapping[str, object]]:
    """Return a drawing for each conversation, newest first."""
    conversations = defaultdict[LineageId, list[LineageNode]](list)
    for node in nodes:
        conversations[node.lineage_id].append(node)
    keys = {node.id: node.key for node in nodes}
    return [_row(one, keys, name, opened, redact) for one in reversed(conversations.values())]


def _row(
    nodes: Sequence[LineageNode],
    keys: Mapping[SessionId, str],
    name: str,
    opened: LineageNode | None,
    redact: Redactor,
) -> Mapping[str, object]:
    parents, lanes = place(nodes)
    is_labelled = len(nodes) <= MAX_LABELLED
    step, height, first = (104, 76, 52) if is_labelled else (26, 34, 16)
    spots = {node.id: (first + column * step, 20 + lanes[node.id] * height) for column, node in enumerate(nodes)}
    drawn, edges = [], []
    for node in nodes:
        x, y = spots[node.id]
        drawn.append(
            {
                "x": x,
                "y": y,
                "href": f"/console/lineage?{urlencode({'chat': name, 'session': node.key})}",
                "label": describe(node, redact),
                "word": _word(node),
                "sizes": f"{_short(node.tokens_before)} → {_short(node.tokens_after)}" if node.tokens_after else "",
                "kind": _kind(node),
                "is_undone": node.undone_by is not None,
                "is_opened": opened is not None and opened.id == node.id,
            }
        )
        if (parent := parents.get(node.id)) is not None:
            from_x, from_y = spots[parent]
            bend = from_x + step // 2
            curve = (
                f"M{from_x} {from_y}H{x}"
                if y == from_y
                else f"M{from_x} {from_y}C{bend} {from_y} {bend} {y} {from_x + step} {y}H{x}"
            )
            edges.append({"path": curve, "is_undone": node.undone_by is not None or lanes[node.id] > 0})
    root, tip = nodes[0], nodes[-1]
    title = next((node.title for node in reversed(nodes) if node.title), None)
    return {
        "title": redact(title) if title else "Conversation",
        "started_at": root.started_at,
        "sessions": len(nodes),
        "end": ENDS.get(tip.end_reason, "") if tip.end_reason else "open",
        "branched_from": keys.get(root.parent_id) if root.kind is SessionKind.BRANCH and root.parent_id else None,
        "nodes": drawn,
        "edges": edges,
        "is_labelled": is_labelled,
        "width": first * 2 + (len(nodes) - 1) * step,
        "height": 20 + (max(lanes.values()) + 1) * height - (0 if is_labelled else 10),
    }


def place(nodes: Sequence[LineageNode]) -> tuple[Mapping[SessionId, SessionId], Mapping[SessionId, int]]:
    """Return the parent of each session in the drawing, and its lane. Lane 0 is what the conversation consists of now.

    In the database, an undo continues the newest session. In the drawing it continues the session whose compression was
    undone, so the sessions in between become a branch that ends, one lane below.
    """
    known = {node.id for node in nodes}
    restored = {node.undone_by: node.parent_id for node in nodes if node.undone_by is not None}
    parents = {node.id: parent for node in nodes if (parent := restored.get(node.id, node.parent_id)) in known}
    children = defaultdict[SessionId, list[SessionId]](list)
    for child, parent in parents.items():
        children[parent].append(child)
    lanes: dict[SessionId, int] = {}
    for node in nodes:  # parents come before their children
        parent = parents.get(node.id)
        is_newest = parent is None or children[parent][-1] == node.id
        lanes[node.id] = (0 if parent is None else lanes[parent]) + (0 if is_newest else 1)
    return parents, lanes


def _kind(node: LineageNode) -> str:
    if node.layer is not None:
        return "compression"
    return "undo" if node.depth else "start"


def _word(node: LineageNode) -> str:
    if node.layer is not None:
        return node.layer.replace("_", "-").capitalize()
    if node.depth:
        return "Undo"
    return "Branch" if node.kind is SessionKind.BRANCH else "Start"


def _short(tokens: int | None) -> str:
    """Return a number of tokens in thousands.

    >>> _short(16_471), _short(812)
    ('16.5k', '812')
    """
    if tokens is None:
        return "?"
    return str(tokens) if tokens < 1_000 else f"{tokens / 1_000:.1f}k" if tokens < 100_000 else f"{tokens // 1_000}k"


def describe(node: LineageNode, redact: Redactor) -> str:
    """Return one line about a session: how it began, and what its compression did."""
    return ", ".join(f"{label} {value}".strip() if label else value for label, value in _facts(node, redact))


def _facts(node: LineageNode, redact: Redactor) -> list[tuple[str, str]]:
    if node.layer is None:
        begun = (
            "undo of a compression" if node.depth else "branch" if node.kind is SessionKind.BRANCH else "first session"
        )
        return [("", begun), ("messages", f"{node.message_count:,}")]
    facts = [("", f"{node.layer.replace('_', '-')} compression")]
    if node.tokens_before is not None and node.tokens_after is not None:
        facts.append(("tokens", f"{node.tokens_before:,} → {node.tokens_after:,}"))
    if node.took_ms is not None:
        facts.append(("took", duration(node.took_ms) if node.took_ms >= 1_000 else f"{node.took_ms} ms"))
    facts.append(("cost", dollars(node.cost)))
    facts.append(
        (
            "summary by",
            "rules, without a model" if node.summary_kind == "deterministic" else node.model or "an unknown model",
        )
    )
    facts.append(("messages since", f"{node.message_count:,}"))
    if node.focus:
        facts.append(("focus", f"“{redact(node.focus)}”"))
    return facts + ([("", "undone later")] if node.undone_by is not None else [])


def _details(node: LineageNode, redact: Redactor) -> Mapping[str, object]:
    facts = _facts(node, redact)
    return {
        "key": node.key,
        "word": _word(node),
        "at": node.started_at,
        "facts": facts,
        "is_compression": node.layer is not None,
    }


PAGE = Page(about=ConsolePage(name="lineage", title="Lineage", is_for_admins=False, is_in_menu=False), load=load)
