"""Probes of services for `init` and `doctor`: one short request each, to check the address and the key.

They use blocking requests of the standard library, because importing the SDKs would take longer. Only requests through
a proxy use the gateway's own connections. They do not follow redirects, because the host of the new address would
receive the key.

Each probe returns one sentence for the operator, without secrets. On failure it raises `CommandError` with a sentence.
"""

import asyncio
import difflib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from agent.model.catalog import DATE
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.config.writing import DISCORD_TOKEN, MODEL_NAME, TELEGRAM_TOKEN
from hermes_state.errors import CommandError
from hermes_state.network import NetworkSettings, Target
from hermes_state.setting_types import plain
from platforms.settings import DiscordSettings, TelegramSettings

_Fetch: TypeAlias = Callable[..., tuple[int, Mapping[str, Any]]]

PRIVACY_MODE = (
    " Its privacy mode is on, so Telegram sends it only messages to it, except in groups where it is an admin. To use "
    "/groupcontext, send /setprivacy to @BotFather, choose Disable, and add the bot to the group again."
)


def probe_telegram(settings: TelegramSettings, network: NetworkSettings, *, explains_groups: bool = False) -> str:
    """Call `getMe` with the configured token. `explains_groups`: also explain privacy mode if it is on."""
    status, body = _fetch(f"{settings.base_url}/bot{plain(settings.token)}/getMe", network=network, target="telegram")
    if status == 200 and isinstance(body.get("result"), dict):
        is_private = explains_groups and body["result"].get("can_read_all_group_messages") is False
        return f"The Telegram token works. The bot is @{body['result'].get('username')}.{PRIVACY_MODE * is_private}"
    if status in (401, 404):
        raise CommandError("Telegram rejected this token. @BotFather shows the right one.")
    raise CommandError(_trouble("Telegram", settings.base_url, status, body))


def probe_discord(settings: DiscordSettings, network: NetworkSettings) -> str:
    """Call `users/@me` with the configured token."""
    agent = "DiscordBot (hermes-gateway, 0)"  # Discord refuses user agents that do not name a bot
    headers = {"Authorization": f"Bot {plain(settings.token)}", "User-Agent": agent}
    url = f"{settings.api_url}/api/v10/users/@me"
    status, body = _fetch(url, headers, network=network, target="discord")
    if status == 200:
        return f"The Discord token works. The bot is {body.get('username')}."
    if status == 401:
        raise CommandError("Discord rejected this token. Create a new one in the developer portal.")
    raise CommandError(_trouble("Discord", settings.api_url, status, body))


class UnlistedModelError(CommandError):
    """The server responds, but its list of models does not contain the model."""


def probe_model(settings: RouteConfig, network: NetworkSettings, *, may_call: bool = False, audio: str = "") -> str:
    """Request the list of models. If there is no list and `may_call` is set, request one token from the model.

    `audio`: path of an audio API, which is called without parameters instead of the chat API.
    """
    base, fetch = _model_root(settings, network)
    status, body, names = _listed_models(settings, base, fetch)
    if names is not None:
        if settings.name is None or _is_listed(settings.name, names):
            return f"The model's server answers at {base}."
        path, call = _smallest_call(settings)
        if may_call and fetch(f"{base}/{path}", body=call)[0] == 200:  # some lists are incomplete
            return f"The model's server answers at {base}. It does not list {settings.name}, but accepts calls for it."
        raise UnlistedModelError(
            f"The model's server answers at {base}, but does not list {settings.name}{_nearest(settings.name, names)}"
        )
    if status in (200, 404, 405):
        path, call = (audio, {}) if audio else _smallest_call(settings)
        # Every API refuses a call without parameters, so this call costs nothing.
        status, body = fetch(f"{base}/{path}", body={})
        if status in (404, 405) or (status == 200 and (not body or "error" in body)):
            raise CommandError(f"No API was found at {base}/{path}: {_better_root(settings, base, fetch)}")
        if status not in (0, 401, 403) and not may_call:
            return f"The model's server answers at {base}. It has no model list, so the name could not be checked."
        status, body = fetch(f"{base}/{path}", body=call) if may_call else (status, body)
    if status == 200:
        return f"The model's server answers at {base}."
    if status in (401, 403):
        reason = "rejected the API key" if settings.api_key else "requires a key (api_key)"
        raise CommandError(f"The model's server at {base} {reason}.")
    raise CommandError(_trouble("The model's server", base, status, body))


def _probe_model_in(config: Config) -> str:
    if config.model.protocol == "offline":
        return "The built-in offline model answers."
    return probe_model(config.model, config.network, may_call=True)


PROBES: Mapping[str, Callable[[Config], str]] = {
    TELEGRAM_TOKEN: lambda config: probe_telegram(config.telegram, config.network),
    DISCORD_TOKEN: lambda config: probe_discord(config.discord, config.network),
    MODEL_NAME: _probe_model_in,
}
"""Probe of each service, keyed by the first variable that `init` and the set-up page ask for."""


def served_models(base_url: str, *, timeout_seconds: float) -> tuple[str, ...] | None:
    """Return at most 50 chat models that a server on this machine lists, or None if it is not a model server."""
    status, body = _fetch(f"{base_url}/models", timeout_seconds=timeout_seconds)
    rows = body.get("data")
    if status != 200 or not isinstance(rows, list):
        return None
    names = [str(row["id"]) for row in rows[:200] if isinstance(row, dict) and row.get("id")]
    return tuple(name for name in names if len(name) <= 200 and "embed" not in name.lower())[:50]


