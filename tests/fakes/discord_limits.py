"""The fake Discord's rate limits: buckets for each route and channel, and one global limit."""

import hashlib
import math
import time
from dataclasses import dataclass, field

from tests.fakes.discord_state import Discord

LIMITS = {
    "POST /channels/:id/messages": (5, 5.0),
    "PATCH /channels/:id/messages/:id": (5, 5.0),
    "DELETE /channels/:id/messages/:id": (5, 1.0),
    "POST /channels/:id/typing": (5, 5.0),
    "GET /channels/:id/messages": (50, 1.0),
    "POST /webhooks/:id/:t": (5, 2.0),
    "PATCH /webhooks/:id/:t/messages/:id": (5, 2.0),
}
"""Number of requests, and the period in seconds, by route."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of checking one request against the limits."""

    headers: dict[str, str] = field(default_factory=dict)
    is_blocked: bool = False
    retry_after: float = 0.0
    is_global: bool = False


def route_key(method: str, path: str) -> tuple[str, str]:
    """Return the route with placeholders, and the part of the path that has a separate bucket."""
    parts = path.strip("/").split("/")
    secret = parts[0] in ("webhooks", "interactions")
    major = parts[:2] if parts[0] in ("channels", "guilds") else parts[:3] if secret else []
    shape = []
    for index, part in enumerate(parts):
        before = parts[index - 1] if index else ""
        if part.isdigit() or part == "@original" or before == "messages":
            shape.append(":id")
        elif secret and index == 2:
            shape.append(":t")
        else:
            shape.append(part)
    return f"{method} /" + "/".join(shape), "/".join(major)


def take(discord: Discord, method: str, path: str) -> Verdict:
    """Count one request, and return the result of the limits."""
    if not discord.config["rate_limits"]:
        return Verdict()
    now = time.monotonic()
    window = discord.global_window
    window.append(now)
    while window and window[0] <= now - 1:
        window.popleft()
    if len(window) > discord.config["global_per_sec"] and not path.startswith("/interactions"):
        headers = {"X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}
        return Verdict(headers, is_blocked=True, retry_after=1.0, is_global=True)
    route, major = route_key(method, path)
    if route not in LIMITS:
        return Verdict()
    return _take_from_bucket(discord, route, major, now)


def _take_from_bucket(discord: Discord, route: str, major: str, now: float) -> Verdict:
    most, span = LIMITS[route]
    name = hashlib.sha256(route.encode()).hexdigest()[:16]
    bucket = discord.buckets.setdefault(f"{name}:{major}", {"left": most, "reset": now + span})
    if now >= bucket["reset"]:
        bucket.update(left=most, reset=now + span)
    is_blocked = bucket["left"] <= 0
    if not is_blocked:
        if bucket["left"] == most:
            bucket["reset"] = now + span
        bucket["left"] -= 1
    after = math.ceil(max(0.0, bucket["reset"] - now) * 1000) / 1000  # rounded up to prevent early retries
    headers = {
        "X-RateLimit-Limit": str(most),
        "X-RateLimit-Remaining": str(max(0, int(bucket["left"]))),
        "X-RateLimit-Reset": f"{time.time() + after:.3f}",
        "X-RateLimit-Reset-After": f"{after:.3f}",
        "X-RateLimit-Bucket": name,
    }
    if is_blocked:
        headers["X-RateLimit-Scope"] = "user"
    return Verdict(headers, is_blocked=is_blocked, retry_after=after if is_blocked else 0.0)
