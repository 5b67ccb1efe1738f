"""Outside programs: OpenAI clients, webhooks and the command line talk to the same agent."""

import asyncio
import base64
import hmac
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import openai
import pytest
from aiohttp import web

from tests.e2e.protocols import prompt_of
from tests.e2e.world import ROOT, World
from tests.fakes.labkit import Server

MODEL = "hermes"


class Outside:
    """A gateway with Telegram and a web server, and its API clients."""

    def __init__(self, world: World, stack: AsyncExitStack) -> None:
        self.world = world
        self._stack = stack

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.world.gateway.environ['HERMES_LOCAL__PORT']}"

    async def start(self) -> None:
        await self.world.gateway.start()
        await self.world.gateway.wait_for_log("local.served", since=self.world.gateway.started_from)

    async def client(self, name: str) -> openai.AsyncOpenAI:
        """Return a client with its own token."""
        code, said = await self.world.command_line("client", "add", name)
        assert code == 0, said
        [token] = re.findall(r"^hgw_\S+$", said, re.MULTILINE)
        return await self.signed_in(token)

    async def signed_in(self, token: str) -> openai.AsyncOpenAI:
        made = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0)
        return await self._stack.enter_async_context(made)


@pytest.fixture
async def outside(world: World) -> AsyncIterator[Outside]:
    world.gateway.environ |= {**world.web_chat(), "HERMES_MODEL__IMAGES": "true"}
    async with AsyncExitStack() as stack:
        made = Outside(world, stack)
        await made.start()
        yield made


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def say(client: openai.AsyncOpenAI, *texts: str, **more: object) -> str:
    """Send a history in which the texts of a person and of the assistant take turns. Return the answer."""
    roles = ("user", "assistant")
    history = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    answer = await client.chat.completions.create(model=MODEL, messages=history, **more)
    return answer.choices[0].message.content


async def test_an_openai_client_has_conversations_that_are_ours(outside: Outside) -> None:
    client = await outside.client("editor")
    assert [model.id for model in (await client.models.list()).data] == ["hermes"]
    await outside.world.script(match="capital", text="Paris is the capital.", chunk_chars=4, chunk_delay=0.08, times=9)
    assert await say(client, "the capital of France?", user="geo") == "Paris is the capital."
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[user("the capital of France?"), {"role": "assistant", "content": "Rome"}, user("/new")],
        user="geo",
        extra_headers={"X-Client-Request-Id": "1"},
    )
    assert answer.usage.total_tokens > 0
    second = prompt_of((await outside.world.asked(2))[1])
    assert [one.text for one in second if one.role == "assistant"] == ["Paris is the capital."], "history is ours"
    assert second[-1].text.endswith("/new"), "text of a client is never a command"
    assert outside.world.query("SELECT DISTINCT kind FROM inbox") == [("message",)]

    stream = await client.chat.completions.create(
        model=MODEL, messages=[user("the capital, please")], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == "Paris is the capital."
    assert len(pieces) > 1, "it streams"
    assert chunks[-1].usage.total_tokens > 0
    assert [one.text for one in prompt_of((await outside.world.asked(3))[2]) if one.role == "assistant"] == []

    first = await client.responses.create(model=MODEL, input="name the capital", instructions="Be brief.")
    assert first.output_text == "Paris is the capital."
    async with client.responses.stream(
        model=MODEL, input="the capital again", previous_response_id=first.id
    ) as responses:
        deltas = [event.delta async for event in responses if event.type == "response.output_text.delta"]
        final = await responses.get_final_response()
    assert "".join(deltas) == final.output_text == "Paris is the capital."
    assert (await client.responses.retrieve(first.id)).output_text == "Paris is the capital."
    names = outside.world.query("SELECT chat_ref, user_ref FROM chats WHERE platform = 'local' ORDER BY chat_ref")
    assert names == [("geo", "api-editor"), ("main", "api-editor")]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


async def test_requests_of_editors_are_answered(outside: Outside) -> None:
    """The bodies are those of Continue (chat mode), Cline and aider."""
    client = await outside.client("editor")
    rules = {"role": "system", "content": "CONTINUE RULES"}
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}}
    question = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture]}
    common = {"model": "gpt-4o", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4096}

    async def answer(name: str, messages: list[object], **more: object) -> str:
        headers = {"extra_headers": {"X-Conversation": name, "x-api-key": client.api_key}}
        stream = await client.chat.completions.create(messages=messages, **{**common, **more}, **headers)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    first = await answer("continue", [rules, question])
    assert "what is this?" in first
    said = {"role": "assistant", "content": first}
    await answer("continue", [rules, question, said, user("and now?")])
    await answer("cline", [{"role": "system", "content": "TOOLS"}, {"role": "user", "content": "task"}], temperature=0)
    ok = {"role": "assistant", "content": "Ok."}
    files = user("I have *added these files*: FILES")
    await answer("aider", [{"role": "system", "content": "EDIT FORMAT"}, files, ok, user("fix it"), rules])
    prompts = [prompt_of(row) for row in await outside.world.asked(4)]
    assert "CONTINUE RULES" in prompts[0][-1].text
    assert "CONTINUE RULES" not in prompts[1][-1].text, "a later request repeats it"
    assert "and now?" in prompts[1][-1].text
    assert "FILES" in prompts[3][-1].text, "a new conversation takes what stands before an answer"
    assert outside.world.query("SELECT mime FROM attachments") == [("image/png",)]


