"""Events for webhooks, stored in the transaction that caused them. The web chat's adapter sends them."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec
import orjson
import structlog

from hermes_state import outbox
from hermes_state.chats import ensure_chat
from hermes_state.outbox import Reply
from hermes_state.store.sql import Connection, scalar
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis
from platforms.settings import HookEvent, HookSettings

log = structlog.get_logger()

MAX_WAITING = 1_000
"""Maximum number of unsent events per webhook. Later events are left out until the address accepts some."""


class HookWriter(msgspec.Struct, frozen=True, kw_only=True):
    """Stores events for the webhooks that want them."""

    hooks: Callable[[], Mapping[str, HookSettings]] = dict
    note: Callable[[ChatId], None] = lambda _: None
    """Called with each chat that has an event to deliver, before the transaction ends."""

    def write(
        self, db: Connection, event: HookEvent, source: ChatId, once: str, data: Mapping[str, object], now: Millis
    ) -> None:
        """Store an event about the chat `source`. `once` names its cause, which each webhook gets once."""
        at = datetime.fromtimestamp(now / 1_000, UTC).isoformat()
        body = orjson.dumps({"type": event, "timestamp": at, "data": data}).decode()
        for name, hook in self.hooks().items():
            if hook.url is not None and event in hook.events:
                chat = ChatKey(platform="webhook", account="local", chat_ref="webhook", thread_ref=name)
                chat_id = ensure_chat(db, chat, ChatKind.DIRECT, None, now)
                query = f"SELECT count(*) FROM outbox WHERE chat_id = ? AND {outbox.OPEN}"
                if scalar(db, int, query, (chat_id,)) >= MAX_WAITING:
                    log.warning("webhook.full", name=name, left_out=event)
                    continue
                key = f"{outbox.HOOK_PREFIX}{source}:{once}:{event}:{name}"
                outbox.enqueue(db, Reply(chat_id=chat_id, markdown=body, dedupe_key=key), now)
                self.note(chat_id)
