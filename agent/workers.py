"""Worker processes: short programs of ours that decode what strangers send, apart from the daemon.

A worker is a script that is run and never imported: the daemon loads none of what it decodes with.
"""

import asyncio
import os
import sys
from pathlib import Path


async def run_worker(script: Path, *arguments: str, seconds: float, data: bytes | None = None) -> tuple[int, bytes]:
    """Exit code and output of a worker that is given `data`; killed when it takes too long, or nobody waits any more.

    Raises `TimeoutError`, and `OSError` where no process can be started now.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(script), *arguments),
        stdin=asyncio.subprocess.DEVNULL if data is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # and none of the gateway's keys
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(data)
        return await process.wait(), output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