async def test_what_cannot_be_done_is_refused_with_a_sentence(outside: Outside) -> None:
    client = await outside.client("editor")
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
    refusals: list[tuple[dict[str, object], str]] = [
        ({"messages": [user("hi")], "tools": [tool]}, "does not run tools of clients"),
        ({"messages": [user("hi")], "n": 2}, "one answer"),
        ({"messages": [user("hi")], "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "no message after"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"messages": "hi"}, "messages"),
    ]
    for body, words in refusals:
        with pytest.raises(openai.BadRequestError, match=words):
            await client.chat.completions.create(model=MODEL, **body)
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        await client.embeddings.create(model=MODEL, input="hi")
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_unknown")
    wrong = await outside.signed_in("hgw_wrong")
    with pytest.raises(openai.AuthenticationError, match="client add"):
        await say(wrong, "hi")
    await outside.world.script(match="fails", error={"status": 400, "body": {"error": {"message": "no"}}}, times=1)
    with pytest.raises(openai.InternalServerError, match="model"):
        await say(client, "it fails")
    assert await say(client, "works") != ""
    listed = await outside.world.command_line("client", "list")
    assert re.search(r"^editor +user", listed[1], re.MULTILINE)
    code, said = await outside.world.command_line("url", "--for", "api-editor")
    assert (code, "token=" in said) == (0, True), "a person can look at the conversations of the program"
    code, said = await outside.world.command_line("client", "revoke", "editor")
    assert (code, "no longer" in said) == (0, True), said
    with pytest.raises(openai.AuthenticationError):
        await say(client, "still there?")
    assert "No program" in (await outside.world.command_line("client", "list"))[1]


async def test_an_answer_survives_its_client_and_a_kill(outside: Outside) -> None:
    client = await outside.client("editor")
    await outside.world.hold(match="slow", text="worth the wait", times=2)
    key = {"extra_headers": {"Idempotency-Key": "k-1"}}
    with pytest.raises(openai.APITimeoutError):
        await say(client.with_options(timeout=1.0), "slow", **key)
    await outside.world.gateway.kill()
    await outside.world.release()
    await outside.start()
    assert await say(client, "slow", **key) == "worth the wait"
    # The official client repeats a request without a key, but says that it does.
    await outside.world.hold(match="again", text="once", times=2)
    asking = asyncio.create_task(say(client.with_options(max_retries=9), "again"))
    await outside.world.until(lambda: outside.world.query("SELECT count(*) FROM inbox")[0][0] == 2)
    await outside.world.gateway.stop()
    await outside.world.release()
    await outside.start()
    assert await asking == "once"
    assert outside.world.query("SELECT count(*) FROM inbox") == [(2,)], "no message is answered twice"
    # The same text is a new question if the client has the answer, even if it must be sent several times.
    newest = "SELECT (SELECT max(id) FROM messages) = (SELECT max(read_id) FROM chats)"
    await outside.world.until(lambda: outside.world.query(newest)[0][0])
    await outside.world.gateway.kill()
    asking = asyncio.create_task(say(client.with_options(max_retries=9), "again"))
    await outside.start()
    assert await asking
    assert outside.world.query("SELECT count(*) FROM inbox") == [(3,)]


async def test_requests_of_programs_are_approved_by_a_person_who_sees_them(world: World) -> None:
    """Telegram user 42 is a user, and nobody who could answer for an admin can be reached."""
    hook = f'webhooks: {{plain: {{secret: {SECRET}, chat: "telegram:42"}}}}'
    world.configure(f"{hook}\ntools: {{approval: {{writes: ask}}}}\n")
    world.gateway.environ |= world.web_chat()
    async with AsyncExitStack() as stack:
        outside = Outside(world, stack)
        await outside.start()
        await world.ask("hello", "hello")
        await world.script_call("write it", "write_file", path="a.txt", content="x")
        body = b"write it"
        assert await post(outside, "plain", body, signed(SECRET, "m1", int(time.time()), body)) == 202
        assert await world.replies(1, match="May I use")
        await world.say("/approve")
        await world.until(lambda: world.query("SELECT count(*) FROM turns WHERE state = 'finished'") == [(2,)])
        assert world.query("SELECT state, decided_by FROM approvals") == [("approved", "telegram:42")]
        _, said = await world.command_line("client", "add", "ci", "--admin")
        client = await outside.signed_in(re.findall(r"^hgw_\S+$", said, re.MULTILINE)[0])
        await say(client, "write it")
        assert world.query("SELECT count(*) FROM approvals") == [(1,)], "nobody would see the question"


async def test_one_program_cannot_use_up_what_all_share(outside: Outside) -> None:
    client, other = await outside.client("editor"), await outside.client("other")
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    for pictures, status in (([picture] * 11, 413), ([picture, {"type": "image_url", "image_url": {"url": "x"}}], 400)):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": pictures}])
        assert refused.value.status_code == status
    reader, writer = await asyncio.open_connection("127.0.0.1", int(outside.url.rpartition(":")[2]))
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hgw_\xff\r\n\r\n")
    answer = (await reader.readuntil(b"}}")).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 400")
    assert "invalid_request_error" in answer
    assert "Traceback" not in outside.world.gateway.log_text()

    await outside.world.hold(match="slow", text="done", times=1)
    first = asyncio.create_task(say(client, "slow", extra_headers={"Idempotency-Key": "k"}))
    await outside.world.until(lambda: outside.world.query("SELECT count(*) FROM inbox") == [(1,)])
    key = outside.world.query("SELECT event_ref FROM inbox")[0][0].rpartition(":")[2]
    assert (await client.responses.retrieve(f"resp_{key}")).status == "in_progress", "it does not wait"
    same = [asyncio.create_task(say(client, "slow", extra_headers={"Idempotency-Key": "k"})) for _ in range(16)]
    [refusal], _ = await asyncio.wait(same, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(refusal.exception(), openai.RateLimitError), "16 requests are open"
    assert "hi" in await say(other, "hi")
    await outside.world.release()
    answers = await asyncio.gather(first, *same, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, str)] == ["done"] * 16


async def test_a_client_sees_its_own_chats_and_nothing_else(outside: Outside) -> None:
    await outside.world.script(match="secret", text="I keep SECRET-7.", times=9)
    ann, bob = await outside.client("ann"), await outside.client("bob")
    first = await ann.responses.create(model=MODEL, input="a secret", user="plans")
    await outside.world.ask("a secret on Telegram", "SECRET-7")
    for attempt in ("plans", "42", "plans#ann"):
        await say(bob, "what was it?", user=attempt)
    with pytest.raises(openai.NotFoundError):
        await bob.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        await bob.responses.create(model=MODEL, input="go on", previous_response_id=first.id)
    same = {"extra_headers": {"Idempotency-Key": "same"}}
    assert await say(ann, "a secret with a key", user="plans", **same) == "I keep SECRET-7."
    assert "SECRET" not in await say(bob, "hello", user="plans", **same)
    for row in await outside.world.asked(7):
        if "what was it?" in str(row) or "hello" in str(prompt_of(row)[-1]):
            assert "SECRET" not in str(row["body"]), "the model of bob's chat never saw it"
    for path in ("/", "/console/overview/content", "/chat/main/earlier?before=9", "/list"):
        async with outside.world.http.get(outside.url + path, headers=bob.auth_headers) as response:
            assert "SECRET" not in await response.text()
            assert response.status in (401, 404) or path == "/"


def signed(secret: str, ident: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks."""
    digest = hmac.new(secret.encode(), f"{ident}.{at}.".encode() + body, "sha256").digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": ident, "webhook-timestamp": str(at), "webhook-signature": signature}


async def post(outside: Outside, hook: str, body: bytes, headers: dict[str, str]) -> int:
    async with outside.world.http.post(f"{outside.url}/hooks/{hook}", data=body, headers=headers) as answer:
        return answer.status


SECRET = "a-secret-of-twenty-characters"


async def test_signed_webhooks_become_messages_and_others_leave_no_trace(world: World) -> None:
    world.configure(
        f"""webhooks:
  github: {{secret: {SECRET}, chat: "telegram:42", template: "/stop: {{issue.title}} by {{sender.login}}"}}
  plain: {{secret: {SECRET}, chat: "telegram:42"}}
  lost: {{secret: {SECRET}, chat: "telegram:77"}}
"""
    )
    world.gateway.environ |= {**world.web_chat(), "HERMES_SESSIONS__MESSAGES_PER_MINUTE": "2"}
    async with AsyncExitStack() as stack:
        outside = Outside(world, stack)
        await outside.start()
        await world.ask("hello", "hello")
        body = json.dumps({"issue": {"title": "It burns"}, "sender": {"login": "ann"}}).encode()
        right = {"X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, 'sha256').hexdigest()}"}
        now = int(time.time())
        refused = [
            ("github", body, {"X-Hub-Signature-256": right["X-Hub-Signature-256"][:-1] + "?"}),
            ("github", body + b" ", right),
            ("github", body, {}),
            ("nobody", body, right),
            ("plain", body, signed(SECRET, "m1", now - 301, body)),
            ("plain", body, signed(SECRET, "m1", now + 310, body)),
            ("plain", body, signed("another secret of 20", "m1", now, body)),
            ("plain", body, {**signed(SECRET, "m1", now, body), "webhook-id": "m2"}),
        ]
        stored = world.query("SELECT count(*) FROM inbox"), world.query("SELECT count(*) FROM outbox")
        assert [await post(outside, *one) for one in refused] == [401] * len(refused)
        assert stored == (world.query("SELECT count(*) FROM inbox"), world.query("SELECT count(*) FROM outbox"))
        assert await post(outside, "github", body, right) == 202
        assert await post(outside, "github", body, right) == 409, "a repetition is refused"
        assert await post(outside, "plain", b"disk full", signed(SECRET, "m1", now, b"disk full")) == 202
        assert await post(outside, "plain", b"disk full", signed(SECRET, "m1", now, b"disk full")) == 409
        assert await post(outside, "lost", body, signed(SECRET, "m3", now, body)) == 503
        assert await post(outside, "plain", b"two", signed(SECRET, "m4", now, b"two")) == 202
        codes = [await post(outside, "plain", b"three", signed(SECRET, "m5", now, b"three")) for _ in range(2)]
        assert codes == [429, 429], "it is not stored, and can be sent again"
        assert len(await world.replies(4)) == 4, "a person gets no refusal of another service's message"
        prompts = [prompt_of(row)[-1].text for row in await world.asked(4)]
        assert "/stop: It burns by ann" in prompts[1], "a webhook sends no command"
        assert "<quoted_message" in prompts[1], "its text is untrusted"
        assert "disk full" in prompts[2]
        assert world.query("SELECT count(*) FROM turns WHERE started_by LIKE 'hook:%'") == [(3,)]


PRICES = '{"*": {"input": 1000, "output": 1000}}'


async def test_events_go_to_webhooks_until_they_are_accepted(world: World) -> None:
    received: list[tuple[dict[str, str], bytes]] = []
    statuses = iter([500, 200, 200, 200, 200, 200])

    async def receive(request: web.Request) -> web.Response:
        received.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=next(statuses))

    app = web.Application()
    app.router.add_post("/events", receive)
    async with Server(app) as server:
        world.configure(f"webhooks: {{ops: {{secret: {SECRET}, url: '{server.url}/events'}}}}")
        costs = {"HERMES_COSTS__DAILY_CAP": "0.0001", "HERMES_COSTS__PRICES": PRICES}
        await world.gateway.start(**world.web_chat(), **costs)
        await world.ask("hello", "hello")
        await world.ask("more", "cap|limit")
        await world.say("let me in", chat_id=900)
        await world.until(lambda: len(received) >= 5)
        assert (await world.command_line("send", "local:webhook/ops", "hi"))[0] == 1, "it is no chat of people"
    for names, body in received:
        own = signed(SECRET, names["webhook-id"], int(names["webhook-timestamp"]), body)
        assert names["webhook-signature"] == own["webhook-signature"]
    assert received[0][0]["webhook-id"] == received[1][0]["webhook-id"], "a repetition has the same id"
    events = [json.loads(body) for _, body in received[1:]]
    kinds = [event["type"] for event in events]
    assert sorted(kinds) == ["cap.reached", "person.requested_access", "turn.finished", "turn.finished"]
    first = next(event for event in events if event["type"] == "turn.finished")
    assert first["data"]["chat"] == "telegram:42"
    assert "hello" in first["data"]["text"]
    asked = next(event for event in events if event["type"] == "person.requested_access")
    assert asked["data"]["person"] == "telegram:900"
    assert "code" not in asked["data"]


async def test_scripts_send_and_the_terminal_talks(outside: Outside) -> None:
    world = outside.world
    await world.ask("hello", "hello")
    code, said = await world.command_line("send", "telegram:42", "the backup is *done*")
    assert (code, "delivers it now" in said) == (0, True), said
    assert await world.replies(1, match="the backup is")
    assert (await world.command_line("send", "telegram:42", "/new", "--ask"))[0] == 0
    await world.replies(3)
    last = prompt_of((await world.asked(2))[1])
    assert last[-1].text.endswith("/new"), "the text is no command"
    assert any("the backup is *done*" in one.text for one in last), "the model knows what the script said"
    code, said = await world.command_line("send", "telegram:99", "hi")
    assert (code, "There is no chat telegram:99" in said) == (1, True), said
    await world.script(match="spoken", text="in the terminal", chunk_chars=3, chunk_delay=0.1)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "chat", "работа"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=world.gateway.environ,
        cwd=ROOT,
    )
    shown, _ = await asyncio.wait_for(process.communicate(b"spoken word\n/whoami\n"), 30)
    first = "Conversation “работа” with the model lab-128k. /help lists the commands. To leave, press Ctrl-D.\n"
    assert shown.decode().startswith(first)
    assert "in the terminal" in shown.decode()
    assert "local:owner" in shown.decode()
    assert process.returncode == 0
    await world.tg.post("chat", {"chat_id": 42, "blocked": "blocked"})
    assert (await world.command_line("send", "telegram:42", "hi"))[0] == 0
    await world.until(lambda: bool(world.query("SELECT 1 FROM chats WHERE unreachable_since > 0")))
    code, said = await world.command_line("send", "telegram:42", "hi")
    assert (code, "can no longer write to telegram:42" in said) == (1, True), said
