"""The fake Discord's gateway: WebSocket sessions, events, RESUME, and the ways in which a connection can end."""

import asyncio
import contextlib
import json
import secrets
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import WSMsgType, web

from tests.fakes import labkit
from tests.fakes.discord_state import Discord
from tests.fakes.labkit import Json

try:
    import zstandard
except ImportError:  # the module is optional; clients then use zlib
    zstandard = None  # type: ignore[assignment, unused-ignore]  # the module, where it is installed

INTENT = {
    "GUILDS": 1 << 0,
    "GUILD_MESSAGES": 1 << 9,
    "GUILD_MESSAGE_REACTIONS": 1 << 10,
    "DIRECT_MESSAGES": 1 << 12,
    "DIRECT_MESSAGE_REACTIONS": 1 << 13,
    "MESSAGE_CONTENT": 1 << 15,
}
ENDING_CODES = (1000, 1001, 4003, 4004, 4007, 4009, 4010, 4011, 4012, 4013, 4014)
"""Close codes from the server after which a client cannot resume its session."""

MAX_PAYLOAD_BYTES = 4096
REPLAY = 10_000
RESUME_SECONDS = 120.0


class Session:
    """Session that a client can resume: its events so far, and the connection that carries them (or None)."""

    def __init__(self, intents: int, shard: Sequence[int] | None) -> None:
        self.id = secrets.token_hex(16)
        self.intents, self.shard = intents, shard
        self.seq = 0
        self.buffer: deque[Json] = deque(maxlen=REPLAY)
        self.conn: Conn | None = None
        self.lost_at = 0.0
        """Monotonic seconds at which the last connection ended."""