def _model_root(settings: RouteConfig, network: NetworkSettings) -> tuple[str, _Fetch]:
    """Return the root URL of the API, and a function that sends requests with the key."""
    key, base = settings.plain_key, (settings.address or "").rstrip("/")
    headers = ({"Authorization": f"Bearer {key}"} if key else {}) | settings.plain_headers
    if settings.protocol == "anthropic":
        base, headers = f"{base.removesuffix('/v1')}/v1", {"anthropic-version": "2026-10-21", **headers}
    return base, partial(_fetch, headers=headers, network=network)


def _listed_models(
    settings: RouteConfig, base: str, fetch: _Fetch
) -> tuple[int, Mapping[str, Any], frozenset[str] | None]:
    """Return the HTTP status, the body, and the names in the list of models (None if there is no list)."""
    status, body = fetch(f"{base}/models{'?limit=1000' if settings.protocol == 'anthropic' else ''}")
    if status != 200 or not isinstance(body.get("data", ""), list | None):
        return status, body, None
    rows = [row for row in body["data"] or () if isinstance(row, dict)]
    if any(row.get("owned_by") == "llamacpp" for row in rows):
        return status, body, None  # the server has a single model and uses it for any name
    named = [row.get("id") for row in rows]
    named += [name for row in rows if isinstance(row.get("aliases"), list) for name in row["aliases"]]
    return status, body, frozenset(str(name).removeprefix("models/") for name in named if name)


def _is_listed(name: str, names: frozenset[str]) -> bool:
    """Return True if the list contains the name, with or without its tag or followed by a date."""
    bare, _, tag = name.removeprefix("models/").partition(":")
    forms = {bare, f"{bare}:{tag or 'latest'}"}
    return any(one in forms or DATE.sub("", one) in (bare, bare.removesuffix("-latest")) for one in names)


def _nearest(name: str, names: frozenset[str]) -> str:
    """Return the end of a sentence that suggests similar names from the list."""
    if alike := difflib.get_close_matches(name, names, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(alike)}?"
    nearest = difflib.get_close_matches(name, names, n=5, cutoff=0.0)
    more = len(names) - len(nearest)
    return f". It lists {', '.join(nearest) or 'no model'}{f' and {more} more' if more else ''}."


def _better_root(settings: RouteConfig, base: str, fetch: _Fetch) -> str:
    """Return advice on `base_url`. If the same host has a list of models at another path, suggest that path."""
    roots = ("/v1", "/api/v1", "/openai/v1", "/api/paas/v4", "/v1beta/openai", "/compatible-mode/v1")
    for address in (urljoin(base, root) for root in roots):
        if address != base and _listed_models(settings, address, fetch)[2] is not None:
            return f"base_url has no path or a wrong path; did you mean {address}?"
    return "base_url has no path or a wrong path. See the provider's documentation."


def _smallest_call(settings: RouteConfig) -> tuple[str, object]:
    messages = [{"role": "user", "content": "Say ok."}]
    if settings.protocol == "responses":
        return "responses", {"model": settings.name, "input": messages, "max_output_tokens": 16}  # minimum of this API
    path = "messages" if settings.protocol == "anthropic" else "chat/completions"
    return path, {"model": settings.name, "messages": messages, "max_tokens": 1}


def _trouble(who: str, address: str, status: int, body: Mapping[str, Any]) -> str:
    if status == 0:
        return f"{who} cannot be reached at {address}: {body['reason']}."
    return f"{who} at {address} answered with HTTP status {status}."


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _fetch(
    url: str,
    headers: Mapping[str, str] | None = None,
    body: object = None,
    *,
    timeout_seconds: float = 5.0,
    network: NetworkSettings | None = None,
    target: Target = "model",
) -> tuple[int, Mapping[str, Any]]:
    """Return the HTTP status and the JSON object of the response. A JSON list becomes `{"data": …}`.

    If there is no response, return 0 and a `reason`. Without `network`, use no proxy.
    """
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    if network is not None and network.route(target)(urlsplit(url).scheme, urlsplit(url).hostname or "") is not None:
        method = "GET" if data is None else "POST"
        return asyncio.run(_fetch_by_proxy(network, target, timeout_seconds, method, url, data=data, headers=sent))
    request = urllib.request.Request(url, data=data, headers=sent)
    opener = urllib.request.build_opener(_NoRedirectHandler, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_seconds) as answer:
            return answer.status, _object(answer.read(4_194_304))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}
    except (OSError, HTTPException, ValueError) as error:
        return 0, {"reason": str(getattr(error, "reason", error)) or type(error).__name__}


async def _fetch_by_proxy(
    network: NetworkSettings, target: Target, seconds: float, method: str, url: str, **options: Any
) -> tuple[int, Mapping[str, Any]]:
    import aiohttp

    from agent.tools.web.fetching import read_body
    from hermes_state.connector import connector_for, proxy_fault

    session = aiohttp.ClientSession(connector=connector_for(network, target), timeout=aiohttp.ClientTimeout(seconds))
    try:
        async with session, session.request(method, url, allow_redirects=False, **options) as answer:
            body, _ = await read_body(answer, 4_194_304)
            return answer.status, _object(body) if answer.status < 300 else {}
    except (aiohttp.ClientError, OSError) as error:
        return 0, {"reason": proxy_fault(error) or str(error) or "timed out"}


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {"data": value} if isinstance(value, list) else {}
