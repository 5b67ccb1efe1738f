import hashlib
import json
import re
import time
import tomllib
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hermes_state.redaction import MARK, MIN_SECRET_CHARS, Redactor, is_secret_name, redact, seam
from hermes_state.redaction import redactor as redactor_module
from tests.sampling import examples

_A = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"

KEYS = {
    "telegram": "1234567890:" + _A[:35],
    "discord": "MTIzNDU2Nzg5MDEyMzQ1Njc4" + ".GabcDE." + _A[:34],
    "openai": "sk-" + _A,
    "openai project": "sk-proj-" + _A,
    "anthropic": "sk-ant-api03-" + _A,
    "openrouter": "sk-or-v1-" + "0123456789abcdef" * 4,
    "github": "ghp_" + _A,
    "github fine-grained": "github_pat_" + _A,
    "gitlab": "glpat-" + _A[:20],
    "slack": "xoxb-123456789012-" + _A[:20],
    "aws": "AKIA" + "ABCDEFGHIJ234567",
    "google": "AIza" + _A[:35],
    "huggingface": "hf_" + _A[:34],
    "groq": "gsk_" + _A,
    "google access": "ya29." + _A[:30],
    "xai": "xai-" + _A,
    "perplexity": "pplx-" + _A,
    "tavily": "tvly-" + _A[:20],
    "npm": "npm_" + _A,
    "pypi": "pypi-" + _A,
    "sendgrid": "SG." + _A[:22] + "." + _A,
    "webhook": "whsec_" + _A,
    "digitalocean": "dop_v1_" + "0123456789abcdef" * 4,
    "age": "AGE-SECRET-KEY-1" + _A.upper(),
    "stripe": "sk_live_" + _A[:24] + "9",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "discord interaction": "https://discord.com/api/v10/webhooks/900000000000000001/" + _A + _A,
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{_A}\n{_A}\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    "around", ["{}", "the key is {}.", "https://api.example.org/…", '{{"k": "{}"}}', "a\n{}\nb", "({})", "k={};"]
)
def test_known_key_shapes_are_redacted_anywhere(kind: str, around: str) -> None:
    if around == "https://api.example.org/…":
        around = around.replace("…", "bot{}/getMe?x=1" if kind in ("telegram", "pem") else "?key={}&x=1")
    result = redact(around.format(KEYS[kind]))
    assert MARK in result
    assert not any(part in result for part in KEYS[kind].split("\n"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password=hunter2", "password="),
        ("PASSWORD: 'correct horse battery'", "PASSWORD: '"),
        ("api_key = abc123def", "api_key = "),
        ('{"client_secret": "s3cr3t-value"}', '{"client_secret": "'),
        ("DB_PASSWORD=p4ssw0rd!", "DB_PASSWORD="),
        ("telegram.token: abcdefghijkl", "telegram.token: "),
        ("Authorization: Bearer abcdefghijklmnopqrst", "Authorization: Bearer "),
        ("postgres://app:pa55word@db.example.org/x", "postgres://app:"),
        ("curl https://me:geheim12@example.org/", "@example.org/"),
        ('{"content": "password = \\"hunter2 battery\\""}', 'password = \\"'),
        ('{"content": "{\\"api_key\\": \\"abc123def\\"}"}', 'api_key\\": \\"'),
        (json.dumps(json.dumps(json.dumps({"client_secret": "s3cr3t-value"}))), "client_secret"),
    ],
)
def test_named_secrets_are_redacted_and_their_names_kept(text: str, kept: str) -> None:
    result = redact(text)
    assert kept in result
    assert MARK in result
    for secret in ("hunter2", "battery", "abc123", "s3cr3t", "p4ssw0rd", "abcdefgh", "pa55word", "geheim12"):
        assert secret not in result


SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="[]redacted"), min_size=8, max_size=40)


@given(secret=SECRETS, before=st.text(max_size=20), after=st.text(max_size=20))
@example(secret='quo"te\\back', before="", after="")
@example(secret="päß wört/+", before="x", after="")
def test_a_configured_secret_is_redacted_in_all_usual_forms(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret])
    for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
        assert form not in redactor(before + form + after)


@given(secrets=st.lists(SECRETS, min_size=2, max_size=4))
def test_overlapping_secrets_are_all_redacted(secrets: list[str]) -> None:
    joined = [secrets[0], secrets[0] + secrets[1], *secrets]
    redactor = Redactor(joined)
    for secret in joined:
        assert secret not in redactor(f"<{secret}>")


@given(st.text(max_size=200) | st.text("abk-_=:. @/'\"\\sktoken0123456789{}", max_size=200))
@example("the password is hunter22 and the pin is 4711")
def test_redaction_is_idempotent(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text("abcdefghijklmnopqrstuvwxyz ,.!?\n", max_size=300))
def test_plain_prose_is_never_changed(text: str) -> None:
    assume(not any(word in text for word in ("token", "secret", "pass", "pwd", "basic", "bearer", "bot")))
    assert redact(text) == text