class Conn:
    """One WebSocket connection."""

    def __init__(self, ws: web.WebSocketResponse, request: web.Request, compress: str, number: int) -> None:
        self.ws, self.request, self.compress, self.number = ws, request, compress, number
        self._zlib = zlib.compressobj() if compress == "zlib-stream" else None
        wants_zstd = compress == "zstd-stream" and zstandard is not None
        self._zstd = zstandard.ZstdCompressor().compressobj() if wants_zstd else None
        self.session: Session | None = None
        self.last_beat = time.monotonic()
        self.mute = False
        """True if heartbeats are not answered."""
        self.closed_by_us: int | None = None
        self._lock = asyncio.Lock()

    async def send(self, op: int, data: object = None) -> None:
        await self.send_payload({"op": op, "d": data, "s": None, "t": None})

    async def send_payload(self, payload: Json) -> None:
        raw = json.dumps(payload).encode()
        async with self._lock:
            if self.ws.closed:
                return
            with contextlib.suppress(ConnectionError, RuntimeError):  # the client has disconnected
                if self._zlib:
                    await self.ws.send_bytes(self._zlib.compress(raw) + self._zlib.flush(zlib.Z_SYNC_FLUSH))
                elif self._zstd:
                    packed = self._zstd.compress(raw)
                    await self.ws.send_bytes(packed + self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
                else:
                    await self.ws.send_str(raw.decode())


def needed_intent(event: str, data: Mapping[str, Any]) -> int:
    """Return the intent that a session needs to get this event, or 0 if it needs none."""
    is_direct = not data.get("guild_id")
    if event.startswith("MESSAGE_REACTION_"):
        return INTENT["DIRECT_MESSAGE_REACTIONS" if is_direct else "GUILD_MESSAGE_REACTIONS"]
    if event.startswith("MESSAGE_"):
        return INTENT["DIRECT_MESSAGES" if is_direct else "GUILD_MESSAGES"]
    if event.startswith(("THREAD_", "CHANNEL_")):
        return 0 if is_direct else INTENT["GUILDS"]
    return 0


class Gateway:
    """Sessions and connections of one fake Discord."""

    def __init__(self, discord: Discord) -> None:
        self._discord = discord

    # Outgoing events

    async def dispatch(self, event: str, data: Json) -> None:
        """Send an event to every session that wants it, whether connected or still resumable."""
        need = needed_intent(event, data)
        for session in list(self._discord.sessions.values()):
            if (not need or session.intents & need) and not self._is_expired(session):
                await self.dispatch_to(session, event, data)

    async def dispatch_to(self, session: Session, event: str, data: Json) -> None:
        if event in ("MESSAGE_CREATE", "MESSAGE_UPDATE") and not session.intents & INTENT["MESSAGE_CONTENT"]:
            data = self._without_content(data)
        session.seq += 1
        payload = {"op": 0, "t": event, "s": session.seq, "d": data}
        session.buffer.append(payload)
        if session.conn:
            await session.conn.send_payload(payload)

    def _without_content(self, data: Json) -> Json:
        bot_id = self._discord.bot["id"]
        is_named = any(user["id"] == bot_id for user in data.get("mentions", []))
        if not data.get("guild_id") or is_named or data["author"]["id"] == bot_id:
            return data
        return {**data, "content": "", "attachments": [], "embeds": [], "components": []}

    def _is_expired(self, session: Session) -> bool:
        away = time.monotonic() - session.lost_at
        return session.conn is None and away > RESUME_SECONDS

    async def _ready(self, session: Session) -> None:
        discord = self._discord
        ready: Json = {
            "v": 10,
            "user": {**discord.bot, "verified": True, "mfa_enabled": False, "email": None},
            "user_settings": {},
            "relationships": [],
            "private_channels": [],
            "presences": [],
            "guilds": [{"id": guild_id, "unavailable": True} for guild_id in discord.guilds],
            "session_id": session.id,
            "resume_gateway_url": discord.base.replace("http", "ws", 1) + "/gateway",
            "session_type": "normal",
            "application": {"id": discord.app_id, "flags": 1 << 18 | 1 << 19},
            "_trace": ["lab"],
        }
        if session.shard:
            ready["shard"] = session.shard
        await self.dispatch_to(session, "READY", ready)
        if session.intents & INTENT["GUILDS"]:
            for guild_id in discord.guilds:
                await self.dispatch_to(session, "GUILD_CREATE", discord.guild_payload(guild_id))

    # Connections

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one WebSocket connection from its first to its last message."""
        discord = self._discord
        if rule := discord.faults.take("GATEWAY connect"):
            answer = await labkit.apply_common_fault(request, rule)
            if answer is not None:
                return answer
            if rule["kind"] in ("status", "429"):
                return web.Response(status=int(rule.get("status", 429)))
        ws = web.WebSocketResponse(max_msg_size=0, compress=False, timeout=1.0)
        await ws.prepare(request)
        conn = Conn(ws, request, request.query.get("compress", ""), next(discord.connection_numbers))
        discord.conns.append(conn)
        await discord.gateway_log.add(event="connect", conn=conn.number, query=dict(request.query))
        reaper = asyncio.create_task(self._reap(conn))
        try:
            await conn.send(10, {"heartbeat_interval": discord.config["heartbeat_ms"], "_trace": ["lab"]})
            async for frame in ws:
                if frame.type in (WSMsgType.TEXT, WSMsgType.BINARY) and not await self._on_frame(conn, frame.data):
                    break
        finally:
            reaper.cancel()
            await self._forget(conn)
        return ws

    async def _forget(self, conn: Conn) -> None:
        discord, session = self._discord, conn.session
        if conn in discord.conns:
            discord.conns.remove(conn)
        if session and session.conn is conn:
            session.conn, session.lost_at = None, time.monotonic()
            # A session ends if its client closes with 1000 or 1001, or if the server closes with one of `ENDING_CODES`.
            client_left = conn.closed_by_us is None and conn.ws.close_code in (1000, 1001)
            if client_left or conn.closed_by_us in ENDING_CODES:
                discord.sessions.pop(session.id, None)
        await discord.gateway_log.add(event="disconnect", conn=conn.number, code=conn.ws.close_code)

    async def _reap(self, conn: Conn) -> None:
        while True:
            interval = self._discord.config["heartbeat_ms"] / 1000
            await asyncio.sleep(interval / 2)
            silence = time.monotonic() - conn.last_beat
            if self._discord.config["enforce_heartbeat"] and silence > interval * 2:
                await self.close(conn, 4009, "session timed out")
                return

    async def close(self, conn: Conn, code: int, reason: str = "") -> None:
        conn.closed_by_us = code
        await self._discord.gateway_log.add(event="server_close", conn=conn.number, code=code, reason=reason)
        await conn.ws.close(code=code, message=reason.encode())

    # Incoming payloads. A handler returns False to end the connection

    async def _on_frame(self, conn: Conn, raw: str | bytes) -> bool:
        if len(raw) > MAX_PAYLOAD_BYTES:
            await self.close(conn, 4002, "payload too large")
            return False
        try:
            payload = json.loads(raw)
        except ValueError:
            await self.close(conn, 4002, "decode error")
            return False
        return await self._on_payload(conn, payload.get("op"), payload.get("d"))

    async def _on_payload(self, conn: Conn, op: object, data: Any) -> bool:
        if op == 1:
            conn.last_beat = time.monotonic()
            if not conn.mute:
                await conn.send(11)
            return True
        shown = {key: value for key, value in data.items() if key != "token"} if isinstance(data, dict) else data
        await self._discord.gateway_log.add(event=f"op{op}", conn=conn.number, d=shown)
        if op == 2:
            return await self._identify(conn, data)
        if op == 6:
            return await self._resume(conn, data)
        if conn.session is None:
            return await self._refuse(conn, 4003, "Not authenticated.")
        if op in (3, 4):
            return True
        return await self._refuse(conn, 4001, "Unknown opcode.")

    async def _refuse(self, conn: Conn, code: int, reason: str) -> bool:
        await self.close(conn, code, reason)
        return False

    async def _identify(self, conn: Conn, data: Json) -> bool:
        config = self._discord.config
        if conn.session:
            return await self._refuse(conn, 4005, "already authenticated")
        rule = self._discord.faults.take("IDENTIFY")
        if rule and rule["kind"] in ("close", "status"):
            return await self._refuse(conn, int(rule.get("code") or rule.get("status") or 4000), "fault")
        if not self._discord.token_ok(data.get("token", "")):
            return await self._refuse(conn, 4004, "Authentication failed.")
        intents: int = data.get("intents") or 0
        if intents & int(config["disallowed_intents"]):
            return await self._refuse(conn, 4014, "Disallowed intent(s).")
        session = Session(intents, data.get("shard"))
        session.conn, conn.session = conn, session
        self._discord.sessions[session.id] = session
        await self._ready(session)
        return True

    async def _resume(self, conn: Conn, data: Json) -> bool:
        if not self._discord.token_ok(data.get("token", "")):
            return await self._refuse(conn, 4004, "Authentication failed.")
        session = self._discord.sessions.get(data.get("session_id") or "")
        if session is None or self._is_expired(session):
            if session is not None:
                self._discord.sessions.pop(session.id, None)
            await conn.send(9, False)
            return True
        seq = int(data.get("seq") or 0)
        if seq > session.seq:
            return await self._refuse(conn, 4007, "Invalid seq.")
        old = session.conn
        session.conn, conn.session = conn, session
        if old and old is not conn:
            await old.ws.close(code=4000)
        for row in [row for row in session.buffer if row["s"] > seq]:
            await conn.send_payload(row)
        await self.dispatch_to(session, "RESUMED", {"_trace": ["lab"]})
        return True

    # Control API

    async def act(self, data: Mapping[str, Any]) -> Json:
        """Apply an action to every connection. See `gateway` in the control API."""
        hit = list(self._discord.conns)
        for conn in hit:
            await self._act_on(conn, data)
        if data.get("action") == "forget_sessions":
            for session in list(self._discord.sessions.values()):
                if session.conn is None:
                    self._discord.sessions.pop(session.id, None)
        return {"connections": [conn.number for conn in hit]}

    async def _act_on(self, conn: Conn, data: Mapping[str, Any]) -> None:
        match data.get("action", "drop"):
            case "drop":
                labkit.rst(conn.request)
            case "close":
                await self.close(conn, int(data.get("code", 4000)), data.get("reason", "lab"))
            case "reconnect":
                await conn.send(7)
            case "invalid_session":
                if not data.get("resumable") and conn.session:
                    self._discord.sessions.pop(conn.session.id, None)
                await conn.send(9, bool(data.get("resumable")))
            case "mute":
                conn.mute = True
