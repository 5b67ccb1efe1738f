"""People search with the keyboard that they have, and find what was said with another one."""

import unicodedata
from pathlib import Path

import pytest

from tests.e2e.chats import PLATFORMS, chat_on
from tests.e2e.protocols import ModelProtocol

SAID = (
    unicodedata.normalize("NFD", "나는 한국어를 배운다"),
    "製品ＡＢＣ１２３です",
    "قال مُحَمَّدٌ ذلك",
    "ฉันกินข้าวแล้ว",
)
ASKED = ("한국어", "abc123", "محمد", "ข้าว")


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_words_in_another_form_are_found(tmp_path: Path, protocol: ModelProtocol, platform: str) -> None:
    async with chat_on(platform, tmp_path, protocol) as chat:
        await chat.start(HERMES_ACCESS__ADMINS=chat.person)
        await chat.world.script(text="I see.", times=4)
        for said in SAID:
            await chat.ask(said, "I see")
        for said, query in zip(SAID, ASKED, strict=True):
            assert said in await chat.ask(f"/search {query}", said)
