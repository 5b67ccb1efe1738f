"""Worker processes: separate programs that decode untrusted files and web pages. Never import a worker's script."""

import asyncio
import os
import sys
from pathlib import Path
from typing import IO


async def run_worker(
    script: Path, *arguments: str, seconds: float, data: bytes | None = None, file: IO[bytes] | None = None
) -> tuple[int, bytes]:
    """Run a worker with `data` or an open file as its input, and return its exit code and output.

    Raises `TimeoutError` if it is killed after `seconds`, or `OSError` if it cannot start.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(script), *arguments),
        stdin=file or (asyncio.subprocess.DEVNULL if data is None else asyncio.subprocess.PIPE),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # without the gateway's keys
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(data)
        return await process.wait(), output
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
