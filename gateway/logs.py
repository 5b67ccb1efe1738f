"""Logs of the daemon: one redacted line for each structlog event or log record of a library.

Event names have the form `noun.past_verb`, and every variable value has its own key. Secrets and message text are never
logged. As an additional safety measure, every value is redacted.
"""

import contextlib
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gateway.config.settings import LoggingConfig
from hermes_state.redaction import MARK, Redactor, is_secret_name
from hermes_state.text import printable

ACCEPT_ERROR_SECONDS = 60.0
"""Minimum seconds between two log lines about connections that cannot be accepted."""

_LEVELS = {
    # Below WARNING, these libraries log addresses that contain tokens, and whole request and response bodies.
    **dict.fromkeys(("telegram", "httpx", "httpcore", "discord", "openai", "anthropic", "httpx2"), logging.WARNING),
    **dict.fromkeys(("httpcore2", "aiohttp", "apscheduler", "aiosqlite", "asyncio"), logging.WARNING),
    **dict.fromkeys(("markdown_it", "urllib3"), logging.WARNING),
    # The MCP SDK logs data that MCP servers have sent.
    **dict.fromkeys(("mcp", "client"), logging.CRITICAL + 1),
}
"""Log levels for the loggers of libraries."""


_REDACTED_DEPTH = 6


def configure_logging(
    settings: LoggingConfig, *, secrets: Iterable[str], directory: Path | None, stream: TextIO | None = None
) -> None:
    """Log to `stream` (default: standard error), and with `settings.file` also to `gateway.log` in `directory`.

    Replaces the setup of an earlier call. The configured `secrets` are redacted wherever they appear verbatim.
    """
    stream = stream or sys.stderr
    redaction = _LogRedactor(Redactor(secrets))
    as_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    handlers = [_with_formatter(_StreamHandler(stream), redaction, as_json=as_json, stream=stream)]
    if settings.file and directory is not None:
        # With `delay`, the first line opens the file, so that a full disk does not prevent the start.
        path = directory / "gateway.log"
        file = _FileHandler(path, maxBytes=10_000_000, backupCount=5, encoding="utf-8", delay=True)
        handlers.append(_with_formatter(file, redaction, as_json=True))
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
            old.close()
    for handler in (*handlers, PROBLEMS):
        root.addHandler(handler)
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("discord.client").addFilter(_is_no_noise)
    logging.getLogger("asyncio").addFilter(_ACCEPT_ERRORS)
    logging.getLogger().setLevel(settings.level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # logging can be configured more than once
    )


def update_logging(level: str, secrets: Iterable[str]) -> None:
    """Apply a reloaded level (debug, info, warning, error) and the current secrets immediately."""
    logging.getLogger().setLevel(level.upper())
    redactor = Redactor(secrets)
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            for processor in handler.formatter.processors:
                if isinstance(processor, _LogRedactor):
                    processor.redactor = redactor


def _is_no_noise(record: logging.LogRecord) -> bool:
    # Redundant log lines of discord.py: the gateway itself reports lost connections, and it does not use voice.
    return not record.getMessage().startswith(
        ("Attempting a reconnect in", "PyNaCl is not installed", "davey is not installed")
    )


class _AcceptErrorFilter(logging.Filter):
    """Limits asyncio's log lines about connections that cannot be accepted, from one per second to one per minute."""

    _quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("socket.accept()"):
            return True
        is_due = time.monotonic() >= self._quiet_until
        if is_due:
            self._quiet_until = time.monotonic() + ACCEPT_ERROR_SECONDS
        return is_due


_ACCEPT_ERRORS = _AcceptErrorFilter()

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
]