_PIECES = (
    *("password", "token", "api_key", "Bearer", "Bot", "=", ":", " = ", "=>", '"', "'", "\\", "\n", "\r\n", "  ", ", "),
    *("; ", ". ", "a1b2c3d4e5f6g7h8", "https://u:", "@h/", "hunter22", "1234567890:" + _A[:35], "sk-", "eyJ", "-----"),
    *("Cookie: ", "a=b1", "the password is ", "пароль - ", "Authorization: Digest ", "4111 ", "1111 ", "card "),
    *("curl ", "-u a:b1c ", "9", "x", ".", "。", "é", "\u017f", "\u212a", "\u0130", "\t"),
)
PIECED = st.lists(st.sampled_from(_PIECES), max_size=30).map("".join)


@examples(300)
@given(text=PIECED | st.text("abk-_=:>. @/,'\"\\\n;sktoken01239{}Bearé，。", max_size=100), start=st.integers(0, 60))
@example(text='password: "correct, horse, battery" and, more', start=20)
@example(text="Authorization: Bearer  abcdefghijklmnop1234", start=10)
@example(text="token  =  abc123def", start=0)
@example(text='{"k": "password = \\"correct, horse\\""}', start=20)
@example(text="Cookie: \u0130=, ", start=0)
def test_pieces_cut_at_a_seam_are_redacted_like_the_whole(text: str, start: int) -> None:
    index = seam(text, start, len(text))
    if index is not None:
        assert start <= index < len(text)
        assert redact(text[:index]) + redact(text[index:]) == redact(text)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("one, two, three", 4),
        ("as it is", 2),
        ("前の文。 次の文", 4),
        ("nowhere", None),
        ("the end", None),
        ("password: hunter2", None),
        ('{"secret": "one, two, three", "b": 1}', 29),
        (KEYS["pem"] + " a, b", None),
    ],
)
def test_a_seam_is_found_outside_secrets(text: str, index: int | None) -> None:
    assert seam(text, 0, len(text)) == index


@pytest.mark.parametrize("secret", ["first line 1\nsecond line 2\nthird line 3", "one lengthy, two lengthy, three"])
def test_pieces_of_a_configured_secret_are_redacted(secret: str) -> None:
    text, redactor = f"some words, {secret}, more words", Redactor([secret])
    start = 0
    while (index := seam(text, start, len(text))) is not None:
        shown = redactor(text[:index]) + redactor(text[index:])
        assert not any(secret[at : at + MIN_SECRET_CHARS] in shown for at in range(len(secret) - MIN_SECRET_CHARS))
        start = index + 1
    assert start > text.index(secret) + len(secret)


def test_clean_texts_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def recorded(text: str) -> str:
        looked.append(text)
        return redact(text)

    monkeypatch.setattr(redactor_module, "redact", recorded)
    redactor = Redactor(["a-configured-value"])
    texts = ("turn.finished", "password=hunter22", "a-configured-value")
    assert [redactor(text) for text in texts * 2] == ["turn.finished", f"password={MARK}", MARK] * 2
    assert looked == ["turn.finished", "password=hunter22", MARK, "password=hunter22", MARK]
    for number in range(redactor_module.MAX_KNOWN_CLEAN):
        redactor(f"chat {number}")
    redactor("turn.finished")
    assert looked[-1] == "turn.finished"  # other texts have replaced it
    assert Redactor(["turn.finished"])("turn.finished") == MARK  # other secrets, separate memory


def test_finding_a_seam_is_fast() -> None:
    for text in ('k: "a, ' * 50_000, "a, " * 100_000, "password= " * 30_000, '"' * 200_000):
        started = time.process_time()
        seam(text, 0, len(text))
        assert time.process_time() - started < 1


def test_short_configured_values_are_not_redacted() -> None:
    assert Redactor(["ollama", ""])("ollama is a server") == "ollama is a server"


def test_names_of_secret_fields_are_recognised() -> None:
    secret = ["token", "api_key", "telegram_token", "apiKey", "model.api_key", "clientSecret", "SECRET_KEY", "db_pass"]
    assert is_secret_name("password")
    other = ["max_tokens", "tokens", "event", "key", "platform", "secretary", "reported_prompt_tokens"]
    assert [name for name in (*secret, *other) if is_secret_name(name)] == secret


FIXTURES = Path(__file__).parents[1] / "fixtures" / "redaction"
_DIGITS, _SMALL = "0123456789", "abcdefghijklmnopqrstuvwxyz"
_ALPHABETS = {
    "0": _DIGITS,
    "f": _DIGITS + "abcdef",
    "a": _SMALL + _DIGITS,
    "A": _SMALL.upper() + _DIGITS,
    "x": _SMALL + _SMALL.upper() + _DIGITS,
    "b": _SMALL + _SMALL.upper() + _DIGITS + "-_",
    "B": _SMALL + _SMALL.upper() + _DIGITS + "+/",
}


