"""The key `webhooks`: signed webhooks by name."""

import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from gateway.config.blocks import checked_block, fields_of
from hermes_state.setting_types import keyed
from platforms.settings import HookSettings


def _hooks(value: object) -> Mapping[str, HookSettings]:
    """Return a mapping from name to webhook. In an environment variable, it is written as JSON."""
    found: dict[str, HookSettings] = {}
    for name, row in keyed(value).items():
        if not isinstance(name, str) or re.fullmatch(r"[a-z0-9_-]{1,32}", name) is None:
            raise ValueError(f"{name!r} cannot be the name of a webhook: use at most 32 of the characters a-z 0-9 - _")
        if not isinstance(row, Mapping) or "secret" not in row:
            raise ValueError(f"{name} must be a block with secret, and with chat or url")
        found[name] = checked_block(HookSettings, row, name, fields_of(HookSettings))
        if bool(found[name].chat) == (found[name].url is not None):
            raise ValueError(f"{name}: set either chat (requests become messages) or url (events are sent)")
    return found


Webhooks: TypeAlias = Annotated[dict[str, HookSettings], BeforeValidator(_hooks)]
