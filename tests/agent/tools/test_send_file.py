"""The tool `send_file`: a file is sent once, with its content at the time of the call."""

from pathlib import Path
from sqlite3 import Connection

import pytest

from agent.settings import WorkspaceSettings
from agent.tools.files.send_file import FileDelivery, send_file_tool
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.registry import ToolRegistry
from hermes_state import attachments, journal, outbox
from hermes_state.files.folder import AttachmentFolder
from hermes_state.tool_runs import ToolRunState
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId
from tests.agent.conftest import Chat
from tests.agent.tools.calls import call


class Post:
    """Outbox rows with their files."""

    def __init__(self, folder: Path, chat: Chat, turn: RunningTurn) -> None:
        self.chat, self.turn = chat, turn
        self.woken: list[ChatId] = []
        self.kept = folder / "attachments"
        self.workspace = folder / "workspaces" / str(turn.chat_id)
        self.workspace.mkdir(parents=True)
        self.limit = 1_000
        workspaces = WorkspaceStore(folder / "workspaces", WorkspaceSettings(max_file_bytes=5_000))
        delivery = FileDelivery(
            files=AttachmentFolder(self.kept),
            max_bytes=lambda key: self.limit,
            deliver=self.woken.append,
            clock=chat.clock,
        )
        self.tools = ToolRegistry([send_file_tool(workspaces, delivery)])

    async def send(self, path: str, caption: str = "") -> str:
        return (await call(self.tools, self.chat, self.turn, "send_file", path=path, caption=caption)).text

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """Return caption, name and bytes of the files in the outbox."""
        rows = await self.chat.store.read(outbox.load_open, self.turn.chat_id)
        found = []
        for row in rows:
            assert row.written.attached is not None
            file = row.written.attached
            found.append((row.written.markdown, file.name, (self.kept / file.path).read_bytes()))
        return found

    def files(self) -> list[Path]:
        return [path for path in self.kept.rglob("*") if path.is_file()]


@pytest.fixture
async def post(tmp_path: Path, chat: Chat) -> Post:
    return Post(tmp_path, chat, await chat.start("send it"))


async def test_a_file_is_sent_as_it_was_at_the_call(post: Post) -> None:
    (post.workspace / "a.txt").write_text("before")
    assert await post.send("a.txt", "here") == "“a.txt” (6 bytes) is on its way to the chat."
    (post.workspace / "a.txt").write_text("after!")
    assert await post.owed() == [("here", "a.txt", b"before")]
    post.limit = 0
    assert "files cannot be sent to this chat" in await post.send("a.txt")
    assert post.woken == [post.turn.chat_id]


@pytest.mark.parametrize(
    ("path", "caption", "told"),
    [
        ("large", "", "larger than 1,000 bytes, the limit of this chat"),
        ("empty", "", "is empty"),
        ("gone", "", "“gone” does not exist"),
        ("link", "", "is a symbolic link"),
        ("../secret", "", "contains “..”"),
        ("", "", "give the path of a file in it"),
        ("small", "x" * 1_001, "the caption has 1,001 characters"),
    ],
)
async def test_a_file_that_cannot_be_sent_leaves_nothing_behind(post: Post, path: str, caption: str, told: str) -> None:
    (post.workspace / "large").write_bytes(b"x" * 1_001)
    (post.workspace / "small").write_bytes(b"x")
    (post.workspace / "empty").touch()
    (post.workspace / "link").symlink_to("small")
    assert told in await post.send(path, caption)
    assert await post.owed() == []
    assert post.files() == []


async def test_a_stopped_turn_sends_no_file(post: Post) -> None:
    (post.workspace / "a.txt").write_text("x")
    await post.chat.store.write(journal.stop_turn, post.turn, "", "stop", post.chat.clock.now(), notice="")
    reply = await call(post.tools, post.chat, post.turn, "send_file", path="a.txt")
    assert (reply.state, reply.text) == (ToolRunState.FAILED, "Error: the turn was stopped: nothing was sent")
    assert await post.owed() == []


async def test_a_file_belongs_to_its_chat_alone(post: Post) -> None:
    (post.workspace / "a.txt").write_text("x")
    await post.send("a.txt")

    def load(db: Connection) -> list[bool]:
        return [attachments.load_file(db, ChatId(post.turn.chat_id + more), 1) is not None for more in (0, 1)]

    assert await post.chat.store.read(load) == [True, False]
