"""Overview for the owner: what needs attention first, then the state of the gateway."""

from collections.abc import Iterator, Mapping

from agent.tools.mcp.settings import ServerState
from gateway import installed_version
from gateway.access.pairing import approve_request, deny_request
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import duration, platform_name
from gateway.models.pricing import cap_limits, unpriced_models
from gateway.operator.spending import load_usage, money
from hermes_state.admin import console
from hermes_state.admin.pairings import PairingState, UserRole, list_pairings
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars
from hermes_state.values import Millis
from platforms.base import AdapterState
from platforms.console import ConsolePage, Values, WebPerson

DAY_MS = 86_400_000

STATES = {
    AdapterState.STARTING: "Starting",
    AdapterState.RUNNING: "Connected",
    AdapterState.STALLED: "No answer from the service",
    AdapterState.BACKING_OFF: "Waiting before the next attempt",
    AdapterState.FAILED: "Stopped; needs the owner",
    AdapterState.STANDBY: "Served by another node",
}


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    now, config = context.clock.now(), context.live.config

    def read(db: Connection) -> Values:
        return {
            "turns": console.load_live_turns(db),
            "waiting": console.count_waiting(db),
            "failures": console.load_failures(db, Millis(now - DAY_MS)),
            "usage": load_usage(db, cap_limits(config), now, None),
            "requests": [one for one in list_pairings(db, now) if one.state is PairingState.PENDING],
        }

    values = dict(await context.store.read(read))
    usage = values.pop("usage")
    platforms = [
        {
            "name": platform_name(name),
            "is_good": health.is_ready,
            "state": STATES[health.state],
            "detail": health.detail,
            "progress_at": health.last_progress_at,
        }
        for name, health in sorted(context.adapters.health().items())
    ]
    caps = [
        {
            "key": cap.key,
            "spent": dollars(cap.spent),
            "limit": dollars(cap.limit),
            "share": _share(cap.spent, cap.limit),
        }
        for cap in usage.caps
    ]
    return {
        **values,
        "version": installed_version(),
        "model": config.model.label,
        "uptime": duration(now - context.started_at),
        "platforms": platforms,
        "cost_today": money(usage.today),
        "calls_today": counted(usage.today.calls, "model call"),
        "caps": caps,
        "attention": list(_attention(context, values, [cap["key"] for cap in caps if cap["share"] >= 100])),
    }


def _share(spent: int, limit: int) -> int:
    return min(100, spent * 100 // limit) if limit else 100


def _attention(context: ConsoleContext, values: Values, reached: list[str]) -> Iterator[str]:
    """Yield sentences about what the owner should look at, the most urgent first."""
    if context.store.trouble is not None:
        yield f"The database cannot be written: {context.store.trouble}"
    for name, health in sorted(context.adapters.health().items()):
        if not health.is_ready and health.state is not AdapterState.STARTING:
            yield f"{platform_name(name)}: {STATES[health.state].lower()}. {health.detail}".rstrip()
    for client in context.runtime.models.in_use():
        if (circuit := client.breaker.open) is not None:
            yield f"{client.name} {circuit.why}; it is paused for {max(1, round(circuit.seconds))} s."
    yield from (f"The spending cap {key} is reached, so the model is not called any more." for key in reached)
    if models := unpriced_models(context.live.config):
        yield f"No price is known for {', '.join(models)}, so the spending caps stop these models."
    if requests := len(values["requests"]):
        verb = "person waits" if requests == 1 else "people wait"
        yield f"{requests} {verb} for access."
    if failed := sum(failure.count for failure in values["failures"]):
        yield f"{counted(failed, 'answer')} failed in the last 24 hours."
    for server in context.servers.statuses():
        if server.state is ServerState.DOWN:
            yield f"The MCP server {server.name} is not connected."


async def approve(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    role = UserRole.ADMIN if form.get("role") == "admin" else UserRole.USER
    code_hash, now = field_of(form, "request"), context.clock.now()
    pairing, chat_id = await context.store.write(approve_request, code_hash, role, person.ref, now)
    await context.access.load()
    if chat_id is not None:
        context.delivery.wake(chat_id)
    await context.record(person, "approve", pairing.user_ref)
    return f"{pairing.display_name} now has access with the role {role}."


async def deny(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    await context.store.write(deny_request, field_of(form, "request"))
    return "The request was denied. The person can ask again."


PAGE = Page(
    about=ConsolePage(name="overview", title="Overview", refresh_seconds=10),
    load=load,
    actions={"approve": approve, "deny": deny},
)
