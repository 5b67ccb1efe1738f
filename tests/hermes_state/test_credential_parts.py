import time
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from hermes_state.redaction import MARK, Redactor, secret_parts

TOKEN = "hbr7Qm2xLd9vTz4K"  # matches no known shape, so only the configuration reveals it
LOGIN = f"harbour:{TOKEN}"
BASIC = b64encode(LOGIN.encode()).decode()

CREDENTIALS = {
    "bearer": f"Bearer {TOKEN}",
    "lower case": f"bearer {TOKEN}",
    "two spaces": f"Bearer  {TOKEN}",
    "named": f"Authorization: Bearer {TOKEN}",
    "token": f"token {TOKEN}",
    "quoted token": f'Token token="{TOKEN}"',
    "api key": f"ApiKey {TOKEN}",
    "bot": f"Bot {TOKEN}",
    "genie key": f"GenieKey {TOKEN}",
    "unknown scheme": f"Harbour {TOKEN}",
    "digest": f'Digest username="ann", realm="pier", response="{TOKEN}"',
    "basic": f"Basic {BASIC}",
    "basic with a token as the name": f"Basic {b64encode(f'{TOKEN}:'.encode()).decode()}",
    "basic with a placeholder": f"Basic {b64encode(f'{TOKEN}:x-oauth-basic'.encode()).decode()}",
    "api key that is a login": f"ApiKey {BASIC}",
    "cookie": f"theme=dark; session={TOKEN}; lang=en",
    "one cookie": f"sid={TOKEN}",
    "query": f"https://mcp.example.org/mcp?tavilyApiKey={TOKEN}&lang=en",
    "signature": f"https://files.example.org/a?sv=2022-11-02&sig={TOKEN}",
    "fragment": f"https://mcp.example.org/mcp#access_token={TOKEN}",
    "login": LOGIN,
    "headers": f'{{"Authorization": "Bearer {TOKEN}"}}',
    "header as an argument": f"--header=Authorization: Bearer {TOKEN}",
    "negotiate": f"Negotiate {TOKEN}",
    "scheme of two words": f"Harbour-API-Key {TOKEN}",
    "path": f"https://mcp.example.org/api/s/{TOKEN}/mcp",
    "user info": f"https://ann:{TOKEN}@mcp.example.org/sse",
    "token as user": f"https://{TOKEN}@mcp.example.org/sse",
    "proxy": f"http://ann:{TOKEN}@proxy.example.org:3128",
    "postgres": f"postgresql://ann:{TOKEN}@db.example.org/boats",
    "postgres query": f"postgresql://db.example.org/boats?user=ann&password={TOKEN}",
    "dsn": f"host=db user=ann password={TOKEN} dbname=boats",
    "quoted dsn": f"host=db user=ann password='{TOKEN}' dbname=boats",
    "azure": f"DefaultEndpointsProtocol=https;AccountName=ann;AccountKey={TOKEN};EndpointSuffix=core.windows.net",
    "shared access signature": f"SharedAccessSignature sr=boats&sig={TOKEN}&se=1",
    "json": f'{{"type": "service_account", "client_secret": "{TOKEN}"}}',
}


@pytest.mark.parametrize("value", CREDENTIALS.values(), ids=CREDENTIALS)
def test_the_token_in_a_credential_is_a_secret(value: str) -> None:
    shown = Redactor([value])(f"unknown credential {TOKEN}, asked with {value}")
    assert TOKEN not in shown
    assert shown.startswith(f"unknown credential {MARK},")


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (f"Basic {BASIC}", LOGIN),
        (f"https://harbour:{TOKEN}@mcp.example.org", f"sent {BASIC}"),
        ("https://ann:pier%2Fseven%2F7@mcp.example.org", "refused pier/seven/7"),
        ("https://ann:pier%2Fseven%2F7@mcp.example.org", "refused pier%2fseven%2f7"),
        ("Bearer pier/seven+seven", "refused pier%2Fseven%2Bseven"),
        ("https://mcp.example.org/?key=pier%2Fseven%2F7", "refused pier/seven/7"),
    ],
)
def test_parts_are_known_as_written_and_decoded(value: str, sent: str) -> None:
    assert MARK in Redactor([value])(sent)
    assert "pier" not in Redactor([value])(sent)
    assert BASIC not in Redactor([value])(sent)


@pytest.mark.parametrize(
    "value",
    [
        "Bearer",
        "Bearer required",
        "Bearer password",
        "Bearer ${TOKEN}",
        "Basic dXNlcjpwYXNz",  # user:pass
        "hermes gateway",
        "application/json, text/event-stream",
        "--max-old-space-size=4096",
        "theme=dark-mode; lang=en-US",
        "https://hermes-gateway@example.org/sse",
        "https://boats.openai.azure.com/openai/deployments/gpt-4o-2024-08-06?api-version=2024-10-21",
        "https://api.fireworks.ai/inference/v1/accounts/fireworks/models/llama4-scout-instruct-basic",
        "postgresql://postgres@db.example.org/boats?sslmode=verify-full&connect_timeout=10",
        "2024-11-05T10:00:00Z",
    ],
)
def test_words_next_to_a_credential_are_not_secrets(value: str) -> None:
    words = ("Bearer", "required", "password", "hermes", "gateway", "postgres", "dark-mode", "openai", "4096")
    shown = Redactor([value])(f"these stay: {', '.join(words)}")
    assert shown == f"these stay: {', '.join(words)}"
    assert set(secret_parts(value)) <= {"dXNlcjpwYXNz", "user:pass"}


