"""The configuration of one agent: the top level of the configuration with the agent's own keys laid over it."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.config.agents import AGENT_BLOCKS, AGENT_CAPS, OWN_KEYS
from gateway.config.blocks import did_you_mean
from gateway.config.fields import BLOCKS
from gateway.config.files import KeyPath
from gateway.config.routes import RouteConfig, written_route
from gateway.config.settings import Config, ModelConfig
from gateway.config.tool_settings import ApprovalConfig, PolicyWord, ToolsConfig, ToolSwitch
from hermes_state.values import ToolEffect

SHARED_NOTES = "_shared"
"""Folder in `agents/` with the notes about people of agents that share them, if the unnamed agent does not."""

_SWITCHES: tuple[ToolSwitch, ...] = ("on", "admins", "off")  # the strictest word comes last
_POLICIES: tuple[PolicyWord, ...] = ("allow", "ask", "ask_admin", "deny")


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Checked configuration of one agent."""

    config: Config
    skills: Path
    name: str = ""
    persona_file: Path | None = None
    """File with the persona. None: `agent.persona` or `SOUL.md`."""
    daily_cap: float | None = None
    """Maximum spending of this agent per day. `config.costs.daily_cap` limits all agents together."""
    shares_notes: bool = False
    """True if other agents that share their notes about people can read and write this agent's."""

    @property
    def has_caps(self) -> bool:
        return self.daily_cap is not None or self.config.costs.has_caps


def is_agent_key(key: KeyPath) -> bool:
    """Return True if an agent can override this key."""
    return key[0] in AGENT_BLOCKS or (key[0] == "costs" and key[-1] in AGENT_CAPS)


def unknown_agent_key(key: KeyPath) -> str:
    known = (*OWN_KEYS, *AGENT_BLOCKS, *(f"costs.{cap}" for cap in AGENT_CAPS))
    name = ".".join(key)
    if key in BLOCKS:
        return f"{name} is a block, not a value"
    return f"unknown key {name}{did_you_mean(name, known) or '; valid keys: ' + ', '.join(known)}"


def completed_agent(
    name: str, laid: Config, top: Config, own: Mapping[str, Any], keys: Collection[KeyPath], home: Path
) -> AgentConfig:
    """Return the configuration of an agent. `laid`: the top level `top` with the blocks of the agent laid over it.

    `own` has the keys that only agents have, and `keys` names the other keys that the agent sets. Raises `ValueError`
    with a message of the form `key: message`.
    """
    costs = laid.costs.model_copy(update={"daily_cap": top.costs.daily_cap})
    agent = AgentConfig(
        name=name,
        config=laid.model_copy(update={"costs": costs, "tools": _tools(laid.tools, top.tools, keys)}),
        daily_cap=laid.costs.daily_cap if ("costs", "daily_cap") in keys else None,
        skills=_folder(home, own.get("skills") or "skills"),
        shares_notes=_switch(own.get("shared_notes", False)),
    )
    persona = own.get("persona")
    if persona is not None and not (isinstance(persona, str) and persona.strip()):
        raise ValueError("persona: must be a text, or the name of a file that ends in .md")
    if persona and persona.endswith(".md") and "\n" not in persona:
        if not (file := home / persona).is_file():
            raise ValueError(f"persona: there is no file {file}")
        agent = replace(agent, persona_file=file)
    elif persona:
        text = dataclasses.replace(laid.agent, persona=persona)
        agent = replace(agent, config=agent.config.model_copy(update={"agent": text}))
    if own.get("model") is not None:
        model = _model(top.model, own["model"])
        agent = replace(agent, config=agent.config.model_copy(update={"model": model}))
    return agent


def _tools(laid: ToolsConfig, top: ToolsConfig, keys: Collection[KeyPath]) -> ToolsConfig:
    """Add an agent's switches and approval policies to those of the top level. `*` replaces all switches there.

    The top level's switches and policies for places can make those that the agent sets stricter, but not looser.
    """

    def added(own: dict[str, ToolSwitch], to: dict[str, ToolSwitch]) -> dict[str, ToolSwitch]:
        return own if "*" in own else {**to, **own}

    own_use = laid.use if ("tools", "use") in keys else {}
    use_on = {place: _limited_switches(switches, own_use) for place, switches in top.use_on.items()}
    if ("tools", "use_on") in keys:
        use_on |= {place: added(own, use_on.get(place, {})) for place, own in laid.use_on.items()}
    names = {key[-1] for key in keys if key[:2] == ("tools", "approval")}
    approval_on = {place: _limited_policies(one, laid.approval, names) for place, one in top.approval_on.items()}
    if ("tools", "approval_on") in keys:
        approval_on |= laid.approval_on
    return laid.model_copy(update={"use": added(laid.use, top.use), "use_on": use_on, "approval_on": approval_on})


def _limited_switches(place: dict[str, ToolSwitch], own: dict[str, ToolSwitch]) -> dict[str, ToolSwitch]:
    names = place.keys() | (own.keys() if "*" in place else ())
    blocks = {name: [block.get(name, block.get("*")) for block in (place, own)] for name in names}
    return {name: max(filter(None, words), key=_SWITCHES.index) for name, words in blocks.items()}


def _limited_policies(place: ApprovalConfig, own: ApprovalConfig, names: Collection[str]) -> ApprovalConfig:
    """Return the policies of a place, but those that the agent sets (`names`) at least as strict as its own."""
    pairs = {name: (getattr(place, name), getattr(own, name)) for name in names if name != "mcp"}
    values = {name: max(words, key=_POLICIES.index) for name, words in pairs.items()}
    is_set = "mcp" in names or (names and own.mcp is None)  # `mcp` can follow from the other policies
    if is_set and (place.mcp or own.mcp):
        words = [one.policy_of(effect, is_mcp=True) for one in (place, own) for effect in ToolEffect]
        values["mcp"] = max(words, key=_POLICIES.index)
    return place.model_copy(update=values)


def _folder(home: Path, name: object) -> Path:
    if not isinstance(name, str) or not (folder := home / name).is_relative_to(home) or ".." in folder.parts:
        raise ValueError("skills: must be the name of a folder in the state directory")
    if name != "skills" and not folder.is_dir():
        raise ValueError(f"skills: there is no folder {folder}")
    return folder


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("shared_notes: must be true or false")
    return value


def _model(top: ModelConfig, written: object) -> ModelConfig:
    """Return the settings of an agent's model. Aliases and fallbacks keep their meaning at the top level."""
    if not isinstance(written, str | Mapping):
        raise ValueError("model: must be an alias, the name of a model, or a block with name, base_url and api_key")
    try:
        if not isinstance(written, str):
            written = {"name": top.name, **written_route(written, "model")}
        route = top.named_route(written)
    except ValueError as error:
        raise ValueError(f"model: {error}") from None
    if (complaint := route.complaint("model")) is not None:
        raise ValueError(f"model: {complaint}")
    values = {name: getattr(top, name) for name in ModelConfig.model_fields if name not in RouteConfig.model_fields}
    values["aliases"] = {alias: _block(top.alias_route(alias)) for alias in top.aliases}
    values["fallbacks"] = [_block(one) for one in top.fallback_routes]
    return ModelConfig(**{**_block(route), **values})


def _block(route: RouteConfig) -> dict[str, Any]:
    """Return the keys of a complete route."""
    return {name: value for name in RouteConfig.model_fields if (value := getattr(route, name)) not in (None, {})}
