"""Tool `web_search`: searches the web with the configured search service."""

import asyncio
import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import orjson
from msgspec import Meta

from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from agent.tools.web.fetching import UNTRUSTED, check_secret, read_body, retry_after
from hermes_state.errors import ToolError
from hermes_state.network import NetworkSettings
from hermes_state.text import counted, enclosed, shortened, well_formed
from hermes_state.values import ToolEffect

Json: TypeAlias = dict[str, Any]

_REJECTED_KEY = "it rejected the key (web.search_key)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchService:
    """Search service: how to build its requests, and where to find the results in its responses."""

    name: str
    url: str
    asked: Callable[[str, int], Json]
    """Returns the request parameters for a query and a number of results."""
    is_post: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # not in `repr`, because they include the key
    rows: tuple[str, ...] = ("results",)
    """Path of keys to the list of results in a response."""
    text: str = "content"
    """Key of a result's text."""
    refusals: Mapping[int, str] = field(default_factory=dict)
    """Explanations of HTTP statuses that have a special meaning for this service."""
    seconds: float = 30.0


def searxng(url: str, key: str = "") -> SearchService:
    """Return the service for an operator's own SearXNG instance. `key`: bearer token for a proxy in front of it."""
    return SearchService(
        name="SearXNG",
        url=f"{url}/search",
        asked=lambda query, count: {"q": query, "format": "json"},
        headers={"Authorization": f"Bearer {key}"} if key else {},
        refusals={403: "it does not return JSON: add json to search.formats in its settings.yml"},
    )


def brave(key: str, url: str = "https://api.search.brave.com") -> SearchService:
    return SearchService(
        name="Brave",
        url=f"{url}/res/v1/web/search",
        asked=lambda query, count: {"q": query[:400], "count": count},  # Brave refuses longer queries
        headers={"X-Subscription-Token": key},
        rows=("web", "results"),
        text="description",
        refusals={422: _REJECTED_KEY},
    )


def tavily(key: str, url: str = "https://api.tavily.com") -> SearchService:
    return SearchService(
        name="Tavily",
        url=f"{url}/search",
        asked=lambda query, count: {"query": query[:400], "max_results": count},
        is_post=True,
        headers={"Authorization": f"Bearer {key}"},
        refusals=dict.fromkeys((432, 433), "the limit of its plan has been reached"),
    )


class _SearchArguments(Arguments, frozen=True):
    query: str
    count: Annotated[int, Meta(ge=1, le=20)] = 8


def search_tool(
    configured: Callable[[], SearchService | str],
    holds_secret: Callable[[str], bool],
    network: Callable[[], NetworkSettings] = NetworkSettings,
) -> Tool:
    """Return the tool `web_search`. `configured` returns the current service, or the reason why there is none."""
    one_at_a_time = asyncio.Lock()  # some plans allow only one search per second

    @tool(
        description="Search the web. Results are short; web_fetch reads a page.",
        effect=ToolEffect.READ_ONLY,
        why_unavailable=lambda: fault if isinstance(fault := configured(), str) else None,
        timeout_seconds=1_000.0,  # the tool has its own time limits
        step=StepWords(doing="Searching the web for", did="searched the web", about=lambda asked: asked.query),
    )
    async def web_search(search: _SearchArguments, context: ToolContext) -> str:
        query, service = " ".join(search.query.split()), configured()
        if isinstance(service, str):
            raise ToolError(service)
        if not query:
            raise ToolError("the query is empty")
        check_secret(query, holds_secret)
        async with one_at_a_time:
            answer = await _answer(service, query, search.count, network())
        return _told(query, service, _rows(service, answer)[: search.count])

    return web_search


async def _answer(service: SearchService, query: str, count: int, network: NetworkSettings) -> Json:
    """Return a search service's response.

    Raises `ToolError` with the reason if the request fails. The operator chose the address, so private addresses are
    allowed. Redirects are not followed, because they could leak the key.
    """
    import aiohttp

    from hermes_state.connector import connector_for, proxy_fault

    asked = service.asked(query, count)
    try:
        async with (
            asyncio.timeout(service.seconds),
            aiohttp.ClientSession(
                connector=connector_for(network, "web"), headers={"Accept": "application/json", **service.headers}
            ) as session,
            session.request(
                "POST" if service.is_post else "GET",
                service.url,
                params=None if service.is_post else asked,
                json=asked if service.is_post else None,
                allow_redirects=False,
            ) as response,
        ):
            data, _ = await read_body(response, 2_000_000)
    except TimeoutError:
        raise ToolError(f"{service.name} did not answer within {service.seconds:g} seconds") from None
    except (aiohttp.ClientError, ValueError) as error:
        fault = proxy_fault(error) or type(error).__name__
        raise ToolError(f"{service.name} cannot be reached ({fault})") from error
    try:
        answer = orjson.loads(data)
    except ValueError:
        answer = None
    if response.status == 200 and isinstance(answer, dict):
        return answer
    reason = service.refusals.get(response.status) or _reason(response.status, retry_after(response))
    raise ToolError(f"the search with {service.name} failed: {reason}")


def _reason(status: int, wait: int | None) -> str:
    if status in (401, 403):
        return _REJECTED_KEY
    if status == 429:
        return f"too many searches; {f'wait {wait} seconds' if wait else 'wait a little'} before the next"
    if 300 <= status < 400:
        return "it redirects to another address; web.search_url must be corrected"
    if status == 200:
        return "the answer is not JSON; web.search_url may be wrong"
    return f"HTTP status {status}"


def _rows(service: SearchService, answer: Json) -> list[Json]:
    """Return the results in a response. Any field can be missing. Raises `ToolError` if no search engine answered."""
    place: object = answer
    for name in service.rows:
        place = place.get(name) if isinstance(place, dict) else None
    rows = [row for row in place if isinstance(row, dict)] if isinstance(place, list) else []
    silent = answer.get("unresponsive_engines")  # SearXNG
    if not rows and silent and isinstance(silent, list):
        told = ", ".join(": ".join(map(str, one)) if isinstance(one, list) else str(one) for one in silent)
        raise ToolError(f"the search found nothing because its engines did not answer ({told[:300]})")
    return [row for row in rows if str(row.get("url")).startswith(("https://", "http://"))]


def _told(query: str, service: SearchService, found: list[Json]) -> str:
    if not found:
        return f"{service.name} found nothing for {query!r}."
    rows = "\n".join(
        f"{number}. {_plain(row.get('title')) or row['url']}\n   {row['url']}\n   {_plain(row.get(service.text))}"
        for number, row in enumerate(found, start=1)
    )
    head = f"{counted(len(found), 'result')} by {service.name}. {UNTRUSTED}"
    return f"{head}\n<web-results>\n{enclosed('web-results', well_formed(rows))}\n</web-results>"


def _plain(text: object) -> str:
    """Return a result's text without HTML tags, on one line of at most 500 characters."""
    return shortened(html.unescape(re.sub(r"<[^<>]*>", "", str(text or ""))), 500)
