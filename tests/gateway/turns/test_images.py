"""Images that people send are detected by content, scaled on arrival, and never break a chat."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent.model.base import FinishReason, ModelReply, ModelRequest
from agent.model.wire import chat_messages
from agent.tools.recall import recall_tools
from hermes_state.errors import ImageFault, ImageRejected, ModelError, ModelUnavailable
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import AttachmentKind, IncomingAttachment, ToolCall
from tests.fakes.llm_legality import check_openai, untidy
from tests.gateway.helpers import Serve, TestGateway, answer, asked, serving
from tests.pictures import noise, opened, picture, saved

SEEING = {"images": True}
WEEK = 7 * 86_400_000
"""One week in milliseconds."""


@pytest.fixture
async def gateway(serve: Serve) -> AsyncIterator[TestGateway]:
    async with serve(model=SEEING) as running:
        yield running


def change_facts(db: Connection, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the learned image limits of all models."""
    query = "SELECT route, model, image_facts FROM model_profiles WHERE image_facts IS NOT NULL"
    for route, model, facts in db.execute(query).fetchall():
        changed = json.dumps(change(json.loads(facts)))
        db.execute("UPDATE model_profiles SET image_facts = ? WHERE route = ? AND model = ?", (changed, route, model))


def file(name: str, kind: AttachmentKind = AttachmentKind.IMAGE, mime: str | None = None) -> IncomingAttachment:
    return IncomingAttachment(kind=kind, file_ref=name, name=name, mime=mime)


async def send(gateway: TestGateway, text: str = "look", **contents: bytes) -> None:
    """Send images as one message, with the keyword names as file names."""
    gateway.adapter.files |= contents
    await gateway.tell(text, files=[file(name) for name in contents])


def shown(request: ModelRequest) -> list[bytes]:
    """Return the images in a request as files."""
    messages = chat_messages(request.system, request.transcript, request.style)
    assert untidy(check_openai(messages)) == []
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def sizes(request: ModelRequest) -> list[int]:
    """Return the longest side of each image in a request."""
    return [max(opened(data).size) for data in shown(request)]


def prompt_of(request: ModelRequest) -> str:
    return str(chat_messages(request.system, request.transcript, request.style))


@dataclass
class Provider:
    """Provider that refuses requests with certain images and answers all others."""

    refuse: Callable[[Sequence[bytes]], ImageRejected | None]
    calls: list[list[int]] = field(default_factory=list)
    """Image sides of every request."""

    async def respond(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        images = shown(request)
        self.calls.append(sizes(request))
        refusal = self.refuse(images) if images else None
        if refusal is not None:
            raise refusal
        return answer("echo: " + " | ".join(asked(request)))


@asynccontextmanager
async def refusing(
    store: Store, home: Path, refuse: Callable[[Sequence[bytes]], ImageRejected | None], **sections: Any
) -> AsyncIterator[tuple[TestGateway, Provider]]:
    provider = Provider(refuse)
    async with serving(store, home, model=sections.pop("model", SEEING), tools=recall_tools(), **sections) as gateway:
        gateway.model.respond = provider.respond
        yield gateway, provider


def refuse_all(_images: Sequence[bytes]) -> ImageRejected | None:
    return rejected(ImageFault.UNSUPPORTED)


def rejected(fault: ImageFault, **facts: int) -> ImageRejected:
    return ImageRejected("HTTP 400", fault=fault, **facts)


# ---- arrival


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
async def test_an_image_is_detected_by_its_bytes_not_its_mime_type(gateway: TestGateway, kind: str) -> None:
    gateway.adapter.files["x.svg"] = picture((40, 30), kind=kind)
    await gateway.tell("look", files=[file("x.svg", mime="image/x-wrong")])
    [data] = shown(gateway.model.requests[-1])
    assert opened(data).size == (40, 30)


@pytest.mark.parametrize(
    "one",
    [
        file("shot.png", AttachmentKind.DOCUMENT, "application/octet-stream"),
        file("shot.png", AttachmentKind.DOCUMENT, "text/plain"),
        file("shot", AttachmentKind.DOCUMENT),
        file("photo.HEIC", AttachmentKind.OTHER),
        file("notes.txt", AttachmentKind.DOCUMENT, "text/plain"),
    ],
    ids=str,
)
async def test_an_image_with_a_misleading_name_is_shown(gateway: TestGateway, one: IncomingAttachment) -> None:
    gateway.adapter.files[one.file_ref] = picture((40, 40), kind="JPEG")
    await gateway.tell("look", files=[one])
    assert (sizes(gateway.model.requests[-1]), gateway.adapter.texts()) == ([40], ["echo: look"])


async def test_a_large_image_is_scaled_on_arrival_and_its_original_kept(gateway: TestGateway, tmp_path: Path) -> None:
    data = saved(noise((3_000, 1_500)), "JPEG", quality=90)
    await send(gateway, big=data)
    [copy] = shown(gateway.model.requests[-1])
    assert opened(copy).size == (2_000, 1_000)
    [(path, size)] = await gateway.rows("SELECT path, bytes FROM attachments")
    assert (tmp_path / "attachments" / path).read_bytes() == data
    assert size == len(data) + len(copy), "room for files counts both"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: b"MZ" + b"\0" * 99, "as an image. Please send it as PNG, JPEG, GIF or WebP."),
        (lambda: b"\0\0\0\x20ftypheic" + b"\0" * 99, "Please send it as PNG, JPEG, GIF or WebP."),
        (lambda: picture(kind="JPEG")[:-100], "Please send it as PNG, JPEG, GIF or WebP."),
        (lambda: saved(Image.new("1", (20_000, 20_000))), "has too many pixels for me"),
    ],
    ids=["no image", "heic", "cut", "bomb"],
)
async def test_an_unreadable_image_is_refused_at_once(
    gateway: TestGateway, tmp_path: Path, make: Callable[[], bytes], sentence: str
) -> None:
    await send(gateway, text="", pic=make())
    [said] = gateway.adapter.texts()
    assert "“pic”" in said
    assert sentence in said
    assert gateway.model.requests == []
    assert [path for path in (tmp_path / "attachments").rglob("*") if path.is_file()] == []


