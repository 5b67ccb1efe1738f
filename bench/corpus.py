"""Synthetic chat text that costs a database as much as real text: Zipf-distributed words, Chinese, code, emoji."""

import random
from collections.abc import Iterator

RARE = "xylophonist"
"""Word that one message in 20,000 contains."""

PHRASE = "copper lantern festival"
"""Phrase that one message in 5,000 contains."""

COMMON = "the"
"""Word that most messages contain."""

TWO_COMMON = "haro tasu"
"""Two words with a meaning that each occur in about one message in four, in the corpus with seed 4."""

CHINESE = "数据"
"""Two Chinese characters that about one message in a hundred contains."""

EMOJI = "🎉"
"""Emoji that one message in 50 contains."""

_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ro", "su", "ta", "tion", "er")
_COMMON_WORDS = (
    *("the", "of", "and", "to", "a", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as"),
    *("I", "his", "they", "be", "at", "one", "have", "this"),
)
_HAN = "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么"
_SENTENCES = 40_000


class Corpus:
    """Endless sequence of messages, the same for the same seed.

    They have about 270 bytes each, and every tenth is Chinese.
    """

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        words = [*_COMMON_WORDS, *(self._word() for _ in range(30_000))]
        words += [f"{self._word()}_{self._word()}" for _ in range(2_000)]
        weights = [1 / (rank + 2) for rank in range(len(words))]
        drawn = self._random.choices(words, weights, k=_SENTENCES * 15)
        self._sentences = [" ".join(drawn[at : at + 15]) + "." for at in range(0, len(drawn), 15)]
        self._chinese = ["".join(self._random.choices(_HAN, k=28)) + "。" for _ in range(_SENTENCES // 10)]

    def messages(self, count: int) -> Iterator[str]:
        """Yield `count` messages."""
        for number in range(count):
            pool = self._chinese if number % 10 == 9 else self._sentences
            text = " ".join(self._random.choices(pool, k=3))
            yield text + self._planted(number)

    def _word(self) -> str:
        return "".join(self._random.choices(_SYLLABLES, k=self._random.randint(2, 4)))

    @staticmethod
    def _planted(number: int) -> str:
        planted = ""
        if number % 20_000 == 17:
            planted += f" {RARE}"
        if number % 5_000 == 23:
            planted += f" {PHRASE}"
        if number % 100 == 39:
            planted += f" 我的{CHINESE}库"
        if number % 50 == 7:
            planted += f" {EMOJI}"
        return planted
