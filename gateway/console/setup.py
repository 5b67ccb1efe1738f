"""Models, tools, schedules, MCP servers and settings: the values in use, and where each one came from."""

from collections.abc import Mapping

from agent.tools.mcp.settings import ServerState
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import platform_name
from gateway.models.selection import known_routes
from gateway.operator.effective import effective_settings, setting_text
from hermes_state.chats import load_chat
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.tools.schedules import ScheduleRow, ScheduleState, load_all_schedules
from hermes_state.values import ChatKey, ChatKind
from platforms.console import ConsolePage, SentCommand, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    loaded, redact = context.live.loaded, context.live.redactor()
    settings = [
        {"key": key, "value": setting_text(value), "source": source, "is_set": source != "default"}
        for key, (value, source) in effective_settings(loaded).items()
    ]
    words = query.get("words", "").strip().lower()[:100]
    models = []
    for name, route in known_routes(loaded.config.model).items():
        circuit = context.runtime.models.open_circuit(route)
        state = "ready" if circuit is None else f"{circuit.why}; paused for {max(1, round(circuit.seconds))} s"
        models.append({"name": name, "model": route.name or "offline", "protocol": route.protocol, "state": state})
    tools = [
        {
            "name": tool.name,
            "effect": tool.effect.value.replace("_", " "),
            "reason": redact(tool.why_unavailable() or ""),
        }
        for tool in context.runtime.agent.offers.registry.by_name.values()
    ]
    servers = [
        {
            "name": one.name,
            "is_good": one.state is not ServerState.DOWN,
            "state": one.state.value,
            "error": redact(one.error or ""),
            "tools": len(one.tools),
        }
        for one in context.servers.statuses()
    ]
    return {
        "settings": [row for row in settings if words in str(row["key"]) or (not words and row["is_set"])],
        "words": words,
        "models": models,
        "tools": tools,
        "servers": servers,
        "schedules": await context.store.read(_schedules),
    }


def _schedules(db: Connection) -> list[Mapping[str, object]]:
    rows: list[Mapping[str, object]] = []
    for row in load_all_schedules(db, 200):
        key = load_chat(db, row.chat_id).key
        rows.append(
            {
                "id": row.id,
                "chat": key.name,
                "platform": platform_name(key.platform),
                "spec": f"{row.spec} ({row.zone})",
                "text": row.text[:200],
                "by": row.creator_name,
                "next_at": row.next_at,
                "is_paused": row.state is ScheduleState.PAUSED,
            }
        )
    return rows


async def change_schedule(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> SentCommand:
    number, action = field_of(form, "schedule"), "resume" if form.get("to") == "active" else "pause"

    def find(db: Connection) -> tuple[ChatKey, ChatKind, ScheduleRow] | None:
        row = next((one for one in load_all_schedules(db, 1_000) if str(one.id) == number), None)
        if row is None:
            return None
        chat = load_chat(db, row.chat_id)
        return chat.key, chat.kind, row

    found = await context.store.read(find)
    if found is None:
        raise CommandError("This schedule no longer exists. Reload the page.")
    key, kind, row = found
    await context.record(person, f"{action} schedule", f"{row.id} in {key.name}")
    said = f"Schedule {row.id} is {action}d. Its chat receives a message."
    return SentCommand(chat=key, kind=kind, text=f"/schedule {action} {row.id}", said=said)


PAGE = Page(about=ConsolePage(name="setup", title="Settings"), load=load, actions={"schedule": change_schedule})
