"""`hermes-gateway status`: show the state of the gateway, in words for people or as JSON for programs."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, show
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.times import format_time
from hermes_state.admin.overview import load_overview
from hermes_state.engines.opening import open_offline
from hermes_state.errors import CommandError, LockUnavailable
from hermes_state.text import counted, printable, shortened
from hermes_state.values import Millis, SystemClock
from platforms.base import STATE_WORDS, AdapterState

T = TypeVar("T")

WATCH_SECONDS = 2.0
MAX_PROBLEMS = 8
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
Row: TypeAlias = tuple[str, str, str]
"""Label, text and colour of a row."""


def status(
    as_json: Json = False,
    is_watched: Annotated[bool, typer.Option("--watch", help="Show the state again every 2 seconds.")] = False,
) -> None:
    """Show the state of the gateway. Exits with code 3 if it is not running. --json shows more figures."""
    while True:
        try:
            found = load_status()
        except (LockUnavailable, CommandError) as error:
            if not is_watched:
                raise
            found = {"running": False, "fault": str(error)}  # a daemon that starts or stops does not answer
        if sys.stdout.isatty() and not as_json:
            _print_in_colour(found, clears=is_watched)
        else:
            _print(found, as_json=as_json)
        if not is_watched:
            break
        try:
            time.sleep(WATCH_SECONDS)  # the daemon sends no events to the command line
        except KeyboardInterrupt:
            break
    if not found["running"]:
        raise typer.Exit(3)  # the same exit code as `systemctl status` for a stopped service


def load_status() -> dict[str, Any]:
    """Return the daemon's status or, if no daemon runs, the number of rows in the database."""
    state = find_state(process_environment())
    try:
        return {"running": True, **ask(state.control_socket, "status")}
    except DaemonNotRunningError:
        found: dict[str, Any] = {"running": False, "home": str(state.home)}
        with open_offline(*configured_database()) as db:  # fails if the process that holds the lock does not respond
            if db is not None:
                found["database"] = msgspec.structs.asdict(load_overview(db))
        return found


def _print(found: Mapping[str, Any], *, as_json: bool) -> None:
    rows = status_rows(found, SystemClock().now())
    show(found, (f"{label + ':' if label else '':<11} {text}" for label, text, _ in rows), as_json=as_json)


def _print_in_colour(found: Mapping[str, Any], *, clears: bool) -> None:
    from rich.console import Console  # only needed here
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for label, text, colour in status_rows(found, SystemClock().now()):
        grid.add_row(Text(label, style="bold"), Text(printable(text), style=colour))
    console = Console()
    if clears:
        console.clear()
    console.print(grid)


def status_rows(found: Mapping[str, Any], now: Millis) -> Iterator[Row]:
    """Yield the rows of a status. A daemon of another version may leave out any value."""
    if found["running"]:
        yield from _rows_of_daemon(found, now)
        return
    if "fault" in found:
        yield "Gateway", f"starting or busy: {found['fault']}", "yellow"
        return
    yield "Gateway", "not running; start it with `hermes-gateway run`", "red"
    yield "State", str(found["home"]), ""
    if (held := found.get("database")) is not None:
        yield "Database", f"{held['database_bytes'] / 1e6:.1f} MB, schema version {held['schema']}", ""
        yield "", ", ".join(counted(held[f"{name}s"], name) for name in ("chat", "conversation", "message")), ""
        unsent = counted(held["undelivered"], "reply")
        yield "", f"{counted(held['waiting'], 'message')} and {unsent} waiting for the next start", ""


def _rows_of_daemon(found: Mapping[str, Any], now: Millis) -> Iterator[Row]:
    vitals, node = found.get("vitals", {}), found.get("node")
    about = (f"version {found.get('version')}", f"process {found.get('process')}")
    is_ready = vitals.get("is_ready", True)
    state = f"running for {_spoken(found.get('running_seconds', 0))}{'' if is_ready else ', but not ready'}"
    yield "Gateway", ", ".join((state, *about)), "green" if is_ready else "yellow"
    if found.get("address"):
        yield "Address", f"{found['address']} (`hermes-gateway url` prints a link)", ""
    yield "State", str(found.get("home")), ""
    if node is not None:
        yield "Node", f"{node['name']}, {'has a seat' if node['has_seat'] else 'without a seat'}", ""
    is_offline = found.get("protocol") == "offline"
    yield "Model", "built-in offline model" if is_offline else f"{found.get('model')}", ""
    for route in found.get("routes", ()):
        if "reason" in route:
            yield "", f"{route['model']} {route['reason']}; paused for {route['paused_seconds']} s", "red"
    for label, (name, one) in _labelled("Platforms", found.get("platforms", {}).items()):
        known = one["state"] in [*AdapterState]
        words = STATE_WORDS[AdapterState(one["state"])].lower() if known else one["state"]
        is_fine = one["state"] in (AdapterState.RUNNING, AdapterState.STANDBY)
        yield label, f"{name}: {words}. {one['detail']}".rstrip(" ."), "green" if is_fine else "red"
    for label, (name, one) in _labelled("MCP", found.get("mcp", {}).items()):
        yield label, f"{name}: {one['state']}. {one['error'] or ''}".rstrip(" ."), ""
    for fault in filter(None, (vitals.get("database"), vitals.get("disk") and "the disk is full")):
        yield "Database", fault, "red"
    if (work := found.get("work")) is not None:
        late = work["late_schedules"]
        yield "Work", f"{counted(found['turns_running'], 'turn')} running", ""
        yield "", _waiting(counted(work["waiting"], "message") + " waiting", work["waiting_since"], now), ""
        yield "", _waiting(counted(work["undelivered"], "reply") + " undelivered", work["undelivered_since"], now), ""
        if (percent := found.get("search_index_percent")) is not None:
            yield "", f"search index {percent} % rebuilt; older messages may be missing in searches", "yellow"
        if late:
            yield "", _waiting(counted(late, "schedule") + " late", work["late_since"], now), "yellow"
    if (today := found.get("today")) is not None:
        yield "Today", f"{today['cost']} for {counted(today['calls'], 'model call')}", ""
    for label, cap in _labelled("Caps", found.get("caps_reached", ())):
        yield label, f"{cap} has been reached", "yellow"
    problems = found.get("last_hour", [])
    for label, one in _labelled("Last hour", problems[:MAX_PROBLEMS]):
        last = f"last at {format_time(one['last_at'], None)}"
        text = f"{one['level']} {one['event']}, {counted(one['count'], 'time')}, {last}"
        text = f"{shortened(hint, 200)} ({text})" if (hint := one.get("hint")) else text
        yield label, text, _COLOURS.get(one["level"], "")
    if not problems:
        yield "Last hour", "no warnings or errors", "green"
    ignored = [f"{count} {name}" for name, count in found.get("not_stored", {}).items() if count]
    if ignored:
        yield "Not stored", ", ".join(ignored), ""


_COLOURS = {"warning": "yellow", "error": "red", "critical": "red"}


def _labelled(label: str, items: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Yield each item with a label, which is empty after the first item."""
    return zip(chain((label,), repeat("")), items, strict=False)


def _waiting(words: str, since: Millis | None, now: Millis) -> str:
    return words if since is None else f"{words}, the oldest for {_spoken((now - since) // 1_000)}"


def _spoken(seconds: int) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "second"))
    return counted(max(0, seconds) // size, unit)
