"""Rows of the quality bench about queries: rule sentences, the topic of `/compress`, and searches."""

import json
import re
import statistics
import time
from collections.abc import Sequence
from sqlite3 import Connection

from agent.context.limits import ContextSettings
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolContext, parsed
from bench import policies
from bench.agent_month import AgentMonth, Record, virtual
from bench.corpus import COMMON, RARE, Corpus
from bench.months import DENSE, DOMAINS, sentences
from bench.policies import Turn
from bench.quality_runs import GAP, Bench, Row, opened, played, script_of, span
from hermes_state.chats import ensure_chat
from hermes_state.sessions import ensure_active
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatId, ChatKey, ChatKind, LineageId, MessageRole, Millis, Origin, TurnId, UserRef

QUERIES, LARGE = 100, 300_000
"""Number of facts per chat to search for, and number of rows in a long chat."""


def corpus(bench: Bench) -> list[Row]:
    """Type the corpus into chats of each language, compress them, and count the sentences listed as rules."""
    found: dict[tuple[str, str], list[bool]] = {}
    for language in sorted({one["language"] for one in sentences()}):
        ours = [one for one in sentences() if one["language"] == language]
        listed = virtual(_listed([one["text"] for one in ours if one["kind"] != "take_back"]))
        for one in ours:
            text = one["text"]
            if one["kind"] == "take_back":
                is_found = one["rule"] in listed and one["rule"] not in virtual(
                    _listed([one["rule"], text, *["Fine."] * 12])
                )
            else:
                is_found = text in listed
            found.setdefault((one["half"], one["kind"]), []).append(is_found)
    return [
        (f"corpus, {half} half: {kind}", {bench.windows[0]: f"{sum(hits)} of {len(hits)}"}, "")
        for (half, kind), hits in sorted(found.items())
    ]


async def _listed(texts: Sequence[str]) -> str:
    """Return the listed rules after compressing these messages."""
    return (await compressed(texts)).rules


async def compressed(texts: Sequence[str]) -> Record:
    """Return the record of a chat with these messages, which are compressed at its end.

    Chats of fewer than 12 messages are too short for rules.
    """
    filler = "Thanks, I have taken note of that and go on with the other things that were asked for before. " * 6
    empty = {"document": "", "calls": (), "results": (), "answer": filler, "facts": (), "sentences": ()}
    script: list[Turn] = [{**empty, "said": text} for text in ("Hello!", *texts, "And now?", "Thank you.")]
    settings = ContextSettings(enabled=False, protect_first_n=0)
    async with opened() as store:
        chat = AgentMonth(store, 1_000_000, len(script), "corpus", "shortens", settings)
        async for _ in chat.play(script, GAP):
            pass
        await chat.compress(keep_turns=1)
        await chat.agent.close()
    return chat.record


# ---- topics


def topics(bench: Bench) -> list[Row]:
    """Return the share of facts on and off the `/compress` topic that remain after one, three and ten compressions."""
    found = [virtual(_focused(domain, bench.tools)) for domain in DOMAINS]
    return [
        (
            f"after {count} × `/compress {{topic}}`: facts on the topic / other facts",
            {32_768: " / ".join(str(span(found, lambda one: one[count - 1][at], "{:.0%}")) for at in (0, 1))},  # noqa: B023  # called at once
            "",
        )
        for count in (1, 3, 10)
    ]


async def _focused(domain: str, tools: Sequence[Tool]) -> list[tuple[float, float]]:
    topic, script = DOMAINS[domain].topics[0], script_of(domain, 32_768, DENSE, (100, 2))
    settings, shares = ContextSettings(enabled=False), []
    async with opened() as store:
        chat = AgentMonth(store, 32_768, len(script), domain, "shortens", settings, tools)
        said: list[tuple[str, bool]] = []
        async for number in chat.play(script, GAP):
            said += [(fact[0], fact[2] == topic) for fact in script[number]["facts"]]
            if number % 10 == 9:
                await chat.compress(topic)
                shown = frozenset[str]().union(*map(policies.names, chat.record.pieces))
                on, beside = ([value in shown for value, is_on in said if is_on is wanted] for wanted in (True, False))
                shares.append((statistics.mean(on), statistics.mean(beside)))
        await chat.agent.close()
    return shares


# ---- search


def search(bench: Bench) -> list[Row]:
    """Search for many facts with one `history_search` each, by the kind of query."""
    return [*virtual(_searched(bench.tools)), *virtual(_large())]


