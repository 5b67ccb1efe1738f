"""Several bots of one platform in the configuration."""

import json
from pathlib import Path

import pytest

from gateway.config import merge_for_reload, reload_differences
from gateway.config.settings import Config
from gateway.config.tool_settings import places_of
from gateway.daemon.process import token_locks
from gateway.operator.effective import effective_settings
from hermes_state.setting_types import plain
from hermes_state.values import ChatKey
from platforms.settings import WebhookSettings
from tests.gateway.config.test_config import refusal
from tests.gateway.helpers import Load

TWO = """
telegram:
  - name: support
    token: "1:SUPPORT"
    webhook: {url: "https://example.org/a", port: 9001}
  - name: operations
    token: "2:OPERATIONS"
discord:
  - token: a-discord-token
  - {name: operations, token: another-one, thread_mention: true}
"""


def tokens(config: Config) -> dict[str, str]:
    return {bot.label: plain(bot.token) for bot in config.bots.values()}


def test_the_first_bot_of_a_list_is_stored_under_the_name_of_the_platform(load: Load) -> None:
    config = load(TWO).config
    assert {account: bot.label for account, bot in config.bots.items()} == {
        "telegram": "telegram/support",
        "telegram/operations": "telegram/operations",
        "discord": "discord",
        "discord/operations": "discord/operations",
    }
    assert tokens(config)["telegram/operations"] == "2:OPERATIONS"
    first, second = config.telegram.bots
    assert (first.webhook.port, second.webhook.url) == (9001, None)
    assert [bot.thread_mention for bot in config.discord.bots] == [False, True]


def test_one_account_means_what_it_meant_before(load: Load) -> None:
    config = load("telegram: {base_url: 'http://127.0.0.1:1'}", TELEGRAM_BOT_TOKEN="1:a").config
    [(account, bot)] = config.bots.items()
    assert (account, bot.label, bot.token_key, bot.server) == (
        "telegram",
        "telegram",
        "telegram.token",
        "http://127.0.0.1:1",
    )


def test_only_the_first_bot_uses_the_token_from_the_environment(load: Load) -> None:
    yaml = "telegram:\n  - name: support\n  - {name: operations, token: '2:b'}\n  - {name: idle}"
    loaded = load(yaml, HERMES_TELEGRAM__TOKEN="1:a", HERMES_TELEGRAM__BASE_URL="http://127.0.0.1:1")
    assert tokens(loaded.config) == {"telegram/support": "1:a", "telegram/operations": "2:b"}
    assert {bot.server for bot in loaded.config.bots.values()} == {"http://127.0.0.1:1"}
    assert "telegram.accounts[3]: telegram/idle has no token, so it is not connected" in loaded.warnings


def test_a_variable_contains_the_list_as_json(load: Load) -> None:
    accounts = json.dumps([{"token": "1:a"}, {"name": "operations", "token": "2:b"}])
    assert tokens(load(HERMES_TELEGRAM__ACCOUNTS=accounts).config) == {"telegram": "1:a", "telegram/operations": "2:b"}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        pytest.param(
            ["{token: '1:a'}", "{name: b, token: '1:a'}"],
            "line 3: telegram.accounts[2] has the same token as telegram.accounts[1]: each account needs",
            id="the same token twice",
        ),
        pytest.param(
            ["{name: b, token: '1:a'}", "{name: b, token: '2:b'}"],
            "line 3: telegram.accounts[2] has the same name as telegram.accounts[1]: give each account its own name",
            id="two accounts of one name",
        ),
        pytest.param(
            ["{token: '1:a'}", "{token: '2:b'}"],
            "line 3: telegram.accounts[2]: every account after the first needs a `name` other than telegram",
            id="no name",
        ),
        pytest.param(
            ["{token: '1:a'}", "{name: Ops Team, token: '2:b'}"],
            "line 3: telegram.accounts[2]: 'Ops Team' cannot be the name of an account",
            id="a bad name",
        ),
        pytest.param(
            ["{token: '1:a'}", "{name: ops, tokn: '2:b'}"],
            "line 3: telegram.accounts[2]: ops: unknown key tokn; did you mean token?",
            id="an unknown key",
        ),
        pytest.param(
            ["{token: '1:a'}", "{name: ops, token: '2:b', webhook: {prt: 1}}"],
            "line 3: telegram.accounts[2]: ops.webhook: unknown key prt; did you mean port?",
            id="an unknown key in a block",
        ),
        pytest.param(
            [
                "{webhook: {url: 'https://a.org/'}, token: '1:a'}",
                "{name: b, webhook: {url: 'https://b.org/'}, token: x}",
            ],
            "line 3: telegram.accounts[2] has the same webhook.port as telegram.accounts[1]: each webhook",
            id="one port for two webhooks",
        ),
        pytest.param(
            [
                "{webhook: {url: 'https://a.org/x', port: 1}, token: '1:a'}",
                "{name: b, webhook: {url: 'https://a.org/x', port: 2}, token: x}",
            ],
            "line 3: telegram.accounts[2] has the same webhook.url as telegram.accounts[1]: each webhook",
            id="one address for two webhooks",
        ),
        pytest.param(["7"], "line 2: telegram.accounts[1]: must be a block of names, each with a value", id="no block"),
    ],
)
def test_accounts_that_cannot_run_together_are_refused_with_their_line(
    load: Load, home: Path, entries: list[str], problem: str
) -> None:
    said = refusal(load, "telegram:\n" + "\n".join(f"  - {entry}" for entry in entries))
    assert said.startswith(f"{home / 'config.yaml'} {problem}")
    assert "\n" not in said
    assert "2:b" not in said


