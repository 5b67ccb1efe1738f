"""The gateway with a heartbeat in its event loop: `python -m bench.watched_gateway FILE [SECONDS]`.

On each SIGUSR1, it writes a JSON list to FILE: by how many seconds the loop was late at each beat since the last
signal.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from bench.compression_bench import heartbeat
from gateway.config import LoadedConfig, load_config
from gateway.daemon.process import loop_factory, prepare_process
from gateway.daemon.run import run_daemon
from gateway.turns.attachments import open_attachments


async def _run(loaded: LoadedConfig, file: Path, seconds: float) -> None:
    async with heartbeat(seconds) as lags:

        def write() -> None:
            written = file.with_suffix(".new")
            written.write_text(json.dumps(lags))
            written.replace(file)
            lags.clear()

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, write)
        await run_daemon(loaded, open_attachments(loaded), environ=os.environ)


if __name__ == "__main__":
    given = load_config(os.environ)
    prepare_process(given)
    with asyncio.Runner(loop_factory=loop_factory(os.environ)) as runner:
        runner.run(_run(given, Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.001))
