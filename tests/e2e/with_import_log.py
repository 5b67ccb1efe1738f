"""The daemon with a log of when the event loop's thread imports a module, or waits for another thread's import.

    python -m tests.e2e.with_import_log

Each line of `imports.log` in the home directory contains a time and a module, or `waits` and a source line. Imports in
other threads are slowed down, as on a busy machine.
"""

import os
import sys
import threading
import time
from pathlib import Path

from gateway.config import process_environment
from gateway.daemon.process import serve

LOG = "imports.log"
SLOW = ("agent.model", "anthropic", "openai")
SLOW_SECONDS = 0.001
LOOK_SECONDS = 0.01
"""Seconds between two checks. Only two matches in a row count as a wait, because a busy machine can pause any
thread."""


def main() -> None:
    log = os.open(Path(os.environ["HOME"]) / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    main_thread = threading.main_thread()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event != "import":
            return
        if threading.current_thread() is main_thread:
            os.write(log, f"{time.time()} {arguments[0]}\n".encode())
        elif str(arguments[0]).startswith(SLOW):
            time.sleep(SLOW_SECONDS)

    def watch() -> None:
        looks = 0
        while True:
            frame = sys._current_frames().get(main_thread.ident or 0)
            looks = looks + 1 if frame is not None and "importlib" in frame.f_code.co_filename else 0
            while looks > 1 and frame is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if looks > 1 and frame is not None:
                os.write(log, f"{time.time()} waits:{frame.f_code.co_filename}:{frame.f_lineno}\n".encode())
            del frame
            time.sleep(LOOK_SECONDS)

    sys.addaudithook(note)
    threading.Thread(target=watch, daemon=True).start()
    sys.exit(serve(process_environment()))


if __name__ == "__main__":
    main()