class RecentProblems(logging.Handler):
    """Remembers the names and hints of the newest warnings and errors, so that `status` can count them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._newest = deque[tuple[float, str, str, str]](maxlen=1_000)

    def emit(self, record: logging.LogRecord) -> None:
        event = record.msg if isinstance(record.msg, dict) else {"event": record.name}  # a library's text may be long
        hint = next((str(event[key]) for key in ("hint", "reason", "detail", "error") if event.get(key)), "")
        self._newest.append((record.created, record.levelname.lower(), str(event["event"]), hint))

    def since(self, seconds: float, redact: Redactor) -> list[dict[str, Any]]:
        """Return the level, name, number, last time and last hint of each event, errors and frequent events first."""
        found = [one for one in self._newest if one[0] >= time.time() - seconds]
        last = {(level, name): (at, hint) for at, level, name, hint in found}
        rows = Counter((level, name) for _, level, name, _ in found).most_common()
        rows.sort(key=lambda row: row[0][0] == "warning")
        return [
            {"level": level, "event": name, "count": count, "last_at": int(at * 1_000), "hint": redact(hint)}
            for (level, name), count in rows
            for at, hint in [last[level, name]]
        ]


PROBLEMS = RecentProblems()


class _QuietHandler(logging.Handler):
    """Handler that reports only the first write error. The default handler would print each failed line unredacted."""

    _has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        error = sys.exception()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        with contextlib.suppress(OSError, ValueError):  # standard error itself may be closed
            print(f"log lines cannot be written to {self}: {reason}", file=sys.stderr, flush=True)


class _JsonFormatter(structlog.stdlib.ProcessorFormatter):
    """Formatter that renders a record once for all handlers."""

    def format(self, record: logging.LogRecord) -> str:
        line: str = record.__dict__.get("hermes_line") or super().format(record)
        record.__dict__["hermes_line"] = line
        return line


class _StreamHandler(_QuietHandler, logging.StreamHandler[TextIO]):
    pass


class _FileHandler(_QuietHandler, RotatingFileHandler):
    """Handler that opens its log file again after the file was deleted, moved or replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        file, stream = Path(self.baseFilename), self.stream
        with contextlib.suppress(OSError):  # `super` reports the write error
            if stream and not (file.exists() and os.path.samestat(file.stat(), os.fstat(stream.fileno()))):
                self.stream = None
                file.parent.mkdir(parents=True, exist_ok=True)
                stream.close()
        super().emit(record)


def _with_formatter(
    handler: logging.Handler, redaction: "_LogRedactor", *, as_json: bool, stream: TextIO | None = None
) -> logging.Handler:
    rendering: list[Processor] = [structlog.processors.JSONRenderer(serializer=_to_json)]
    if not as_json:
        is_terminal = stream is not None and stream.isatty()
        rendering = [_printable, structlog.dev.ConsoleRenderer(colors=is_terminal, timestamp_key="at")]
        if is_terminal:
            rendering.insert(0, _for_a_screen)
    formatter = _JsonFormatter if as_json else structlog.stdlib.ProcessorFormatter
    handler.setFormatter(
        formatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redaction,
                *rendering,
            ],
        )
    )
    return handler


def _for_a_screen(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Shorten an event for a terminal: show only the time of day, and leave out the gateway's own logger names."""
    event["at"] = datetime.fromisoformat(event["at"]).astimezone().strftime("%H:%M:%S")
    if event["logger"].startswith(("gateway.", "platforms.", "agent.", "hermes_state.")):
        del event["logger"]
    return event


def _printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remove control characters from text, because the renderer prints text unchanged."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _to_json(event: EventDict, **_: Any) -> str:
    """Serialise an event. After the redaction, the event contains only values that orjson accepts."""
    return orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS).decode()


class _LogRedactor:
    """Log processor that redacts secrets in the values of all keys."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {name: self._clean(name, value) for name, value in event.items()}

    def _clean(self, name: object, value: object, depth: int = 0) -> object:
        if value is None or isinstance(value, (bool, int, float)):
            return value if not isinstance(value, int) or -(2**63) <= value < 2**63 else str(value)
        if isinstance(name, str) and is_secret_name(name):
            return MARK
        if isinstance(value, Mapping) and depth < _REDACTED_DEPTH:
            return {str(inner): self._clean(inner, held, depth + 1) for inner, held in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)) and depth < _REDACTED_DEPTH:
            return [self._clean(None, held, depth + 1) for held in value]
        return self.redactor(value if isinstance(value, str) else str(value))
