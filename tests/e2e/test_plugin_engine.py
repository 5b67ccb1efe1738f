"""Engine written for hermes-agent that makes no summary: its person and its operator see why."""

import json

from tests.e2e.test_compression import FILLER, SMALL, summaries, talk
from tests.e2e.world import World

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


async def test_the_reason_why_an_engine_compressed_nothing_is_seen(world: World) -> None:
    folder = world.home / "plugins" / "context_engine" / "hesitant"
    folder.mkdir(parents=True)
    world.home.chmod(0o700)
    (folder / "__init__.py").write_text(HESITANT)
    await world.gateway.start(**SMALL, HERMES_CONTEXT__ENGINE="hesitant")
    await talk(world, 6)
    await world.say("/compress")
    told = "Nothing could be compressed: the context engine returned the messages unchanged"
    assert await world.replies(1, match=told)
    while not await summaries(world):
        await world.converse(f"TICKET. {FILLER}")
    lines = [json.loads(line) for line in world.gateway.log_text().splitlines() if line.startswith("{")]
    found = {line["event"]: line["reason"] for line in lines if line["event"].startswith("engine.")}
    assert found["engine.replaced"] == found["engine.no_change"] == "returned the messages unchanged"
