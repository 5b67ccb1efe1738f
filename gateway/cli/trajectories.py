"""`hermes-gateway trajectories`: export and shorten conversations as training data (see `agent.trajectories`)."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agent.model.caps import UnpricedCaps
from agent.model.catalog import SizeSource
from agent.model.client import ModelClient
from agent.trajectories import (
    ModelSummary,
    RunLedger,
    Trajectory,
    TrajectoryCompressor,
    TrajectoryRejected,
    TrajectoryRunner,
    TrajectorySettings,
    TrajectoryTotals,
    deterministic_text,
)
from agent.trajectories.export import replayed, trajectory_line
from agent.trajectories.files import read_lines
from gateway.cli.answers import ask_or_read
from gateway.cli.lookups import AgentName, Place, look_up_all
from gateway.cli.output import Json, echo, new_file, show
from gateway.config import load_config, process_environment
from gateway.config.settings import Config
from gateway.models.pricing import cap_limits, price_in
from gateway.models.routes import capacity_in, route_for
from gateway.models.selection import make_model
from gateway.times import parse_time
from hermes_state.admin.lineage_queries import FullMessage, StoredConversation
from hermes_state.errors import CommandError
from hermes_state.redaction import Redactor
from hermes_state.text import counted, dollars
from hermes_state.values import SystemClock

_DEFAULTS = TrajectorySettings()

trajectories = typer.Typer(
    no_args_is_help=True, help="Export, shorten and view conversations as training data.", rich_markup_mode=None
)

_Source = Annotated[
    Path, typer.Argument(metavar="IN", exists=True, dir_okay=False, help="File with one conversation per line.")
]
_Target = Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="New file.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite OUT and start again.")]
_MaxTokens = Annotated[
    int, typer.Option(min=1, help="Maximum length of a conversation in tokens; shorter ones stay unchanged.")
]
_SummaryTokens = Annotated[int, typer.Option(min=50, help="Length of a summary in tokens.")]
_Number = Annotated[int, typer.Argument(metavar="N", min=1, help="Line number.")]


@trajectories.command()
def compress(
    source: _Source,
    target: _Target,
    target_max_tokens: _MaxTokens = _DEFAULTS.target_max_tokens,
    summary_target_tokens: _SummaryTokens = _DEFAULTS.summary_target_tokens,
    protect_last: Annotated[
        int, typer.Option(min=0, help="Number of turns to keep at the end.")
    ] = _DEFAULTS.protect_last,
    has_notice: Annotated[
        bool, typer.Option("--notice/--no-notice", help="Mention the compression in the system turn.")
    ] = True,
    summary_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model or alias that writes summaries; `none` uses excerpts.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Number of summaries to write at the same time.")] = 8,
    is_forced: _Force = False,
    as_json: Json = False,
) -> None:
    """Shorten conversations that are too long: a summary replaces the middle of each. OUT keeps the order of IN.

    To continue after an interruption, run the same command again. Lines that are not conversations go to
    OUT.rejected.jsonl. OUT.metrics.json and OUT.metrics.jsonl contain statistics.

    Without --summary-model, the model in auxiliary.compression writes the summaries. If auxiliary.compression.model
    is not set, the main model writes them.
    """
    settings = TrajectorySettings(
        target_max_tokens=target_max_tokens,
        summary_target_tokens=summary_target_tokens,
        protect_last=protect_last,
        has_notice=has_notice,
    )
    loaded = load_config(process_environment())
    summary = None if summary_model == "none" else model_summary(loaded.config, summary_model)
    bar = typer.progressbar(length=source.stat().st_size, file=sys.stderr, hidden=not sys.stderr.isatty())
    runner = TrajectoryRunner(
        compressor=TrajectoryCompressor(settings, summary or deterministic_text, Redactor(loaded.secrets())),
        parallel=parallel,
        on_read=bar.update,
        on_trouble=lambda sentence: echo(sentence, err=True),
        summary_name="none" if summary is None else summary.client.name,
    )
    try:
        with bar:
            total = asyncio.run(_run(runner, summary, source, target, is_forced=is_forced))
    except KeyboardInterrupt:
        echo("Interrupted. Run the same command again to continue.", err=True)
        raise typer.Exit(130) from None  # shells use this exit code for Ctrl-C
    except OSError as error:
        reason = f"{error.filename or target}: {error.strerror or error}"
        raise CommandError(f"{reason}. Run the same command again to continue.") from error
    show(msgspec.structs.asdict(total), _total_lines(total, target), as_json=as_json)
    if summary is not None and summary.ledger.cost:
        echo(f"The summaries of this run cost {dollars(summary.ledger.cost)}.", err=True)


def model_summary(config: Config, name: str | None) -> ModelSummary:
    """Return a summariser for the named model, or for the configured summary model.

    Raises `CommandError` if there is no such model.
    """
    named = config.model.named_route(name) if name else config.model.route
    route = named if name else route_for(config, "compression", named)
    if route is None or route.protocol == "offline":
        raise CommandError("No model is configured to write summaries. Set model.name, or use --summary-model none.")
    ledger, price = RunLedger(cap_limits(config).daily), price_in(config, route.name)
    caps = UnpricedCaps(route.label) if config.costs.has_caps and price is None else ledger
    client = ModelClient(make_model(route, config.model, config.network), ledger, price=price, caps=caps)
    size = capacity_in(route)
    window: int = size.context_length
    if not name and size.context_from is SizeSource.ASSUMED:  # as for summaries in the daemon
        window = config.model.context_length or window
    return ModelSummary(client=client, ledger=ledger, window=window, clock=SystemClock())


async def _run(
    runner: TrajectoryRunner, summary: ModelSummary | None, source: Path, target: Path, *, is_forced: bool
) -> TrajectoryTotals:
    try:
        return await runner.run(source, target, is_forced=is_forced)
    finally:
        if summary is not None:
            await summary.client.model.close()


def _total_lines(total: TrajectoryTotals, target: Path) -> Iterator[str]:
    yield (
        f"{target}: {counted(total.trajectories, 'conversation')}, {total.was_compressed:,} compressed, "
        f"{total.skipped_under_target:,} short enough, {total.still_over_limit:,} still too long"
    )
    yield f"Estimated tokens: {total.tokens_before:,} → {total.tokens_after:,} ({total.ratio:.0%})"
    if total.rejected:
        yield f"{target}.rejected.jsonl: {counted(total.rejected, 'line')} that could not be read"
    if total.summary_errors:
        yield f"Unchanged because of a failed summary: {counted(total.summary_errors, 'conversation')}"


@trajectories.command()
def export(
    target: _Target,
    place: Place = None,
    agent: AgentName = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Only conversations used since this date (UTC), such as 2026-03-31."),
    ] = None,
    is_session_only: Annotated[
        bool, typer.Option("--session", help="Only this session, not its whole conversation.")
    ] = False,
    is_forced: _Force = False,
) -> None:
    """Write all conversations, a chat's conversations or a session's conversation to OUT, one per line.

    The export contains the original messages, even if they have been compressed. Undone messages and secrets are left
    out.
    """
    if is_session_only and place is None:
        raise CommandError("--session needs a session id.")
    asked = {"place": place, "agent": agent, "since": parse_time(since) if since is not None else 0}
    count = 0
    with new_file(target, is_forced=is_forced) as file:
        found = ask_or_read("tools", {}, list[dict[str, Any]], lambda *_: [], empty=[])
        tools = {tool["name"]: tool for tool in found}
        for one in look_up_all("conversations", asked, StoredConversation, "lineage_id"):
            session = place if is_session_only else None
            messages = look_up_all("messages", {"lineage": one.lineage_id, "place": session}, FullMessage, "id")
            if (line := trajectory_line(one, messages, tools)) is not None:
                file.write(line + b"\n")
                count += 1
    echo(f"{target}: {counted(count, 'conversation')}")


@trajectories.command("show")
def show_one(source: _Source, number: _Number = 1) -> None:
    """Show the conversation on line N of the file IN."""
    for index, turn in enumerate(_find(source, number).turns, start=1):
        echo(f"── {index} {turn.role}\n{turn.text}\n")


@trajectories.command()
def replay(source: _Source, number: _Number = 1) -> None:
    """Print the conversation on line N of the file IN as users and the agent saw it."""
    for lines in replayed(_find(source, number)):
        echo(lines)


def _find(source: Path, number: int) -> Trajectory:
    with source.open("rb") as file:
        for line in read_lines(file):
            if line.number == number:
                try:
                    return Trajectory.parse(line.data or b"")
                except TrajectoryRejected as error:
                    raise CommandError(f"{source}: line {number} is not a conversation: {error}") from error
    raise CommandError(f"{source} has fewer than {counted(number, 'line')}.")
