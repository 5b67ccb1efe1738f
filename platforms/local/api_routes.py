"""OpenAI-compatible API for programs. A client is a person of the web chat, whose chats are its conversations.

A request is stored like a message of a person, and answered when its turn has ended. The answer to a client that has
disconnected stays in the chat. A request with the same `Idempotency-Key` gets it again.
"""

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import structlog
from aiohttp import web

from hermes_state.chats import find_chat
from hermes_state.errors import StateError
from hermes_state.outside import Outcome, find_outcome, find_repeated
from hermes_state.text import well_formed, whole_number
from hermes_state.values import LOCAL_OWNER, ChatKey, InputKind, Millis, TurnState, UserRef
from hermes_state.web_chats import mark_read
from platforms.console import WebPerson
from platforms.local.api_bodies import ApiError, ClientRequest, TurnFailed, read_image, read_request, text_of
from platforms.local.api_shapes import MODEL, ChatShape, ResponseShape, error_body
from platforms.local.chat_routes import ChatRoutes
from platforms.local.chats import LiveChat
from platforms.local.entries import EntryKind
from platforms.local.pages import is_name, named_after
from platforms.local.requests import Handler, PersonHandler
from platforms.local.uploads import MAX_FILES, FormError, SubmittedMessage
from platforms.text import UNREADABLE, parsed_json

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Seconds after which a silent stream sends a comment, which also detects clients that have disconnected."""
REPEAT_MS = 120_000
"""Time in milliseconds after an answer within which its client can repeat the request without a key."""
MAX_OPEN = 16
"""Maximum number of open requests per client, because all clients of an address share its connections."""

_TOO_MANY_OPEN = f"This token has {MAX_OPEN} open requests. Wait until one of them is answered."
_FAULT = "The gateway could not process this request. Its log says why."
_NO_TOKEN = "This token is not valid. Run `hermes-gateway client add NAME` on the gateway's machine to get one."
_NO_DATABASE = "The gateway cannot use its database right now. Try again in a moment."
_UNKNOWN = "This address does not exist. Use POST /v1/chat/completions, POST /v1/responses or GET /v1/models."


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ApiRoutes:
    chats: ChatRoutes
    _open: Counter[UserRef] = field(default_factory=Counter, init=False)
    """Number of open requests per client."""

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self._only(self._models)),
            web.post("/v1/chat/completions", self._only(self._ask)),
            web.post("/v1/responses", self._only(self._ask)),
            web.get("/v1/responses/{id}", self._only(self._retrieve)),
            web.route("*", "/v1/{rest:.*}", self._only(self._refuse)),
        ]

    def _only(self, handler: PersonHandler) -> Handler:
        """Restrict a handler to clients, and answer errors in the shape of OpenAI's API."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                if any(value != well_formed(value) for value in request.headers.values()):
                    raise ApiError(400, "A header of this request is not valid UTF-8.")
                token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
                if (client := await self.chats.parts.find_client(token)) is None:
                    raise ApiError(401, _NO_TOKEN, "invalid_api_key")
                with self._counted(client.ref):
                    return await handler(request, client)
            except (ApiError, FormError) as error:
                failed = error
            except web.HTTPRequestEntityTooLarge:
                failed = ApiError(413, "This request is too large.")
            except StateError:
                failed = ApiError(503, _NO_DATABASE)
            except ConnectionError:
                raise  # the client has disconnected
            except Exception:
                log.exception("api.failed", path=request.path[:100])
                failed = ApiError(500, _FAULT)
            is_final = isinstance(failed, TurnFailed) or (400 <= failed.status < 500 and failed.status != 429)
            headers = {"Cache-Control": "no-store", **({"X-Should-Retry": "false"} if is_final else {})}
            failure = error_body(failed.sentence, failed.status, getattr(failed, "code", None))
            return web.json_response(failure, status=failed.status, headers=headers)

        return guarded

    @contextmanager
    def _counted(self, client: UserRef) -> Iterator[None]:
        if self._open[client] >= MAX_OPEN:
            raise ApiError(429, _TOO_MANY_OPEN)
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1

    async def _refuse(self, request: web.Request, client: WebPerson) -> web.StreamResponse:
        raise ApiError(404, _UNKNOWN)

    async def _models(self, request: web.Request, client: WebPerson) -> web.StreamResponse:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "hermes-gateway"}
        return web.json_response({"object": "list", "data": [model]})

    async def _retrieve(self, request: web.Request, client: WebPerson) -> web.StreamResponse:
        name = request.match_info["id"]
        found, shape = await self._own(client, name), ResponseShape(id=name, created=0)
        if found.turn_state is not TurnState.FINISHED and not found.is_over:
            return web.json_response(shape.unfinished())
        chat = self.chats.parts.chats[client.chat_key(found.conversation)]
        return await self._whole(request, shape, chat, _event_ref(client, name))

    async def _own(self, client: WebPerson, response_id: str) -> Outcome:
        """Load a request of this client by the id of its response."""
        found = await self.chats.parts.store.read_short(find_outcome, _event_ref(client, response_id))
        if found is None:
            raise ApiError(404, f"There is no response {response_id[:80]}.")
        return found

    async def _ask(self, request: web.Request, client: WebPerson) -> web.StreamResponse:
        """Store the new messages of a client as one message, and answer with the turn's answer."""
        parts = self.chats.parts
        raw = await request.clone(client_max_size=2 * parts.uploads.max_file_bytes).read()
        try:
            body = parsed_json(raw)
        except UNREADABLE as error:
            raise ApiError(400, "The body is not valid JSON.") from error
        is_chat = request.path.endswith("completions")
        asked = read_request(body, request.headers.get("X-Conversation", ""), is_chat=is_chat)
        name = conversation_name(asked.conversation)
        if asked.previous:
            name = (await self._own(client, asked.previous)).conversation
        key = client.chat_key(name)
        event_ref = await self._event_ref(request, client, key, raw)
        if await parts.store.read_short(find_outcome, event_ref) is None:
            await self._accept(asked, client, key, event_ref)
        chat = parts.chats[key]
        number, made = event_ref.rpartition(":")[2], ChatShape if is_chat else ResponseShape
        own_id = f"chatcmpl_{number}" if is_chat else f"resp_{number}"
        shape = made(id=own_id, created=parts.clock.now() // 1_000, includes_usage=asked.includes_usage)
        if asked.is_stream:
            return await self._stream(request, shape, chat, event_ref)
        return await self._whole(request, shape, chat, event_ref)

    async def _event_ref(self, request: web.Request, client: WebPerson, chat: ChatKey, raw: bytes) -> str:
        """Return the event key of a request. A repeated request has the same key.

        Without an `Idempotency-Key`, OpenAI's clients only say that they repeat a request.
        """
        place, key = f"{chat.chat_ref}\n".encode(), request.headers.get("Idempotency-Key", "")
        start = _event_ref(client, hashlib.sha256(place + (key.encode() or raw)).hexdigest()[:24])
        if key:
            return start
        if whole_number(request.headers.get("X-Stainless-Retry-Count", "")):
            since = Millis(self.chats.parts.clock.now() - REPEAT_MS)
            known = await self.chats.parts.store.read_short(find_repeated, start, since)
            if known is not None:
                return known
        return start + secrets.token_hex(8)

    async def _accept(self, asked: ClientRequest, client: WebPerson, chat: ChatKey, event_ref: str) -> None:
        parts = self.chats.parts
        known = await parts.store.read_short(find_chat, chat)
        taken = asked.new_messages(is_new=known is None or known.active_session_id is None)
        text = text_of(taken)
        if len(text) > parts.settings.max_characters:
            raise ApiError(413, f"The new messages are longer than {parts.settings.max_characters:,} characters.")
        addresses = [address for one in taken for address in one.images]
        if len(addresses) > MAX_FILES:
            raise ApiError(413, f"A message can have at most {MAX_FILES} images.")
        message = SubmittedMessage(
            text=text,
            client_id=event_ref.rpartition(":")[2],
            via=InputKind.TYPED if client.ref == LOCAL_OWNER else InputKind.CLIENT,
            edits="",
            files=await parts.uploads.keep_images([read_image(address) for address in addresses]),
            event_ref=event_ref,
        )
        await self.chats.accept(chat, client, message)

    async def _states(self, request: web.Request, chat: LiveChat, event_ref: str) -> AsyncIterator[Outcome | str]:
        """Yield the unfinished answer whenever it grows, and finally the outcome.

        Raises `ApiError` for a failure, and `ConnectionError` if the client has disconnected.
        """
        was_over = False
        while not chat.stream.is_closed:
            seen = chat.stream.newest_id
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
            found = await self.chats.parts.store.read_short(find_outcome, event_ref)
            if found is None:
                raise TurnFailed(500, "This conversation was deleted.")
            entry = chat.find(f"t-{found.turn_id}") or chat.find(f"k-o{found.reply_id}")
            shown = "" if entry is None else entry.text
            reply = "" if entry is None or entry.kind is EntryKind.PREVIEW else shown
            if found.is_answered(reply):
                yield msgspec.structs.replace(found, answer=found.answer if found.turn_id else reply)
                return
            if found.is_over and (reply or was_over):  # the reply is delivered after the end of the turn is stored
                raise _failure(found, reply)
            was_over = found.is_over
            yield shown
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await chat.stream.changed(seen)
        raise ApiError(503, "The gateway is stopping. Send the request again, with the same Idempotency-Key.")

    async def _whole(
        self, request: web.Request, shape: ChatShape, chat: LiveChat, event_ref: str
    ) -> web.StreamResponse:
        async for state in self._states(request, chat, event_ref):
            if isinstance(state, Outcome):
                response = web.json_response(shape.whole(state))
                await response.prepare(request)
                await response.write_eof()
                await self._note_read(chat, state)
                return response
        raise AssertionError("the last state is an outcome")

    async def _note_read(self, chat: LiveChat, outcome: Outcome) -> None:
        """Store that the client has the answer, because the same text is then a new question."""
        with suppress(StateError):
            await self.chats.parts.store.write(mark_read, chat.key, str(outcome.answer_id))

    async def _stream(
        self, request: web.Request, shape: ChatShape, chat: LiveChat, event_ref: str
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        with suppress(ConnectionError):  # the client has disconnected, and the turn continues
            await response.prepare(request)
            await response.write(b"".join(shape.begin()))
            try:
                async for state in self._states(request, chat, event_ref):
                    text, outcome = (state, None) if isinstance(state, str) else (state.answer, state)
                    events = [*shape.grow(text), *(() if outcome is None else shape.end(outcome))]
                    await response.write(b"".join(events) or b": waiting\n\n")
                    if outcome is not None:
                        await self._note_read(chat, outcome)
            except ApiError as error:
                await response.write(b"".join(shape.fail(error_body(error.sentence, error.status, error.code))))
            except StateError:
                await response.write(b"".join(shape.fail(error_body(_NO_DATABASE, 503, None))))
        return response


def _event_ref(client: WebPerson, response_id: str) -> str:
    return f"api:{client.ref}:{response_id.removeprefix('resp_')}"


def conversation_name(text: str) -> str:
    """Return the name of a chat for a conversation. Names that a chat cannot have get a number of their own."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return text if is_name(text) else f"{named_after(text)[:22]}-{digest}".strip("-")


def _failure(found: Outcome, reply: str) -> ApiError:
    if found.error == "SpendingCapExceeded":
        return TurnFailed(429, reply or "A spending cap is reached.", "insufficient_quota")
    sentence = reply or f"The turn ended without an answer ({found.error or 'the message was withdrawn'})."
    return TurnFailed(500, sentence.replace("Send /retry", "Send the message again"))
