"""Rows of the quality bench about recall: what a search finds in written chats, and what prompts still contain.

No model answers the questions, so "found" and "shown" are upper bounds of what a model can use.
"""

import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from agent.context.carried.sections import Carried, carried
from agent.context.summary import asking_row
from agent.tools.registry import Tool
from bench import policies
from bench.agent_month import AgentMonth, Record, virtual
from bench.charts import DASH
from bench.measure import peer_output
from bench.policies import REMEDIES, TITLES, Meter, StandIn, simulate
from bench.quality_questions import ask, compressed
from bench.quality_runs import DEFAULTS, GAP, LEAN, PEER_NAME, Bench, Row, opened
from bench.recall_corpus import FILLER, FOLDER, Talk, content, load, quote, runs, section, shows, stored
from hermes_state.values import MessageId, MessageRole, Origin

NOTE = 'No model answers the questions of the group `recall`: "found" and "in the prompt" are upper bounds of use.'
WINDOWS = [32_768, 128_000]
KEPT = 12
"""Number of prompts that are measured, from the second half of a chat."""
COST_ROWS, LIMIT = 200, 3_276
"""Number of rows whose cost is measured, and room for facts in tokens with a window of 32K."""
RULES, WISHES, FACTS = "Standing rules", "Preferences and decisions", "Facts"
FOUND = {
    "update": "≥ 98 %",
    "contradiction": "100 %",
    "the question itself": "≥ 74 %",
    "assistant": "≥ 80 / ≥ 86 %",
    "pair": "≥ 80 / ≥ 86 %",
}
"""Targets of searches, by the end of a row's name."""
KINDS = {"rule": RULES, "preference": WISHES, "decision": WISHES}
"""Section of the record for each kind of statement."""
TRUE_RULES = ("instruction", "preference")
"""Kinds of questions about sentences that may be listed as rules."""
MEASURES = {
    "needed": ("recall: what questions need, in the prompt", "≥ 50 / ≥ 91 %", False),
    "wishes": ("recall: preferences and decisions in the prompt", "≥ 80 / ≥ 95 %", False),
    "newest": ("recall: newest value in the prompt", "≥ 75 %", False),
    "old alone": ("recall: old value alone in the prompt", "≤ 6 %", False),
    "instruction": ("recall: instructions in the prompt", "100 %", False),
    "typed": ("recall: what people typed, in the prompt", "", False),
    "prompt": ("recall: mean prompt, tokens", "", False),
    "false rules": ("recall: listed rules that are none", "", True),
    "code": ("recall: lines of code among people's facts", "≤ 3 %", True),
    "by code": ("recall: summaries written by code, not by the stand-in", "", True),
}
"""Name, target, and True if only our prompts have it, for each measure of prompts."""
_HIT = re.compile(r"^(?: +\w+ it, )?m(\d+) ", re.MULTILINE)


# ---- search


async def _searches(talks: Sequence[Talk]) -> list[Row]:
    """Search for each question with `history_search`: with its content words, as typed, and after `/new`."""
    places, foreign = defaultdict[str, list[int]](list), list[int]()
    async with opened() as store:
        for talk, is_reset in product(talks, (False, True)):
            context, ids = await stored(store, talk, is_reset=is_reset)
            for one in talk.questions:
                words, wanted = " ".join(content(one.question)), {ids[name] for name in one.newest}
                for query in (words,) if is_reset else (words, one.question):
                    text = await ask(context, query)
                    place = _place(text, wanted)
                    foreign.append(len(_ids(text) - set(ids.values())))
                    if is_reset or query != words:
                        groups: Sequence[str] = ("after /new" if is_reset else f"{talk.name}, the question itself",)
                    else:
                        groups = (talk.name, f"{talk.name}, {talk.half} half", f"kind {one.kind}")
                    for group in groups:
                        places[group].append(place)
    rows: list[Row] = []
    for group, found in sorted(places.items()):
        shares = " / ".join(f"{sum(place < limit for place in found) / len(found):.0%}" for limit in (10, 20))
        bar = next((bar for end, bar in FOUND.items() if group.endswith(end)), "")
        rows.append((f"found, {group} ({len(found)}): first 10 / 20", {32_768: shares}, bar))
    return [*rows, (f"rows of other chats, {len(foreign):,} queries", {32_768: str(sum(foreign))}, "0")]


def _place(text: str, wanted: set[int]) -> int:
    """Return the rank of the first hit that is wanted or shown next to a wanted row, or 1,000 if there is none."""
    rank = -1
    for line in text.partition("\n<history>\n")[2].splitlines():
        rank += bool(re.match(r"m\d", line))
        if wanted & _ids(line):
            return max(rank, 0)
    return 1_000


def _ids(text: str) -> set[int]:
    """Return the ids at the beginnings of lines, which can be indented."""
    return {int(number) for number in _HIT.findall(text.partition("\n<history>\n")[2] or text)}


