"""The text of an answer that is spoken, and recordings while the database fails."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from agent.model.base import Payer
from gateway.turns.voice import MAX_SPOKEN, VoiceRecorder, spoken_text
from hermes_state.errors import StoreUnavailable
from hermes_state.models.ledger import ModelCall
from hermes_state.store.writer import Store
from tests.gateway.helpers import Serve
from tests.hermes_state.rows import CALL

SENTENCE = "It is 3.5 km, e.g. by bike. "


@pytest.mark.parametrize(
    ("markdown", "spoken"),
    [
        ("**Bold** and `code`, _then_\nmore", "Bold and code, then more."),
        ("See [the plan](https://a.example/b) at https://a.example/c or <https://a.example>.", "See the plan at or."),
        ("> “Quoted.”\n\n![a picture](https://a.example/p.png)\n\n---", "“Quoted.”"),
        ("- one\n- two!\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx = 1\n```", "one.\ntwo!"),
        ("```\nonly code\n```", ""),
        ("答えです。", "答えです。"),
    ],
)
def test_marks_code_tables_and_addresses_are_not_spoken(markdown: str, spoken: str) -> None:
    assert spoken_text(markdown) == (spoken, True)


@pytest.mark.parametrize(
    ("markdown", "end"), [(SENTENCE * 100, "by bike."), ("word " * 500, "word"), ("x" * 2_000, "x")]
)
def test_a_long_answer_is_cut_at_the_best_place(markdown: str, end: str) -> None:
    spoken, is_whole = spoken_text(markdown)
    assert not is_whole
    assert MAX_SPOKEN - len(SENTENCE) <= len(spoken) <= MAX_SPOKEN
    assert spoken.endswith(end)


@dataclass
class FailingStore:
    """Store that fails in one call of a method, such as `read`. The calls of the method are counted."""

    store: Store
    method: str
    number: int = 1

    def __getattr__(self, name: str) -> object:
        return self.failing if name == self.method else getattr(self.store, name)

    async def failing(self, fn: Callable[..., object], *args: object) -> object:
        self.number -= 1
        if self.number == 0:
            raise StoreUnavailable("the disk is full")
        return await getattr(self.store, self.method)(fn, *args)


class Voice:
    """Client of a speech model that speaks after the recorder's second look-up."""

    breaker = SimpleNamespace(open=None)

    def __init__(self) -> None:
        self.calls = 0

    async def speak(self, _words: str, *, payer: Payer, within: float) -> tuple[bytes, str, ModelCall]:
        self.calls += 1
        await asyncio.sleep(0.02)
        return b"OggS", "audio/ogg", CALL


@pytest.mark.parametrize(
    ("method", "number", "calls"), [("read", 1, 1), ("read", 2, 1), ("read", 3, 1), ("write_with_retry", 1, 2)]
)
async def test_a_database_error_delays_a_voice_message(
    serve: Serve, store: Store, monkeypatch: pytest.MonkeyPatch, method: str, number: int, calls: int
) -> None:
    monkeypatch.setattr("gateway.turns.voice.RETRY_SECONDS", 0.01)
    async with serve(voice={"model": "lab-tts", "reply": "always"}) as gateway:
        voice = Voice()
        recorder = VoiceRecorder(
            store=FailingStore(store, method, number),  # type: ignore[arg-type]
            runtime=gateway.live,
            clock=gateway.clock,
            make_client=lambda _config, _agent: voice,  # type: ignore[arg-type,return-value]
            delivery=gateway.delivery,
        )
        gateway.delivery.record = recorder.begin
        await gateway.ask("hello")
        await gateway.quiet()
        assert [request.file.name for request in gateway.adapter.requests if request.file is not None] == ["voice.ogg"]
        assert await gateway.rows("SELECT state FROM outbox WHERE kind = 'voice'") == [("sent",)]
        assert voice.calls == calls, "only a recording that could not be stored is made again"
        await recorder.cancel()


async def test_an_answer_is_stored_even_if_the_database_cannot_be_read(serve: Serve, store: Store) -> None:
    async with serve(voice={"model": "lab-tts"}) as gateway:
        gateway.lanes.turns.store = FailingStore(store, "read_short")  # type: ignore[assignment]
        assert await gateway.ask("hello") == "echo: hello"
        assert len(gateway.model.requests) == 1, "a paid answer is not asked for again"