async def _searched(tools: Sequence[Tool]) -> list[Row]:
    scripts = {domain: script_of(domain, 32_768, DENSE) for domain in DOMAINS}
    every = {domain: [fact for turn in script for fact in turn["facts"]] for domain, script in scripts.items()}
    hits: dict[str, list[bool]] = {}
    questions, leaks = [], []
    async with opened() as store:
        chats = {domain: await played(store, domain, 32_768, script, tools=tools) for domain, script in scripts.items()}
        for domain, chat in chats.items():
            asked = every[domain][:: max(1, len(every[domain]) // QUERIES)]
            words = " ".join(query for fact in asked for query in _queries(domain, *fact).values())
            turn = await chat.start({"said": words, "document": ""})
            context = ToolContext.of(turn, store)
            own = await store.read(_holding, turn.lineage_id, "")
            for fact in asked:
                holding = await store.read(_holding, turn.lineage_id, fact[0]) - {max(own)}
                for name, query in _queries(domain, *fact).items():
                    found = _ids(await ask(context, query))
                    hits.setdefault(name, []).append(bool(found & holding))
                    questions.append(max(own) in found)
            foreign = {fact[3] for other, facts in every.items() if other != domain for fact in facts}
            foreign -= set(re.findall(r"\w+", json.dumps(scripts[domain], ensure_ascii=False)))
            for fact in (fact for facts in every.values() for fact in facts[:134]):
                for query in (f"{fact[3]} {fact[4]}", f"{fact[3][:3]}{fact[3][4:]}"):
                    text = await ask(context, query)
                    named = set(re.findall(r"\w+", text)) & foreign - {fact[3]}
                    leaks.append(bool(named or _ids(text) - own))
    bars = {"one rare word shared": "≥ 90 %", "one letter missing": "≥ 95 %"}
    shares = [(name, f"{statistics.mean(found):.0%}") for name, found in sorted(hits.items())]
    rows: list[Row] = [(f"one search: {name}", {32_768: text}, bars.get(name, "≥ 99 %")) for name, text in shares]
    rows.append(("– the question itself among the hits", {32_768: f"{statistics.mean(questions):.0%}"}, "0"))
    return [*rows, (f"– rows or words of other chats, {len(leaks):,} queries", {32_768: str(sum(leaks))}, "0")]


async def _large() -> list[Row]:
    """Measure searches in a conversation of many rows, one with a misspelt word and a word that was never used."""

    def fill(db: Connection, texts: Sequence[str]) -> LineageId:
        session = ensure_active(db, ensure_chat(db, key, ChatKind.DIRECT, None, Millis(0)), Millis(0))
        for text in texts:
            append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), Millis(0))
        return session.lineage_id

    key = ChatKey(platform="telegram", account="telegram", chat_ref="large")
    async with opened() as store:
        texts = list(Corpus().messages(LARGE))
        for at in range(0, LARGE, 500):
            lineage_id = await store.write(fill, texts[at : at + 500])
        context = ToolContext(
            chat_id=ChatId(1),
            lineage_id=lineage_id,
            turn_id=TurnId(0),
            epoch=0,
            store=store,
            chat=key,
            chat_kind=ChatKind.DIRECT,
            started_by=UserRef("telegram:42"),
        )
        words = list(dict.fromkeys(word for word in " ".join(texts[:200]).split() if word.isalpha() and len(word) > 4))
        rows: list[Row] = []
        for name, query, bar in (
            ("a rare word", RARE, "≤ 5 ms"),
            ("a word of many messages", words[8], "≤ 5 ms"),
            ("eight words", " ".join(words[:8]), "≤ 60 ms"),
            ("a misspelt and an unknown word", f"{RARE[:4]}{RARE[5:]} whereabouts {COMMON}", "≤ 150 ms"),
        ):
            times = []
            for _ in range(9):
                began = time.process_time()
                await ask(context, query)
                times.append(time.process_time() - began)
            cell = f"{min(times) * 1e3:.1f} ms"  # the fastest run, because other programs use the processor
            rows.append((f"a search for {name}, {LARGE:,} rows, CPU", {32_768: cell}, bar))
        return rows


def _queries(domain: str, value: str, who: str, topic: str, key: str, noun: str) -> dict[str, str]:
    """Return queries for a fact, by the name of their kind."""
    if who in ("arguments", "documents"):
        return {who: f"{key} {noun}"}
    if domain == "Chinese":
        return {"Chinese": f"{key} {noun}", "Chinese, two characters": key}
    one_rare, shorter = f"{key} whereabouts please", f"{key[:3]}{key[4:]}"
    return {"exact words": f"{key} {noun}", "one rare word shared": one_rare, "one letter missing": shorter}


async def ask(context: ToolContext, query: str) -> str:
    """Return what `history_search` tells a model."""
    tool = recall_tools()[0]
    arguments = parsed(json.dumps({"query": query}), tool.parameters)
    return (await tool.reply(arguments, context)).text


def _ids(text: str) -> set[int]:
    """Return the ids of the messages that a search has found."""
    return {int(number) for number in re.findall(r"^m(\d+) ", text, re.MULTILINE)}


def _holding(db: Connection, lineage_id: LineageId, value: str) -> set[int]:
    holds = "instr(coalesce(text, '') || coalesce(body, ''), ?)"
    query = f"SELECT id FROM messages WHERE lineage_id = ? AND seq > 0 AND {holds}"
    return {row[0] for row in db.execute(query, (lineage_id, value))}
