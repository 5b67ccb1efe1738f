"""Print the memory in MB that tools take in an idle process. `bench.tools_bench` runs this as a separate process.

First it imports everything that an agent without tools needs. The memory gained after that belongs to the tools. It
covers their modules, an agent that offers all of them, and the notes of ten chats and thirty skills, none of which is
used.
"""

import asyncio
import gc
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import resident_mb

TOOLS = ("agent.tools", "agent.memory", "gateway.daemon.agent", "bench")
"""Modules that are measured, or that import measured modules."""
_LIST = "import sys, bench.built_in; print(*sys.modules)"
_SKILL = "---\nname: skill-{0}\ndescription: How matter {0} is dealt with here, step by step.\n---\n# Matter {0}\n"


def main() -> None:
    listed = subprocess.run([sys.executable, "-c", _LIST], check=True, capture_output=True, text=True).stdout.split()
    for name in listed:
        if name.startswith(("agent.", "gateway.", "hermes_state.")) and not name.startswith(TOOLS):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="tools-memory-") as folder:
        print(asyncio.run(_gained(Path(folder))))


async def _gained(folder: Path) -> float:
    from gateway.config import load_config
    from hermes_state.engines.sqlite.store import SqliteStore

    for number in range(30):
        (folder / "skills" / f"skill-{number}").mkdir(parents=True)
        (folder / "skills" / f"skill-{number}" / "SKILL.md").write_text(_SKILL.format(number))
        if number < 10:
            (folder / "memory" / str(number)).mkdir(parents=True)
            (folder / "memory" / str(number) / "MEMORY.md").write_text("- the register is kept by Ann\n" * 70)
    environ = {"HERMES_WEB__SEARCH": "brave", "HERMES_WEB__SEARCH_KEY": "key"}
    loaded = load_config({"HOME": str(folder), "HERMES_HOME": str(folder), **environ})
    store = await SqliteStore.open(folder / "tools.db", synchronous="NORMAL")
    gc.collect()
    before = resident_mb()
    from bench.built_in import make_full_agent

    agent = make_full_agent(loaded, store)
    gc.collect()
    gained = resident_mb() - before
    assert len(agent.offers.registry.available()) > 10
    await agent.close()
    await store.close()
    return gained


if __name__ == "__main__":
    main()