# ---- prompts


def _prompts(bench: Bench, talks: Sequence[Talk]) -> list[Row]:
    """Play the chats with an assistant under each policy, with summaries that say nothing, and measure prompts."""
    found: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    jobs, places = list[Mapping[str, Any]](), list[tuple[Talk, int]]()

    def measure(
        policy: str, talk: Talk, window: int, kept: Sequence[Sequence[str]], figures: Mapping[str, Any]
    ) -> None:
        for name, values in _measured(talk, kept).items():
            found[policy, window][name] += values
        for name in ("prompt", "price"):
            found[policy, window][name].append(figures[name])

    for window in (one for one in WINDOWS if one in bench.windows):
        for talk in (one for one in talks if any(row.is_answer for row in one.rows)):
            record = virtual(_played(talk, window, bench.tools))
            measure("", talk, window, record.meter.kept, record.meter.figures())
            for name, values in _listed(talk, record).items():
                found["", window][name] += values
            job = {"month": talk.script(), "system": record.meter.kept[0][0], "window": window}
            jobs.append({**job, "lines": talk.vague(len(TITLES)), "keep": _kept(talk)})
            places.append((talk, window))
            for policy in (LEAN, "drop oldest"):
                meter, stand_in = Meter(len(talk.turns()), keep=_kept(talk)), StandIn("nothing", jobs[-1]["lines"])
                figures = simulate(job["month"], job["system"], window, REMEDIES[policy], stand_in, meter)
                measure(policy, talk, window, meter.kept, figures)
    interpreter = bench.peer()
    if interpreter and jobs:
        with tempfile.TemporaryDirectory(prefix="peer-recall-") as folder:
            path = Path(folder) / "chats.json"
            path.write_text(json.dumps(jobs), encoding="utf-8")
            figures_of = peer_output(interpreter, policies.__file__, [str(path)], folder)
        for place, figures in zip(places, figures_of, strict=True):
            measure(PEER_NAME, *place, figures["kept"], figures)

    def row(name: str, policy: str, form: Callable[[dict[str, list[float]]], str], bar: str = "") -> list[Row]:
        cells = {window: form(values) for (one, window), values in found.items() if one == policy}
        return [(name, cells, bar)] if cells else []

    rows: list[Row] = []
    for name, (title, bar, is_ours_only) in MEASURES.items():
        form = "{:,.0f}" if name == "prompt" else "{:.0%}"

        def mean(values: dict[str, list[float]], name: str = name, form: str = form) -> str:
            if name == "false rules":
                return f"{sum(values[name]):.0f} of {len(values[name])}"
            return form.format(statistics.mean(values[name])) if values[name] else ""

        rows += row(title, "", mean, bar)
        for policy in () if is_ours_only else (PEER_NAME, LEAN, "drop oldest"):
            rows += row(f"{DASH} {policy}", policy, mean)
    for name, bar in (("prompt", "≤ 0.9"), ("price", "≤ 0.95")):
        pairs = {
            window: (found["", window][name], values[name]) for (one, window), values in found.items() if one == LEAN
        }
        cells = {window: f"{sum(ours) / sum(theirs):.2f}" for window, (ours, theirs) in pairs.items()}
        rows += [(f"recall: {'mean ' * (name == 'prompt')}{name}, by lean's", cells, bar)] if cells else []
    return rows


async def _played(talk: Talk, window: int, tools: Sequence[Tool]) -> Record:
    """Play a chat with the agent."""
    script = talk.script()
    async with opened() as store:
        chat = AgentMonth(store, window, len(script), talk.half, "nothing", DEFAULTS, tools)
        chat.record.meter = Meter(len(script), keep=_kept(talk))
        chat.record.stand_in.lines = talk.vague(len(TITLES))
        async for _ in chat.play(script, GAP):
            pass
        await chat.agent.close()
        return chat.record