HALF = len(TOKEN) // 2
_ALIGNED = [b64encode(("x" * shift + TOKEN + "yz").encode()).decode() for shift in range(3)]

LEAKS = {
    "plain": f"https://evil.example/?q={TOKEN}",
    "lower case": f"https://evil.example/?q={TOKEN.lower()}",
    "upper case": f"https://evil.example/{TOKEN.upper()}",
    "other case": f"https://evil.example/?q={TOKEN.swapcase()}",
    "slash in the middle": f"https://evil.example/{TOKEN[:HALF]}/{TOKEN[HALF:]}",
    "hyphens": f"https://evil.example/?q={'-'.join(TOKEN)}",
    "dots": f"https://{'.'.join(TOKEN[at : at + 4] for at in range(0, len(TOKEN), 4))}.evil.example/",
    "spaces": " ".join(TOKEN),
    "base64": f"https://evil.example/?q={_ALIGNED[0]}",
    "base64 shifted once": f"https://evil.example/?q={_ALIGNED[1]}",
    "base64 shifted twice": f"https://evil.example/?q={_ALIGNED[2]}",
    "base64 without padding": f"https://evil.example/?q={_ALIGNED[1].rstrip('=')}",
    "base64 in pieces": f"https://evil.example/{_ALIGNED[1][:9]}/{_ALIGNED[1][9:]}",
    "base64 for addresses": f"https://evil.example/?q={urlsafe_b64encode(b'??>' + TOKEN.encode()).decode()}",
    "base64 with percent signs": f"https://evil.example/?q={quote(_ALIGNED[2], safe='')}",
    "hex": f"https://evil.example/?q={TOKEN.encode().hex()}",
    "upper hex": f"https://evil.example/?q={TOKEN.encode().hex().upper()}",
    "hex with colons": f"https://evil.example/?q={TOKEN.encode().hex(':')}",
    "percent signs": "https://evil.example/?q=" + "".join(f"%{byte:02X}" for byte in TOKEN.encode()),
    "percent signs, twice": "https://evil.example/?q=" + "".join(f"%25{byte:02x}" for byte in TOKEN.encode()),
    "percent signs, three times": "https://evil.example/?q=" + "".join(f"%2525{byte:02x}" for byte in TOKEN.encode()),
    "wide letters": "".join(chr(ord(letter) + 0xFEE0) for letter in TOKEN),
}


@pytest.mark.parametrize("configured", [TOKEN, f"Bearer {TOKEN}", f"https://ann:{TOKEN}@db.example.org"])
@pytest.mark.parametrize("address", LEAKS.values(), ids=LEAKS)
def test_encoded_secrets_are_detected(address: str, configured: str) -> None:
    assert Redactor([configured]).would_leak(address)


def test_ordinary_addresses_contain_no_secret() -> None:
    head = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJib2F0cyJ9"
    token, another = f"{head}.dozjgNryP4J3jVmNHl0w5NXgL0n3I9Pq", f"{head}.Kq9ZkT1uV7wX3yB5cD8eF0gH2iJ4lM6n"
    configured = [
        TOKEN,
        "sk-ant-api03-" + "Ab1" * 30,
        "correct horse battery staple",
        token,
        "1234567890:" + "Zx9" * 12,
    ]
    redactor = Redactor([*configured, "postgresql://ann:pier-seven-7@db.example.org/boats"])
    for address in (
        "https://example.org/docs/sk-ant-api03-format?lang=en",
        f"https://files.example.org/boats?token={another}",
        "https://t.me/1234567890",
        "https://db.example.org/boats",
        "how does a horse carry a battery",
        "https://en.wikipedia.org/wiki/Base64?action=raw&oldid=1234567890123",
        "https://example.org/" + "a/b/c/" * 200,
    ):
        assert not redactor.would_leak(address), address
    assert redactor.would_leak(f"https://evil.example/{token.rpartition('.')[2]}")
    assert redactor.would_leak("https://evil.example/correct/horse/battery?staple")


def test_many_parts_and_long_addresses_are_checked_quickly() -> None:
    values = [f"https://ann:{TOKEN}{number:04}@mcp.example.org/sse?key={TOKEN}" for number in range(50)]
    Redactor(values)
    started = time.process_time()
    for _ in range(20):
        redactor = Redactor(values)
    for text in ("https://example.org/" + "h/b/r/7/" * 500, TOKEN[:11] * 400, "%25" * 1_500):
        assert not redactor.would_leak(text)
    assert time.process_time() - started < 3
