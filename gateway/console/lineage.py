"""Lineage of a chat: its sessions as a tree, what each compression replaced, and how full the context window is."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from agent.context.controller import PRESSURE_PERCENT
from gateway.console.opened import find_hits, show
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.operator import lookups
from hermes_state.admin.lineage_tree import LineageNode, find_session_of, load_nodes, load_prompt_sizes
from hermes_state.agents import agent_of
from hermes_state.chats import Chat, find_chat, load_chat
from hermes_state.errors import CommandError
from hermes_state.redaction import Redactor
from hermes_state.sessions import EndReason, Session, load_open
from hermes_state.store.sql import Connection
from hermes_state.text import dollars, duration
from hermes_state.transcripts import load_context, load_session_view
from hermes_state.values import ConversationRef, LineageId, SessionId, Transcript, parse_recall_id
from platforms.console import ConsolePage, Values, WebPerson

MAX_NODES = 1_000
CHART_CALLS, CHART_PARTS = 3_000, 300
"""Maximum number of model calls in the chart, and of points that show them. Older sizes come from compressions."""
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
    if not (is_own := person.owns(chat.key)):
        await context.record(person, "read lineage", chat.key.name)
    opened, words = _opened(nodes, query, holder), query.get("words", "").strip()[:200]
    hits = await find_hits(context.store, chat.id, words, nodes, redact)
    page: Values | None = None
    if opened is not None:
        before, after = await context.store.read(_load_views, opened)
        marked = frozenset(hit["id"] for hit in hits)
        page = {
            **await asyncio.to_thread(show, before, after, query.get("from", ""), wanted, marked, redact),
            **{"key": opened.key, "word": _word(opened), "at": opened.started_at},
            **{"facts": _facts(opened, redact), "is_compression": opened.layer is not None},
        }
    return {
        "name": name,
        "is_own": is_own,
        "chart": await _load_chart(context, nodes, opened),
        "rows": await asyncio.to_thread(_rows, nodes, name, opened, redact),
        "is_cut": len(loaded) > MAX_NODES,
        "opened": page,
        "words": words,
        "hits": hits,
    }


def _find_chat(db: Connection, person: WebPerson, name: str) -> Chat:
    """Return the person's own chat, or for admins, any chat with a name such as `telegram:42`.

    Raises `CommandError` if the chat does not exist.
    """
    if person.is_admin and ":" in name:
        return load_chat(db, lookups.find_chat(db, name))
    if (chat := find_chat(db, person.chat_key(name))) is None:
        raise CommandError("There is no conversation in this chat. Open the chat and write a message first.")
    return chat


def _opened(nodes: Sequence[LineageNode], query: Mapping[str, str], holder: SessionId | None) -> LineageNode | None:
    """Return the requested session, or None if the query names no session or message.

    For a message in session `holder`, return the first session that a compression of `holder` created, otherwise
    `holder` itself.
    """
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


def _load_views(db: Connection, opened: LineageNode) -> tuple[Transcript, Transcript]:
    """Load the views before and after a compression. The second view is empty if no compression created the session."""
    if opened.layer is None or opened.parent_id is None:
        return load_session_view(db, opened.id), ()
    return load_session_view(db, opened.parent_id), load_context(db, opened.id)


async def _load_chart(
    context: ConsoleContext, nodes: Sequence[LineageNode], opened: LineageNode | None
) -> Mapping[str, object] | None:
    """Return a chart of the context size of one conversation over time, or None if fewer than two sizes are known."""
    if not nodes:
        return None
    lineage_id = (opened or nodes[-1]).lineage_id
    steps = [node for node in nodes if node.lineage_id == lineage_id and None not in node.sizes]
    points = await context.store.read(load_prompt_sizes, lineage_id, CHART_CALLS, CHART_PARTS)
    points += [(node.started_at, size or 0) for node in steps for size in node.sizes]
    points.sort(key=lambda point: point[0])
    if len(points) < 2:
        return None
    first, last, largest = points[0][0], points[-1][0], max(1, *(tokens for _, tokens in points))
    # Show only the largest sizes of a long conversation, because many drops would make the area look filled.
    if len(points) > CHART_PARTS * 2:
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
    """Return the title, the state and the tree of each conversation, newest first."""
    conversations = defaultdict[LineageId, list[LineageNode]](list)
    for node in nodes:
        conversations[node.lineage_id].append(node)
    rows = []
    for mine in reversed(conversations.values()):
        root, tip = mine[0], mine[-1]
        title = next((node.title for node in reversed(mine) if node.title), None)
        row = {
            "title": redact(title) if title else "Conversation",
            "started_at": root.started_at,
            "sessions": len(mine),
            "end": ENDS.get(tip.end_reason, "") if tip.end_reason else "open",
            "agent": root.agent,
        }
        rows.append({**row, **_drawing(mine, f"/console/lineage?{urlencode({'chat': name})}", opened, redact)})
    return rows


def _drawing(
    nodes: Sequence[LineageNode], address: str, opened: LineageNode | None, redact: Redactor
) -> Mapping[str, object]:
    parents, lanes = place(nodes)
    is_labelled = len(nodes) <= 60
    step, height, first = (104, 76, 52) if is_labelled else (26, 34, 16)
    spots = {node.id: (first + column * step, 20 + lanes[node.id] * height) for column, node in enumerate(nodes)}
    drawn, edges = [], []
    for node in nodes:
        (x, y), is_undone = spots[node.id], node.undone_by is not None
        sizes = " → ".join(map(_short, node.sizes)) if node.tokens_after else ""
        label = ", ".join(f"{name} {value}".strip() for name, value in _facts(node, redact))
        kind = "compression" if node.layer is not None else "undo" if node.depth else "start"
        words = {"word": _word(node), "label": label, "sizes": sizes, "kind": kind}
        spot = {"x": x, "y": y, "href": f"{address}&session={node.key}"}
        drawn.append({**words, **spot, "is_undone": is_undone, "is_opened": node is opened})
        if (parent := parents.get(node.id)) is not None:
            from_x, from_y = spots[parent]
            bend = from_x + step // 2
            curve = "" if y == from_y else f"C{bend} {from_y} {bend} {y} {from_x + step} {y}"
            path = f"M{from_x} {from_y}{curve}H{x}"
            edges.append({"path": path, "is_undone": is_undone or lanes[node.id] > 0})
    return {
        "nodes": drawn,
        "edges": edges,
        "is_labelled": is_labelled,
        "width": first * 2 + (len(nodes) - 1) * step,
        "height": 20 + (max(lanes.values()) + 1) * height - (0 if is_labelled else 10),
    }


def place(nodes: Sequence[LineageNode]) -> tuple[Mapping[SessionId, SessionId], Mapping[SessionId, int]]:
    """Return the parent and the lane of each session in the drawing. Lane 0 contains the sessions in use.

    In the database, an undo continues the newest session. In the drawing, it continues the session from before the
    undone compression. The undone sessions become a dead-end branch, one lane below.
    """
    known = {node.id for node in nodes}
    restored = {node.undone_by: node.parent_id for node in nodes if node.undone_by is not None}
    parents = {node.id: parent for node in nodes if (parent := restored.get(node.id, node.parent_id)) in known}
    newest = {parent: child for child, parent in parents.items()}  # the last child of each parent
    lanes: dict[SessionId, int] = {}
    for node in nodes:  # parents come before their children
        parent = parents.get(node.id)
        lanes[node.id] = 0 if parent is None else lanes[parent] + (newest[parent] != node.id)
    return parents, lanes


def _word(node: LineageNode) -> str:
    if node.layer is not None:
        return node.layer.replace("_", "-").capitalize()
    return "Undo" if node.depth else "Start"


def _short(tokens: int | None) -> str:
    """Return a token count in short form.

    >>> _short(16_471), _short(812)
    ('16.5k', '812')
    """
    if tokens is None:
        return "?"
    return str(tokens) if tokens < 1_000 else f"{tokens / 1_000:.1f}k" if tokens < 100_000 else f"{tokens // 1_000}k"


def _facts(node: LineageNode, redact: Redactor) -> list[tuple[str, str]]:
    """Return labels and values that describe how a session began and what its compression did. A label can be empty."""
    if node.layer is None:
        begun = {"Undo": "undo of a compression", "Branch": "branch", "Start": "first session"}[_word(node)]
        return [("", begun), ("messages", f"{node.message_count:,}")]
    facts = [("", f"{node.layer.replace('_', '-')} compression")]
    if node.tokens_before is not None and node.tokens_after is not None:
        facts.append(("tokens", f"{node.tokens_before:,} → {node.tokens_after:,}"))
    if node.took_ms is not None:
        facts.append(("took", duration(node.took_ms) if node.took_ms >= 1_000 else f"{node.took_ms} ms"))
    is_ruled = node.summary_kind == "deterministic"
    facts += [
        ("cost", dollars(node.cost)),
        ("summary by", "rules, without a model" if is_ruled else node.model or "an unknown model"),
        ("messages since", f"{node.message_count:,}"),
    ]
    if node.focus:
        facts.append(("focus", f"“{redact(node.focus)}”"))
    return facts + ([("", "undone later")] if node.undone_by is not None else [])


# ---- context meter


async def load_meter(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the size of the open conversation in one of the person's own chats, as `/status` shows it."""
    name = field_of(query, "chat")

    def read(db: Connection) -> tuple[Chat, Session] | None:
        chat = find_chat(db, person.chat_key(name))
        session = load_open(db, chat.id) if chat is not None else None
        return None if chat is None or session is None else (chat, session)

    if (found := await context.store.read(read)) is None:  # the next message starts a conversation
        return {"name": name, "used": None}
    chat, session = found
    conversation = ConversationRef(chat_id=chat.id, lineage_id=session.lineage_id, chat=chat.key, chat_kind=chat.kind)
    runtime = context.runtime.of(await context.store.read(agent_of, session.id))
    model = runtime.model_of(session.chosen_model)
    status = await runtime.agent.context.status(conversation, model)
    window, is_automatic = status.limits.input_window, model.context.enabled
    ticks = {"Compression starts": status.threshold, "Hygiene starts": status.limits.hygiene} if is_automatic else {}
    near = (status.threshold if is_automatic else window) * PRESSURE_PERCENT // 100
    return {
        "name": name,
        "used": status.prompt,
        "window": window,
        "percent": status.prompt * 100 // window,
        "ticks": [(label, at, min(at * 100 / window, 99)) for label, at in ticks.items()],
        "is_near": status.prompt >= near,
        "times": status.compressions,
    }


METER = Page(about=ConsolePage(name="meter", title="Context", is_for_admins=False, is_in_menu=False), load=load_meter)
LINEAGE = Page(about=ConsolePage(name="lineage", title="Lineage", is_for_admins=False, is_in_menu=False), load=load)