def _kept(talk: Talk) -> list[int]:
    """Return the numbers of the turns whose prompts are measured."""
    count = len(talk.turns())
    return sorted({count - 1 - at * count // 2 // KEPT for at in range(KEPT)})


def _measured(talk: Talk, kept: Sequence[Sequence[str]]) -> Mapping[str, list[float]]:
    """Return, for each measure, a value for each prompt and each question whose answer was given before."""
    turns, found = talk.turns(), defaultdict[str, list[float]](list)
    turn_of = {row.id: number for number, turn in enumerate(turns) for row in turn}
    for number, pieces in zip(_kept(talk), kept, strict=True):
        for one in talk.questions:
            if max(turn_of[name] for name in (*one.evidence, *one.old)) >= number:
                continue
            is_shown = shows(pieces, talk.keys(one.newest, one))
            found["needed"].append(is_shown)
            found[one.kind].append(is_shown)
            if one.old:
                found["newest"].append(is_shown)
                found["old alone"].append(not is_shown and shows(pieces, talk.keys(one.old, one)))
        typed = [runs(one.text) for one in talk.typed.values() if not one.is_answer and turn_of[one.id] < number]
        whole = frozenset[tuple[str, ...]]().union(*typed)
        view = frozenset[tuple[str, ...]]().union(*(runs(piece) & whole for piece in pieces))
        found["typed"].append(len(view) / len(whole))
    found["wishes"] = found["preference"] + found["decision"]
    return found


def _listed(talk: Talk, record: Record) -> Mapping[str, list[float]]:
    """Return True for each listed rule that is not a rule, and for each fact of a person that is a line of code."""
    true = [talk.typed[name].text for one in talk.questions if one.kind in TRUE_RULES for name in one.evidence]
    true += FILLER["rules"]
    rules = {quote(line) for line in record.listed if line.strip()}
    code = [block for row in talk.typed.values() if not row.is_answer for block in row.text.split("```")[1::2]]
    facts = {
        line for pieces in record.meter.kept for line in section(FACTS, "\n".join(pieces)) if " person" in line[:40]
    }
    return {
        "false rules": [not any(rule.rstrip(".") in text for text in true) for rule in rules],
        "code": [any(quote(line) in block for block in code) for line in facts],
        "by code": [one.prepared.summary_kind == "deterministic" for one in record.compressions],
    }


# ---- statements


def _statements(bench: Bench) -> list[Row]:
    """Type the statements of each language into a chat, compress it, and compare its sections with the kinds."""
    files = sorted(FOLDER.glob("*/statements.jsonl"))
    every = [msgspec.json.decode(line) for path in files for line in path.read_bytes().splitlines()]
    listed: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    for language in sorted({one["language"] for one in every}):
        ours = [one for one in every if one["language"] == language]
        # Chats of fewer than 12 messages are too short for rules.
        text = "\n".join(virtual(compressed([*(one["text"] for one in ours), *["Fine."] * 12])).pieces)
        for title in (RULES, WISHES):
            lines = [line for line in map(quote, section(title, text)) if line]
            for one in ours:
                is_listed = any(line in one["text"] or one["text"] in line for line in lines)
                for group in ("all languages", language):
                    listed[group].append((title, KINDS.get(one["is"]) == title, is_listed))
    rows: list[Row] = []
    for group, found in listed.items():
        cells = []
        for title, is_true in product((RULES, WISHES), (True, False)):
            hits = [is_listed for one, kind, is_listed in found if (one, kind) == (title, is_true)]
            cells.append(f"{sum(hits)} of {len(hits)}")
        name = f"statements, {group}: rules, wrong rules; preferences, wrong ones"
        cell = f"{cells[0]}, {cells[1]}; {cells[2]}, {cells[3]}"
        rows.append((name, {bench.windows[0]: cell}, "wrong: ≤ 3 %" if group == "all languages" else ""))
    return rows


# ---- cost


def _costs(talks: Sequence[Talk]) -> list[Row]:
    """Return the CPU time of carried lines for each row, with the worst of 25 neighbouring limits."""
    every = [row for talk in talks for row in talk.rows]
    long = [asking_row(row.text[:2_000], row.sent_at) for row in every if len(row.text) >= 2_000]
    short = [asking_row(row.text, row.sent_at) for row in every if 40 <= len(row.text) <= 300]
    options: dict[str, Any] = {"redact": lambda text: text, "is_shared": False}
    rows: list[Row] = []
    for name, some, role, origin, bar in (
        ("answers of 2,000 characters", long, MessageRole.ASSISTANT, Origin.ASSISTANT, "≤ 0.10 ms"),
        ("short messages", short, MessageRole.USER, Origin.HUMAN, "≤ 0.15 ms"),
    ):
        transcript = [
            msgspec.structs.replace(row, id=MessageId(number), role=role, origin=origin)
            for number, row in enumerate(some[:COST_ROWS], 1)
        ]
        times = dict.fromkeys(range(LIMIT, LIMIT + 25), 1.0)
        carried(Carried(), (), transcript, rules_limit=LIMIT, facts_limit=LIMIT, **options)  # compiles the expressions
        for _, limit in product(range(2), times):  # the faster of two runs, because other programs use the processor
            began = time.thread_time()
            carried(Carried(), (), transcript, rules_limit=LIMIT, facts_limit=limit, **options)
            times[limit] = min(times[limit], time.thread_time() - began)
        cost = f"{max(times.values()) * 1e3 / len(transcript):.2f} ms"
        rows.append((f"CPU of carried lines, {name}, worst of 25 limits", {WINDOWS[0]: cost}, bar))
    return rows


def recall(bench: Bench) -> list[Row]:
    """Return rows on searches, prompts and statements."""
    talks = load()
    return [*virtual(_searches(talks)), *_prompts(bench, talks), *_statements(bench), *_costs(talks)]
