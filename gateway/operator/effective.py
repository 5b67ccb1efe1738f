"""Effective settings: each value, its source, and the model limits that are in use. Secrets are masked."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from pydantic import SecretStr

from agent.model.catalog import SizeSource
from gateway.config import LoadedConfig
from gateway.config.blocks import fields_of, is_block
from gateway.config.fields import DEFAULT_SOURCE, dotted, secrets_in, values_of
from gateway.config.settings import Config
from gateway.models.routes import capacity_in, window_from
from hermes_state.redaction import MARK, redact


def effective_settings(loaded: LoadedConfig) -> dict[str, tuple[Any, str]]:  # `Any`: JSON
    """Return the value and the source of every setting, by key."""
    rows = {key: (value, loaded.sources[key]) for key, value in shown_settings(loaded.config).items()}
    return rows | _sizes(loaded)


def shown_settings(config: Config) -> dict[str, Any]:
    """Return the configured value or the default of every setting, by key."""
    return {dotted(key): _shown(value) for key, value in values_of(config)}


def comparable_settings(config: Config) -> dict[str, list[Any]]:
    """Return the shown value of every setting, and a digest of the secrets in it, because all secrets look the same."""
    digests = {key: sha256("\0".join(secrets_in(value)).encode()).hexdigest() for key, value in values_of(config)}
    return {dotted(key): [_shown(value), digests[key]] for key, value in values_of(config)}


def _sizes(loaded: LoadedConfig) -> dict[str, tuple[Any, str]]:
    """Return the effective values of model limits that are not configured, and the source of each value."""
    model, capacity = loaded.config.model, capacity_in(loaded.config.model)
    known = {
        "model.context_length": (model.context_length, capacity.context_length, capacity.context_from),
        "model.max_output_tokens": (model.max_output_tokens, capacity.usual_output, capacity.output_from),
    }
    rows: dict[str, tuple[Any, str]] = {}
    for name, (configured, tokens, source) in known.items():
        if configured is None:
            by = "assumed" if source is SizeSource.ASSUMED else window_from(source)
            rows[name] = (tokens, f"{DEFAULT_SOURCE}: {by}; the gateway asks the provider at the first turn")
    return rows


def _shown(value: Any) -> Any:
    """Return a value for display, with secrets and passwords in addresses masked."""
    if isinstance(value, SecretStr):
        return MARK
    if isinstance(value, str):
        return redact(re.sub(r"(://[^\s/?#@:]*:)[^\s/?#@]+(?=@)|(?<=password=)[^\s&#]+", rf"\1{MARK}", value))
    if is_block(type(value)):
        return {key: _shown(getattr(value, key)) for key in fields_of(type(value))}
    if isinstance(value, Mapping):
        return {name: _shown(inner) for name, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def setting_text(value: Any) -> str:
    """Return a value as readable text in one line. Text is cut to 60 characters, but lists are not."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, Mapping)):
        # A block in a list is shown only by its name. `--json` shows it in full.
        names = (str(one.get("name", one) if isinstance(one, Mapping) else one) for one in value)
        return ", ".join(names) or "-"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
