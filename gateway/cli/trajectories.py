"""`hermes-gateway trajectories compress | export | show`: conversations as files for training."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import orjson
import typer

from agent.trajectories import (
    Trajectory,
    TrajectoryCompressor,
    TrajectoryRejected,
    TrajectoryRunner,
    TrajectorySettings,
    TrajectoryTotals,
    TurnRole,
    deterministic_text,
)
from agent.trajectories.export import joined
from agent.trajectories.files import read_lines
from gateway.cli.answers import ask_or_read, configured_redactor
from gateway.cli.output import Json, echo, show
from gateway.config import load_config, process_environment
from gateway.config.settings import Config
from gateway.operator.lookups import Row
from gateway.operator.trajectories import export_at_rest
from gateway.times import parse_time
from hermes_state.disk import flush
from hermes_state.errors import CommandError
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars

if TYPE_CHECKING:
    from gateway.models.trajectories import TrajectorySummary

EXIT_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    help="Write conversations to files for training, shorten such files, look into them.",
    rich_markup_mode=None,
)

_Source = Annotated[Path, typer.Argument(metavar="IN", exists=True, dir_okay=False, help="A conversation a line.")]
_Target = Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="A new file.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite OUT, and begin anew.")]


@app.command()
def compress(
    source: _Source,
    target: _Target,
    target_max_tokens: Annotated[int, typer.Option(min=1, help="What is shorter stays as it is.")] = 15_250,
    summary_target_tokens: Annotated[int, typer.Option(min=50, help="Length of a summary.")] = 750,
    protect_last: Annotated[int, typer.Option(min=0, help="Turns at the end that stay.")] = 4,
    has_notice: Annotated[bool, typer.Option("--notice/--no-notice", help="Mention summaries in system turns.")] = True,
    summary_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model or alias; none: excerpts instead.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Summaries that are written at one time.")] = 8,
    is_forced: _Force = False,
    as_json: Json = False,
) -> None:
    """Put a summary in place of the middle of each conversation of IN that is too long; OUT is written in IN's order.

    After an interruption the same command goes on where it was. Lines that are no conversations are put aside
    (OUT.rejected.jsonl); OUT.metrics.json and OUT.metrics.jsonl say what was changed. Without --summary-model the
    model of auxiliary.trajectories summarises, or that of the conversations.
    """
    settings = TrajectorySettings(
        target_max_tokens=target_max_tokens,
        summary_target_tokens=summary_target_tokens,
        protect_last=protect_last,
        has_notice=has_notice,
    )
    loaded = load_config(process_environment())
    summary = _summary(loaded.config, summary_model)
    runner = TrajectoryRunner(
        compressor=TrajectoryCompressor(settings, summary or deterministic_text, Redactor(loaded.secrets())),
        parallel=parallel,
        summary_name="none" if summary is None else summary.client.name,
        on_rejected=lambda number, reason: echo(f"line {number} is put aside: {reason}", err=True),
        on_failed=lambda number, reason: echo(f"line {number} stays as it was: {reason}", err=True),
    )
    try:
        with ExitStack() as stack:
            if os.isatty(2):
                bar = typer.progressbar(length=source.stat().st_size, file=typer.get_text_stream("stderr"))
                runner.on_read = stack.enter_context(bar).update
            total = asyncio.run(_run(runner, summary, source, target, is_forced=is_forced))
    except KeyboardInterrupt:
        echo("interrupted; the same command goes on from here", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or target}: {error.strerror or error}; the same command goes on from here"
        ) from error
    show(msgspec.structs.asdict(total), _total_lines(total, target), as_json=as_json)
    if summary is not None and summary.ledger.cost:
        echo(f"The summaries of this run cost {dollars(summary.ledger.cost)}.", err=True)


def _summary(config: Config, name: str | None) -> "TrajectorySummary | None":
    if name == "none":
        return None
    from gateway.models.trajectories import TrajectorySummary, summary_route  # which takes a second

    return TrajectorySummary(config, summary_route(config, name))


async def _run(
    runner: TrajectoryRunner, summary: "TrajectorySummary | None", source: Path, target: Path, *, is_forced: bool
) -> TrajectoryTotals:
    try:
        return await runner.run(source, target, is_forced=is_forced)
    finally:
        if summary is not None:
            await summary.client.model.close()


def _total_lines(total: TrajectoryTotals, target: Path) -> Iterator[str]:
    yield (
        f"{target}: {counted(total.trajectories, 'conversation')}, {total.was_compressed:,} of them compressed, "
        f"{total.skipped_under_target:,} short enough, {total.still_over_limit:,} still too long"
    )
    yield f"{total.tokens_before:,} → {total.tokens_after:,} tokens ({total.ratio:.0%}), by estimate"
    if total.rejected:
        yield f"{target}.rejected.jsonl: {counted(total.rejected, 'line')} that could not be read"
    if total.summary_errors:
        yield f"{counted(total.summary_errors, 'conversation')} stayed as they were, for there was no summary"


@app.command()
def export(
    target: _Target,
    place: Annotated[
        str | None, typer.Argument(metavar="CHAT|SESSION", help="A chat such as telegram:42, or a session's id.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only what was used from then on: 2026-03-31, UTC.")
    ] = None,
    is_session_only: Annotated[bool, typer.Option("--session", help="Only that one session of SESSION's.")] = False,
    is_forced: _Force = False,
) -> None:
    """Write conversations to OUT, one a line: all, those of a chat, or the one that a session belongs to.

    Everything as it was said, however often it was compressed since, without what was taken back and without secrets.
    """
    if target.exists() and not is_forced:
        raise CommandError(f"{target} exists; --force overwrites it")
    if is_session_only and place is None:
        raise CommandError("--session needs the session's id")
    unfinished, count = target.with_name(f"{target.name}.unfinished"), 0
    since_at = parse_time(since) if since is not None else 0
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for one in _paged("trajectories.conversations", "lineage_id", {"place": place, "since": since_at}):
                count += _write_conversation(file, one, place if is_session_only else None)
        flush(unfinished)
        os.replace(unfinished, target)
    except OSError as error:
        raise CommandError(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    echo(f"{target}: {counted(count, 'conversation')}")


def _write_conversation(file: BinaryIO, one: Row, place: str | None) -> bool:
    """Write a line turn by turn; False for a conversation that says nothing."""
    rows = _paged("trajectories.turns", "message", {"lineage": one["lineage_id"], "place": place})
    last: Row = {}

    def said() -> Iterator[tuple[TurnRole, str]]:
        for row in filter(itemgetter("value"), rows):
            last.update(row)
            yield TurnRole(row["from"]), row["value"]

    begin = {"id": one["key"]} | {key: one[key] for key in ("kind", "parent", "model", "started_at")}
    head = orjson.dumps(begin)[:-1] + b',"conversations":['
    if one["system_prompt"]:
        head += orjson.dumps({"from": "system", "value": one["system_prompt"]}) + b","
    is_first = True
    for role, text in joined(said()):
        file.write((head if is_first else b",") + orjson.dumps({"from": role, "value": text}))
        is_first = False
    if not is_first:
        at = datetime.fromtimestamp(last["at"] / 1000, UTC).isoformat(timespec="seconds")
        file.write(b"]," + orjson.dumps({"timestamp": at, "completed": last["is_answer"]})[1:] + b"\n")
    return not is_first


def _paged(request: str, key: str, args: Mapping[str, Any]) -> Iterator[Row]:
    """All rows of an answer, page by page."""
    after = 0
    while page := ask_or_read(request, {**args, "after": after}, list[Row], _read, empty=[]):
        yield from page
        after = page[-1][key]


def _read(db: Connection, name: str, args: Mapping[str, Any]) -> list[Row]:
    return export_at_rest(db, name, args, configured_redactor())


@app.command("show")
def show_one(
    source: _Source, number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the line.")] = 1
) -> None:
    """Show the conversation in the N-th line of IN, the first one without N."""
    for index, turn in enumerate(_find(source, number).turns, start=1):
        echo(f"── {index} {turn.role}\n{turn.text}\n")


@app.command()
def replay(
    source: _Source, number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the line.")] = 1
) -> None:
    """Print the conversation in the N-th line of IN as people and the agent had it, the first one without N."""
    trajectory = _find(source, number)
    head = (bytes(value).decode() for key, value in trajectory.fields.items() if key in ("model", "timestamp"))
    echo(", ".join(value.strip('"') for value in head if value != "null"))
    for turn in trajectory.turns:
        texts = re.split(r"<(tools|think|tool_call|tool_response)>\n?(.*?)\n?</\1>", turn.text, flags=re.DOTALL)
        echo("".join(f"\n{line}" for line in _replayed(_SPEAKERS[turn.role], texts)))


_SPEAKERS = {TurnRole.SYSTEM: "System", TurnRole.HUMAN: "User", TurnRole.GPT: "Agent", TurnRole.TOOL: "Tool"}


def _replayed(speaker: str, texts: Sequence[str]) -> Iterator[str]:
    """Lines of a turn, from texts between tags, names of tags, and what stands in these, in turn."""
    for words, tag, inner in zip_longest(texts[::3], texts[1::3], texts[2::3]):
        if words.strip():
            yield f"{speaker}: {words.strip()}"
        value: Any = inner
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(inner or "")
        match tag, value:
            case "think", _:
                yield from [f"{speaker} (thinking): {inner.strip()}"] if inner.strip() else []
            case "tool_call", {"name": name, "arguments": arguments}:
                yield f"{speaker} → {name} {_shown(arguments)}"
            case "tool_response", {"name": name, "content": content}:
                yield f"{name} → {_shown(content)}"
            case "tools", [{"name": _}, *_]:
                yield f"Tools: {', '.join(str(one.get('name')) for one in value if isinstance(one, dict))}"
            case (("tool_call" | "tool_response" | "tools"), _):
                yield f"{speaker} ({tag}): {inner}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _find(source: Path, number: int) -> Trajectory:
    with source.open("rb") as file:
        for line in read_lines(file):
            if line.number == number:
                try:
                    return Trajectory.parse(line.data or b"")
                except TrajectoryRejected as error:
                    raise CommandError(f"that line is no conversation: {error}") from error
    raise CommandError(f"{source} has fewer than {counted(number, 'line')}")