# ---- refusals

WORDS = {
    ImageFault.UNSUPPORTED: "The model does not accept images",
    ImageFault.TOO_LARGE: "too large for the model provider",
    ImageFault.TOO_MANY: "more images than the model provider accepts",
    ImageFault.UNREADABLE: "cannot process an image",
}


@pytest.mark.parametrize("fault", ImageFault)
async def test_a_refused_image_breaks_neither_this_answer_nor_later_turns(
    store: Store, tmp_path: Path, fault: ImageFault
) -> None:
    async with refusing(store, tmp_path, lambda _: rejected(fault)) as (gateway, provider):
        await send(gateway, pic=picture((600, 400)))
        [said] = gateway.adapter.texts()
        assert said.startswith("echo: look\n\n_")
        assert WORDS[fault] in said
        assert said.count(".") == 1, "one sentence"
        assert provider.calls[-1] == []
        for text in ("and?", "go on"):
            await gateway.tell(text)
        assert gateway.adapter.texts()[-1].startswith("echo: go on")
        assert [state for state, _ in await gateway.turns_of()] == ["finished"] * 3
    outcomes = await store.read(lambda db: db.execute("SELECT outcome FROM model_calls ORDER BY id").fetchall())
    assert [outcome for (outcome,) in outcomes[:2]] == ["image", "image" if len(provider.calls[1]) else "ok"]