def test_a_token_in_a_variable_and_again_in_the_list_is_refused(load: Load) -> None:
    said = refusal(load, "telegram: [{name: a}, {name: b, token: '1:a'}]", HERMES_TELEGRAM__TOKEN="1:a")
    assert "telegram.accounts[2] has the same token as telegram.token" in said


def test_a_token_tells_the_id_of_its_bot(load: Load) -> None:
    yaml = "telegram: {token: '42:a'}\ndiscord: [{token: ODAzNTExMTAyMjQ2Nzg5MTI.x.y}, {name: b, token: no-id}]"
    assert [bot.bot_id for bot in load(yaml).config.bots.values()] == ["42", "80351110224678912", ""]


def test_two_tokens_for_the_first_account_are_refused(load: Load) -> None:
    accounts = "telegram: [{name: operations, token: '2:b'}, {name: c, token: '3:c'}]"
    said = refusal(load, accounts, HERMES_TELEGRAM__TOKEN="1:a")
    assert said == (
        "HERMES_TELEGRAM__TOKEN: telegram.token and telegram.accounts[1] are different tokens for the first account: "
        "remove one of them"
    )
    for variable, token in (("HERMES_TELEGRAM__TOKEN", "2:b"), ("TELEGRAM_BOT_TOKEN", "9:of-another-program")):
        assert tokens(load(accounts, **{variable: token}).config)["telegram/operations"] == "2:b"
    without_token = load("telegram: [{name: operations}]", TELEGRAM_BOT_TOKEN="1:a")
    assert tokens(without_token.config) == {"telegram/operations": "1:a"}
    assert "telegram.accounts[1]: must be a block" in refusal(load, "telegram: [7]", TELEGRAM_BOT_TOKEN="1:a")


def test_an_empty_value_of_an_account_counts_as_not_set(load: Load) -> None:
    empty = "{name: support, token: '', base_url: '', webhook: {url: '', secret: '', port: ''}}"
    loaded = load(f"telegram: [{empty}, {{name: idle, token: '  '}}]", HERMES_TELEGRAM__TOKEN="1:a")
    assert tokens(loaded.config) == {"telegram/support": "1:a"}
    assert loaded.config.telegram.bots[0].webhook == WebhookSettings()
    assert "telegram.accounts[2]: telegram/idle has no token, so it is not connected" in loaded.warnings


def test_a_token_in_place_of_a_name_is_not_shown(load: Load) -> None:
    said = refusal(load, "telegram: [{name: '123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1', token: operations}]")
    assert "cannot be the name of an account" in said
    assert "AAHdqTcv" not in said


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("telegram/support", "telegram.accounts[1] is stored as telegram, so write telegram instead of"),
        ("telegram/support:42", "telegram.accounts[1] is stored as telegram, so write telegram:42 instead of"),
    ],
)
def test_a_rule_for_the_first_account_that_would_never_apply_is_refused(
    load: Load, home: Path, place: str, problem: str
) -> None:
    said = refusal(load, f"{TWO}tools:\n  use_on: {{'{place}': {{'*': off}}}}")
    assert said.startswith(f"{home / 'config.yaml'} line 12: tools.use_on: {problem} {place}")
    rules = load(f"{TWO}tools: {{use_on: {{telegram: {{'*': off}}, telegram/operations: {{'*': on}}}}}}").config.tools
    keys = [ChatKey(platform="telegram", account=name, chat_ref="42") for name in ("telegram", "telegram/operations")]
    assert [rules.switch_of("web_fetch", key) for key in keys] == ["off", "on"]


def test_an_item_of_a_list_in_one_text_has_the_line_of_its_key(load: Load, home: Path) -> None:
    said = refusal(load, "access:\n  admins: telegram:42, foo")
    assert said.startswith(f"{home / 'config.yaml'} line 2: access.admins: 'foo' is not an id")


def test_tokens_of_accounts_are_secrets_and_each_has_a_lock(load: Load, tmp_path: Path) -> None:
    loaded = load(TWO)
    assert {"1:SUPPORT", "2:OPERATIONS", "a-discord-token", "another-one"} <= set(loaded.secrets())
    assert "OPERATIONS" not in json.dumps(effective_settings(loaded), default=str)
    locks = dict(token_locks(loaded, tmp_path))
    assert list(locks)[:3] == ["the telegram/support token", "the telegram/operations token", "the Discord token"]
    assert len(set(locks.values())) == 4


def test_a_changed_list_needs_a_restart(load: Load) -> None:
    old, new = load("telegram: [{token: '1:a'}]"), load("telegram: [{token: '1:a'}, {name: b, token: '2:b'}]")
    assert reload_differences(old, new).needs_restart == ("telegram.accounts",)
    assert list(merge_for_reload(old, new).config.bots) == ["telegram"]


def test_settings_can_refer_to_a_chat_of_one_account_to_the_account_and_to_the_platform() -> None:
    chat = ChatKey(platform="telegram", account="telegram/operations", chat_ref="-100", thread_ref="7")
    assert list(places_of(chat)) == [
        "telegram/operations:-100/7",
        "telegram/operations:-100",
        "telegram/operations",
        "telegram",
    ]
