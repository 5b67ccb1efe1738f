"""Search services of the web: how each is asked, and where its results stand in what it answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from hermes_state.errors import ToolError

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """An HTTP request for results: a GET, or a POST where there is a body."""

    url: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One page that was found."""

    url: str
    title: str
    text: str


class SearchClient(Protocol):
    """A service that searches the web."""

    @property
    def name(self) -> str:
        """As people know it."""

    def request(self, query: str, count: int) -> SearchRequest: ...

    def results(self, answer: Json) -> Iterator[SearchResult]:
        """The results in an answer; anything may be missing. Raises `ToolError` where it searched in vain."""

    @property
    def refusals(self) -> Mapping[int, str]:
        """Reasons by HTTP status, for those that this service uses in its own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearxngClient:
    """SearXNG, a search engine that one runs oneself, at `url`."""

    url: str
    key: str = field(default="", repr=False)
    """Sent as a bearer token, for one behind a proxy that wants it."""
    name: str = "SearXNG"
    refusals: Mapping[int, str] = field(
        default_factory=lambda: {403: "it does not give JSON: its settings.yml must have json in search.formats"}
    )

    def request(self, query: str, count: int) -> SearchRequest:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return SearchRequest(url=f"{self.url}/search", query={"q": query, "format": "json"}, headers=headers)

    def results(self, answer: Json) -> Iterator[SearchResult]:
        rows = _rows(answer, "results")
        silent = answer.get("unresponsive_engines")
        if not rows and silent and isinstance(silent, list):
            told = ", ".join(": ".join(map(str, one)) if isinstance(one, list) else str(one) for one in silent)
            raise ToolError(f"the search found nothing because its engines do not answer ({told[:300]})")
        return (_result(row, "content") for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BraveClient:
    """Brave's search API."""

    key: str = field(repr=False)
    url: str = "https://api.search.brave.com"
    name: str = "Brave"
    refusals: Mapping[int, str] = field(default_factory=lambda: {422: REJECTED_KEY})

    def request(self, query: str, count: int) -> SearchRequest:
        given = {"q": query[:400], "count": str(count)}  # it refuses longer ones
        return SearchRequest(
            url=f"{self.url}/res/v1/web/search", query=given, headers={"X-Subscription-Token": self.key}
        )

    def results(self, answer: Json) -> Iterator[SearchResult]:
        web = answer.get("web")
        return (_result(row, "description") for row in _rows(web if isinstance(web, dict) else {}, "results"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TavilyClient:
    """Tavily's search API."""

    key: str = field(repr=False)
    url: str = "https://api.tavily.com"
    name: str = "Tavily"
    refusals: Mapping[int, str] = field(default_factory=lambda: dict.fromkeys((432, 433), "its plan is used up"))

    def request(self, query: str, count: int) -> SearchRequest:
        headers = {"Authorization": f"Bearer {self.key}"}
        return SearchRequest(
            url=f"{self.url}/search", headers=headers, body={"query": query[:400], "max_results": count}
        )

    def results(self, answer: Json) -> Iterator[SearchResult]:
        return (_result(row, "content") for row in _rows(answer, "results"))


REJECTED_KEY = "it does not accept the key (web.search_key)"


def _rows(answer: Json, name: str) -> list[Json]:
    found = answer.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _result(row: Json, text: str) -> SearchResult:
    return SearchResult(url=str(row.get("url") or ""), title=str(row.get("title") or ""), text=str(row.get(text) or ""))
