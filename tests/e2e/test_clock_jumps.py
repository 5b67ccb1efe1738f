"""A whole gateway whose machine's clock is turned by a day while it works."""

import os
import time
from pathlib import Path

from gateway import timers
from hermes_state.engines.postgres import nodes
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import world_in
from tests.processes import run_gateway
from tests.side_by_side import side_by_side

DAY_NS = 86_400 * 10**9


def run_on_turned_clock() -> None:
    """The gateway, on a clock that is off by what stands in a file, in nanoseconds."""
    offset, now_ns = Path(os.environ["HERMES_HOME"]).parent / "offset", time.time_ns
    time.time_ns = lambda: now_ns() + (int(offset.read_text()) if offset.exists() else 0)
    timers.LOOK_SECONDS = 1.0
    nodes.MAX_CLOCK_SECONDS = 1_000_000  # as if the database server's had been turned, too
    run_gateway()


async def test_a_clock_turned_by_a_day_holds_up_no_answer_and_no_stop(tmp_path: Path, protocol: ModelProtocol) -> None:
    jumps = {"back": -DAY_NS, "forward": DAY_NS}
    await side_by_side({name: _turn_clock(tmp_path / name, protocol, jump) for name, jump in jumps.items()})


async def _turn_clock(tmp_path: Path, protocol: ModelProtocol, jump: int) -> None:
    async with world_in(tmp_path, protocol, program=run_on_turned_clock) as world:
        await world.gateway.start()
        await world.script(match="hang", hang=True)
        await world.say("hang")
        await world.turn_runs()
        (tmp_path / "offset").write_text(str(jump))
        await world.ask("/stop", "^Stopped")
        assert world.query("SELECT state FROM turns") == [("stopped",)]

        since = len(world.gateway.log_bytes())
        await world.tg.post("faults", {"kind": "429", "match": "sendMessage$", "retry_after": 2, "times": 1})
        await world.say("hello")
        await world.gateway.wait_for_log("delivery.rate_limited", since=since)
        (tmp_path / "offset").write_text(str(2 * jump))
        assert await world.replies(1, match="hello")
        (tmp_path / "offset").unlink()
        await world.ask("and now?", "and now")
        assert await world.gateway.stop() == 0
        assert world.query("SELECT count(*) FROM outbox WHERE state <> 'sent'") == [(0,)]
