"""Engine written for hermes-agent that makes no summary: its person and its operator see why."""

import json
from pathlib import Path

import pytest

from tests.e2e.chats import PLATFORMS, chat_on
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_compression import FILLER, SMALL, summaries

HESITANT = """
from agent.context_compressor import SUMMARY_PREFIX
from agent.context_engine import ContextEngine

class Hesitant(ContextEngine):
    name = "hesitant"
    def update_from_response(self, usage):
        pass
    def should_compress(self, prompt_tokens=None):
        return False
    def compress(self, messages, current_tokens=None, focus_topic=None):
        return messages
    def update_model(self, model, context_length, **kwargs):
        self.context_length, self.threshold_tokens = context_length, context_length * 3 // 4

def register(ctx):
    assert SUMMARY_PREFIX
    ctx.register_context_engine(Hesitant())
"""
"""Like `lossless-hermes-py`, whose threshold is above the gateway's own limits."""


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_the_reason_why_an_engine_compressed_nothing_is_seen(
    tmp_path: Path, protocol: ModelProtocol, platform: str
) -> None:
    async with chat_on(platform, tmp_path, protocol) as chat:
        world, folder = chat.world, chat.world.home / "plugins" / "context_engine" / "hesitant"
        folder.mkdir(parents=True)
        world.home.chmod(0o700)
        (folder / "__init__.py").write_text(HESITANT)
        await chat.start(**SMALL, HERMES_CONTEXT__ENGINE="hesitant")
        for number in range(6):
            await chat.ask(f"TICKET-{number}. {FILLER}", rf"echo: .*TICKET-{number}\.")
        told = await chat.ask("/compress", "Nothing could be compressed")
        assert "Nothing could be compressed: the context engine returned the messages unchanged" in told
        number = 6
        while not await summaries(world):
            await chat.ask(f"TICKET-{number}. {FILLER}", rf"echo: .*TICKET-{number}\.")
            number += 1
        lines = [json.loads(line) for line in world.gateway.log_text().splitlines() if line.startswith("{")]
        found = {line["event"]: line["reason"] for line in lines if line["event"].startswith("engine.")}
        assert found["engine.replaced"] == found["engine.no_change"] == "returned the messages unchanged"