async def test_a_model_that_refuses_images_gets_none_for_a_week(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with refusing(store, tmp_path, refuse_all) as (gateway, provider):
        await send(gateway, one=picture())
        assert [len(call) for call in provider.calls] == [1, 0]
        await send(gateway, text="", two=picture())
        assert "cannot see images" in gateway.adapter.texts()[-1]
    async with refusing(store, tmp_path, refuse_all) as (again, provider):
        await again.tell("hello")
        assert [len(call) for call in provider.calls] == [0], "also after a restart"
    await store.write(change_facts, lambda facts: {**facts, "learned_at": facts["learned_at"] - WEEK})
    async with refusing(store, tmp_path, lambda _: None) as (later, provider):
        await later.tell("and now?")
        assert [len(call) for call in provider.calls] == [1]


@pytest.mark.parametrize(
    ("facts", "side", "size"),
    [({"max_side": 500}, 500, 3_500_000), ({"max_bytes": 20_000}, 2_000, 20_000), ({}, 1_000, 1_750_000)],
    ids=str,
)
async def test_a_refused_image_size_lowers_the_size_for_that_route(
    store: Store, tmp_path: Path, facts: dict[str, int], side: int, size: int
) -> None:
    def refuse(images: Sequence[bytes]) -> ImageRejected | None:
        is_small = all(max(opened(data).size) <= side and len(data) <= size for data in images)
        return None if is_small else rejected(ImageFault.TOO_LARGE, **facts)

    data = picture((2_400, 1_200), kind="JPEG")
    async with refusing(store, tmp_path, refuse) as (gateway, provider):
        await send(gateway, one=data)
        assert [len(call) for call in provider.calls] == [1, 1]
        assert "smaller copies" in gateway.adapter.texts()[-1]
        await send(gateway, two=data)
        assert [len(call) for call in provider.calls[2:]] == [2], "the older one is smaller, too"
    async with refusing(store, tmp_path, refuse) as (again, provider):
        await again.tell("still?")
        assert [len(call) for call in provider.calls] == [2], "also after a restart"


async def test_image_sizes_are_lowered_until_the_provider_accepts_them(store: Store, tmp_path: Path) -> None:
    async with refusing(
        store,
        tmp_path,
        lambda images: rejected(ImageFault.TOO_LARGE) if any(max(opened(data).size) > 300 for data in images) else None,
    ) as (gateway, provider):
        await send(gateway, one=picture((2_000, 900)))
        assert provider.calls == [[2_000], [1_000], []]
        await gateway.tell("now?")
        assert provider.calls[3:] == [[500], [256]]


async def test_fewer_images_are_sent_to_a_provider_with_a_limit(store: Store, tmp_path: Path) -> None:
    async with refusing(
        store, tmp_path, lambda images: rejected(ImageFault.TOO_MANY, max_count=2) if len(images) > 2 else None
    ) as (gateway, provider):
        await send(gateway, a=picture((101, 50)), b=picture((102, 50)), c=picture((103, 50)))
        assert provider.calls == [[101, 102, 103], [102, 103]]
        await send(gateway, d=picture((104, 50)))
        assert provider.calls[2:] == [[103, 104]]


async def test_only_the_image_that_cannot_be_processed_is_marked(store: Store, tmp_path: Path) -> None:
    def refuse(images: Sequence[bytes]) -> ImageRejected | None:
        return rejected(ImageFault.UNREADABLE) if any(max(opened(data).size) == 200 for data in images) else None

    async with refusing(store, tmp_path, refuse) as (gateway, provider):
        await send(gateway, good=picture((100, 50)))
        await send(gateway, bad=picture((200, 50)))
        assert provider.calls[1] == [100, 200]
        await send(gateway, fine=picture((300, 50)))
        assert provider.calls[-1] == [100, 300]
        assert gateway.adapter.texts()[-1] == "echo: fine" or gateway.adapter.texts()[-1].endswith("look")
        assert "provider refused" in prompt_of(gateway.model.requests[-1])
    async with refusing(store, tmp_path, refuse) as (again, provider):
        await again.tell("and?")
        assert provider.calls == [[100, 300]], "also after a restart"


async def test_a_refused_image_is_tried_again_when_sent_again(store: Store, tmp_path: Path) -> None:
    is_broken = True

    async with refusing(store, tmp_path, lambda images: rejected(ImageFault.UNREADABLE) if is_broken else None) as (
        gateway,
        provider,
    ):
        await send(gateway, one=picture())
        is_broken = False
        await send(gateway, one=picture())
        assert [len(call) for call in provider.calls] == [1, 0, 1]


async def test_an_unrelated_error_teaches_nothing_about_images(gateway: TestGateway) -> None:
    """The call also fails without images, so the images are not the cause."""
    down = ModelUnavailable("HTTP 503", retry_after=3_600.0)
    gateway.model.script.extend([rejected(ImageFault.UNSUPPORTED), down])
    await send(gateway, one=picture())
    assert await gateway.rows("SELECT * FROM model_profiles WHERE image_facts IS NOT NULL") == []
    await gateway.tell("again?")
    assert len(shown(gateway.model.requests[-1])) == 1


async def test_learned_image_limits_belong_to_one_configured_route(store: Store, tmp_path: Path) -> None:
    async with refusing(store, tmp_path, refuse_all) as (gateway, _):
        await send(gateway, one=picture())
    await store.write(change_facts, lambda facts: {**facts, "mark": "as it was"})
    async with refusing(store, tmp_path, lambda _: None) as (again, provider):
        await again.tell("now?")
        assert [len(call) for call in provider.calls] == [1]


async def test_a_refusal_that_persists_without_images_is_reported_unchanged(gateway: TestGateway) -> None:
    gateway.model.script.extend([ModelError("HTTP 400"), ModelError("HTTP 400")])
    await send(gateway, one=picture())
    assert "refused the request" in gateway.adapter.texts()[-1]
    assert [len(shown(request)) for request in gateway.model.requests] == [1, 0]
    assert await gateway.rows("SELECT * FROM model_profiles WHERE image_facts IS NOT NULL") == []
    await gateway.tell("again?")
    assert len(shown(gateway.model.requests[-1])) == 1


# ---- older images


async def test_an_older_image_is_shown_again_by_its_recall_id(store: Store, tmp_path: Path) -> None:
    async with refusing(store, tmp_path, lambda _: None) as (gateway, provider):
        for side in range(101, 110):
            await send(gateway, **{f"p{side}": picture((side, 50))})
        assert provider.calls[-1] == [105, 106, 107, 108, 109]
        [(first,)] = await gateway.rows("SELECT min(id) FROM messages")
        assert f'history_open(id=\\"m{first}\\")' in prompt_of(gateway.model.requests[-1]).replace('"', '\\"')
        call = ToolCall(id="c1", name="history_open", arguments=f'{{"id": "m{first}"}}')
        gateway.model.script.append(ModelReply(text="", calls=(call,), finish=FinishReason.TOOL_CALLS, usage=None))
        await gateway.tell("the first one?")
        assert (provider.calls[-1], gateway.model.violations) == ([105, 106, 107, 108, 109, 101], [])
        await gateway.tell("and?")
        assert provider.calls[-1] == [105, 106, 107, 108, 109, 101], "as before, so that the prompt keeps its bytes"
