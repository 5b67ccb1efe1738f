"""Tool `web_search`: results of the search service that the operator has configured."""

import asyncio
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agent.tools.arguments import schema, text, whole
from agent.tools.registry import Tool, ToolContext
from agent.tools.web.fetch_tool import UNTRUSTED, check_secret
from agent.tools.web.fetching import read_body, retry_after
from agent.tools.web.search_clients import REJECTED_KEY, Json, SearchClient, SearchResult
from hermes_state.errors import ToolError
from hermes_state.text import counted, enclosed, shortened, well_formed
from hermes_state.values import ToolEffect

_MAX_BYTES = 2_000_000
_MAX_RESULTS = 20
_TEXT_CHARACTERS = 500
"""Longest text of one result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The service that is asked, or the reason why there is none."""

    service: SearchClient | None
    fault: str | None = None
    seconds: float = 30.0


def search_tool(settings: Callable[[], SearchSettings], holds_secret: Callable[[str], bool]) -> Tool:
    """`web_search`."""
    one_at_a_time = asyncio.Lock()  # some plans allow no more than one search in a second

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        query, given = " ".join(arguments["query"].split()), settings()
        if not query or given.service is None:
            raise ToolError(given.fault or "the query must have words")
        check_secret(query, holds_secret)
        async with one_at_a_time:
            answer = await _asked(given.service, query, arguments["count"], given.seconds)
        found = [one for one in given.service.results(answer) if one.url.startswith(("https://", "http://"))]
        return _told(query, given.service.name, found[: arguments["count"]])

    return Tool(
        name="web_search",
        description="Search the web. Results are short; web_fetch reads a page.",
        parameters=schema("query", query=text(), count=whole(8, minimum=1, maximum=_MAX_RESULTS)),
        effect=ToolEffect.READ_ONLY,
        run=run,
        why_unavailable=lambda: settings().fault,
        timeout_seconds=1_000.0,  # it ends itself
    )


async def _asked(service: SearchClient, query: str, count: int, seconds: float) -> Json:
    """The answer of a service. Raises `ToolError` with what is wrong.

    Its address is the operator's own, and may be a private one; a redirect would take the key elsewhere.
    """
    import aiohttp

    request = service.request(query, count)
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(headers={"Accept": "application/json", **request.headers}) as session,
            session.request(
                "GET" if request.body is None else "POST",
                request.url,
                params=request.query,
                json=request.body,
                allow_redirects=False,
            ) as response,
        ):
            data, _ = await read_body(response, _MAX_BYTES)
    except TimeoutError:
        raise ToolError(f"{service.name} did not answer within {seconds:g} seconds") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ToolError(f"{service.name} cannot be reached ({type(error).__name__}); its operator can help") from error
    answer = _json(data)
    if response.status == 200 and answer is not None:
        return answer
    reason = service.refusals.get(response.status) or _reason(response.status, retry_after(response))
    raise ToolError(f"{service.name} did not search: {reason}")


def _json(data: bytes) -> Json | None:
    try:
        answer = orjson.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _reason(status: int, wait: int | None) -> str:
    if status in (401, 403):
        return REJECTED_KEY
    if status == 429:
        return f"too many searches; {f'wait {wait} seconds' if wait else 'wait a little'} before the next"
    if 300 <= status < 400:
        return "it is at another address than web.search_url says"
    if status == 200:
        return "it answers with a page instead of JSON; web.search_url may lead to something else"
    return f"HTTP status {status}"


def _told(query: str, name: str, found: list[SearchResult]) -> str:
    if not found:
        return f"{name} found nothing for {query!r}."
    rows = "\n".join(
        f"{number}. {_plain(one.title) or one.url}\n   {one.url}\n   {_plain(one.text)}"
        for number, one in enumerate(found, start=1)
    )
    head = f"{counted(len(found), 'result')} by {name}. {UNTRUSTED}"
    return f"{head}\n<web-results>\n{enclosed('web-results', well_formed(rows))}\n</web-results>"


_TAG = re.compile(r"<[^<>]*>")


def _plain(text: str) -> str:
    """Text of a result, which may have tags in it, on one line."""
    return shortened(html.unescape(_TAG.sub("", text)), _TEXT_CHARACTERS)