def made_up(template: str) -> str:
    """Fill the template's `{kind:length}` with fixed characters that are no real key."""

    def characters(match: re.Match[str]) -> str:
        alphabet, length = _ALPHABETS[match[1]], int(match[2])
        seeds = (hashlib.sha256(f"{template} {match.start()} {index}".encode()).digest() for index in range(length))
        made = "".join(alphabet[int.from_bytes(seed, "big") % len(alphabet)] for seed in seeds)
        return "7Gk"[: length - 1] + made[3:-1] + made[0] if match[1] in "xbB" and length > 6 else made

    return re.sub(r"\{([0faAxbB]):(\d+)\}", characters, template)


def leaks(template: str) -> list[str]:
    """Return the secrets of a text that are still complete, or half complete, after redaction."""
    text = made_up(template)
    shown = redact(re.sub("[«»]", "", text))
    secrets = re.findall("«(.*?)»", text)
    return [
        secret for secret in secrets if secret in shown or (len(secret) > 15 and secret[-len(secret) // 2 :] in shown)
    ]


def test_redaction_of_our_own_text_does_not_increase() -> None:
    """Lines of this repository that mention tokens and keys but contain none."""
    text = (FIXTURES / "own_text.txt").read_text(encoding="utf-8")
    assert redact(text).count(MARK) <= 14  # 27 with fewer patterns


def test_a_card_number_needs_an_issuer_a_check_digit_and_a_hint() -> None:
    taken = "4012 8888 8888 1881", "4012-8888-8888-1881", "card 4012888888881881", "4012888888881881 (visa)"
    kept = "4012888888881881", "4012 8888 8888 1882", "card 4012888888881882", "9012 8888 8888 1886", "card 40128888"
    assert [redact(text) for text in taken if MARK not in redact(text)] == []
    assert [redact(text) for text in kept] == list(kept)


"""Texts with a secret between « and », each with the issue or documentation as its source."""


def corpus(file: str) -> list[str]:
    return [text for *_, text in tomllib.loads((FIXTURES / file).read_text(encoding="utf-8"))["cases"]]


OUTSIDE = [json.loads(line) for line in (FIXTURES.parent / "outside" / "secrets.jsonl").read_text("utf-8").splitlines()]
"""Texts with a secret between « and », each with the issue or documentation as its source."""
FOREIGN = [*corpus("known.toml"), *corpus("unseen.toml"), *(case["text"] for case in OUTSIDE)]


@pytest.mark.parametrize("text", FOREIGN)
def test_secrets_in_foreign_texts_logs_and_settings_are_redacted(text: str) -> None:
    assert leaks(text) == []


ORDINARY = tomllib.loads((FIXTURES / "ordinary.toml").read_text(encoding="utf-8"))["texts"]


@pytest.mark.parametrize("text", ORDINARY)
def test_texts_without_a_secret_are_not_changed(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", json.loads((FIXTURES / "labels.json").read_text("utf-8")))
def test_a_name_after_a_label_is_not_redacted_as_the_value(text: str) -> None:
    assert leaks(text) == []
    shown = redact(re.sub("[«»]", "", text))
    assert shown == re.sub("«.*?»", MARK, text).replace("DB_PASSWORD_2", MARK)


# Starts of all patterns, none of which continues to a match.
NEAR_MISSES = (
    *("a.", "x", "-eyJ", "-sk", "sk-", "SG.a", "://", "https://a:", "https://aaaaaaaaaaaaaaaa1", "token=", "token=a"),
    *("key: ", "password: ", "password is ", "password ", "password='", 'password: "', "pass=\\", "<password>"),
    *("password>a<", "密码", "密码是", "пароль - ", "is is password is ", "pin ", "cookie:", "cookie: a="),
    *('"cookie": "', "--cookie ", "authorization: ", "authorization: digest a=", "curl -u a", "curl -u a:", "4"),
    *("4111 ", "1111-", "=", "==", "a" * 43 + "=", "_live_", "_key_a", "secret: a = ", "secrets:\n  - a="),
    *('secrets: {"a": ', "| token | ", "set token ", "--token ", "token {", 'token", "value": ', "token: |\n"),
    *("requirepass ", "docker login -p ", "echo a | docker login ", "dp.ab.a.", "A3-ABCDEF-", "xoxb", "AKIA", "Q~"),
    *("-us1", ".atlasv1.", "_aB1", "pat-", "bearer ", "Basic a"),
)


@pytest.mark.parametrize("piece", NEAR_MISSES)
def test_redaction_time_is_linear_in_near_misses(piece: str) -> None:
    def seconds(length: int) -> float:
        text, took = piece * (length // len(piece)), []
        for _ in range(2):
            started = time.process_time()
            redact(text)
            took.append(time.process_time() - started)
        return min(took)

    seconds(1_000)  # compiles the patterns
    assert seconds(50_000) < 30 * seconds(5_000) + 0.05
