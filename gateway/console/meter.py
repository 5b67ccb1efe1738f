"""Context meter in the header of a chat: how full the context window is, and where compression starts."""

from collections.abc import Mapping

from agent.context.controller import PRESSURE_PERCENT
from gateway.console.registry import ConsoleContext, Page, field_of
from hermes_state.chats import Chat, find_chat
from hermes_state.sessions import Session, load_open
from hermes_state.store.sql import Connection
from hermes_state.values import ConversationRef
from platforms.console import ConsolePage, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the size of the open conversation in one of the person's own chats, as `/status` shows it."""
    name = field_of(query, "chat")

    def read(db: Connection) -> tuple[Chat, Session] | None:
        chat = find_chat(db, person.chat_key(name))
        session = load_open(db, chat.id) if chat is not None else None
        return None if chat is None or session is None else (chat, session)

    found = await context.store.read(read)
    if found is None:  # the next message starts a conversation
        return {"name": name, "used": None}
    chat, session = found
    conversation = ConversationRef(chat_id=chat.id, lineage_id=session.lineage_id, chat=chat.key, chat_kind=chat.kind)
    model = context.runtime.model_of(session.chosen_model)
    status = await context.runtime.agent.context.status(conversation, model)
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


PAGE = Page(about=ConsolePage(name="meter", title="Context", is_for_admins=False, is_in_menu=False), load=load)
