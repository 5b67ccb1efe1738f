"""Live turns: what runs now, since when, at what cost."""

from collections.abc import Mapping

from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import duration, platform_name
from hermes_state.admin import console
from hermes_state.errors import CommandError
from hermes_state.text import dollars
from platforms.console import ConsolePage, SentCommand, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    now = context.clock.now()
    turns = [
        {
            "id": turn.id,
            "name": turn.chat.name,
            "label": turn.label or turn.chat.name,
            "platform": platform_name(turn.chat.platform),
            "by": turn.started_by,
            "for": duration(now - turn.started_at),
            "step": _step(turn),
            "calls": turn.calls,
            "cost": dollars(turn.cost),
            "can_stop": not turn.is_subagent,
        }
        for turn in await context.store.read(console.load_live_turns)
    ]
    return {"turns": turns, "waiting": await context.store.read(console.count_waiting)}


def _step(turn: console.LiveTurn) -> str:
    if turn.is_waiting:
        return "waiting for an approval"
    step = f"running the tool {turn.tool}" if turn.tool is not None else "waiting for the model"
    return f"sub-agent, {step}" if turn.is_subagent else step


async def stop(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> SentCommand:
    wanted = field_of(form, "turn")
    turns = await context.store.read(console.load_live_turns)
    turn = next((one for one in turns if str(one.id) == wanted and not one.is_subagent), None)
    if turn is None:
        raise CommandError("This turn has already ended.")
    await context.record(person, "stop", turn.chat.name)
    return SentCommand(
        chat=turn.chat, kind=turn.kind, text="/stop", said="The turn is stopped. Its chat receives a message."
    )


PAGE = Page(about=ConsolePage(name="live", title="Live turns", refresh_seconds=3), load=load, actions={"stop": stop})
