"""Agents and routes in the configuration: what an agent inherits, which route wins, and what is refused."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.config import ConfigRejected, LoadedConfig, load_config
from gateway.config.agents import AgentRoute, route_for_chat
from hermes_state.values import ChatKey, ChatScope


def loaded(home: Path, yaml: str) -> LoadedConfig:
    (home / "config.yaml").write_text(yaml)
    return load_config({"HERMES_HOME": str(home)})


def refusal(home: Path, yaml: str) -> str:
    with pytest.raises(ConfigRejected) as caught:
        loaded(home, yaml)
    return str(caught.value).replace(str(home / "config.yaml"), "file")


def test_an_agent_has_the_top_level_configuration_except_for_its_own_keys(tmp_path: Path) -> None:
    (tmp_path / "ops.md").write_text("Be brief.")
    found = loaded(
        tmp_path,
        """
model: {name: main, base_url: "http://127.0.0.1:1/v1", api_key: sk-main-key-123, fallbacks: [spare]}
costs: {daily_cap: 9, conversation_cap: 3}
tools: {use: {terminal: "off"}, approval: {writes: deny}}
agents:
  ops:
    persona: ops.md
    model: {name: big, base_url: "http://127.0.0.1:2/v1", api_key: sk-ops-key-4567}
    tools: {approval: {writes: allow}}
    costs: {daily_cap: 2}
  desk: {persona: You are at the desk.}
routes: [{agent: ops, chat: discord}, {agent: desk, role: admin}]
""",
    )
    assert found.warnings == found.warnings[:1]
    ops, desk = found.agent("ops"), found.agent("desk")
    assert ops.persona_file == tmp_path / "ops.md"
    assert (ops.config.model.name, ops.config.model.plain_key) == ("big", "sk-ops-key-4567")
    assert ops.config.model.fallback_routes == found.config.model.fallback_routes, "a name means the same model"
    assert ops.config.tools.approval.writes == "allow"
    assert ops.config.tools.use == {"terminal": "off"}
    assert (ops.daily_cap, ops.config.costs.daily_cap, ops.config.costs.conversation_cap) == (2, 9, 3)
    assert desk.config.agent.persona == "You are at the desk."
    assert (desk.daily_cap, desk.config.model) == (None, found.config.model)
    assert found.agent("").config is found.config
    assert {"sk-main-key-123", "sk-ops-key-4567"} <= {*found.secrets()}


def test_a_tool_that_is_off_at_the_top_level_stays_off_unless_an_agent_names_it(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
tools:
  use: {terminal: "off", web_fetch: admins}
  use_on: {discord: {delegate: "off"}}
  approval_on: {discord: {writes: deny}}
agents:
  ops: {tools: {use: {web_fetch: "on"}, use_on: {discord: {todo: "off"}}, approval_on: {telegram: {writes: allow}}}}
  desk: {tools: {use: {"*": "off", todo: "on"}}}
""",
    )
    ops, desk = found.agent("ops").config.tools, found.agent("desk").config.tools
    on_discord, topic = (ChatKey(platform=one, account=one, chat_ref="5") for one in ("discord", "telegram"))
    switches = {name: ops.switch_of(name, on_discord) for name in ("terminal", "web_fetch", "delegate", "todo")}
    assert switches == {"terminal": "off", "web_fetch": "on", "delegate": "off", "todo": "off"}
    assert (ops.approval_in(on_discord).writes, ops.approval_in(topic).writes) == ("deny", "allow")
    assert [desk.switch_of(name, topic) for name in ("web_fetch", "todo")] == ["off", "on"]
    assert found.config.tools.use == {"terminal": "off", "web_fetch": "admins"}


def test_places_at_the_top_level_loosen_nothing_that_an_agent_sets(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
tools:
  use_on: {telegram: {"*": "on", terminal: "on", delegate: "off"}}
  approval_on: {telegram: {executes: allow, writes: allow, mcp: allow}, discord: {executes: deny}}
agents:
  kiosk: {tools: {use: {"*": "off", todo: admins}, approval: {executes: deny, writes: deny}}}
  desk: {tools: {use: {todo: "off", delegate: "on"}, approval: {writes: ask}}}
  ops: {tools: {use: {"*": "off"}, use_on: {telegram: {terminal: "on"}}, approval_on: {telegram: {writes: allow}}}}
""",
    )
    on_telegram, on_discord = (ChatKey(platform=one, account=one, chat_ref="5") for one in ("telegram", "discord"))
    tools = {name: found.agent(name).config.tools for name in ("kiosk", "desk", "ops")}
    names = ("terminal", "delegate", "todo", "web_fetch")
    switches = {agent: [one.switch_of(name, on_telegram) for name in names] for agent, one in tools.items()}
    assert switches == {
        "kiosk": ["off", "off", "admins", "off"],
        "desk": ["on", "off", "off", "on"],
        "ops": ["on", "off", "off", "off"],
    }
    policies = {agent: one.approval_in(on_telegram).model_dump() for agent, one in tools.items()}
    assert policies == {
        "kiosk": {"writes": "deny", "executes": "deny", "mcp": "deny"},
        "desk": {"writes": "ask", "executes": "allow", "mcp": "ask_admin"},
        "ops": {"writes": "allow", "executes": "ask_admin", "mcp": None},
    }
    assert tools["desk"].approval_in(on_discord).executes == "deny"


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        (
            "agents:\n  ops:\nroutes:\n  - {agent: opps}",
            "file line 4: routes: there is no agent 'opps'; did you mean ops?",
        ),
        (
            "routes:\n  - {agent: default, account: telegram/shp}\ntelegram: [{token: '1:a'}, {name: shop}]",
            "file line 2: routes: there is no account 'telegram/shp'; did you mean telegram/shop?",
        ),
        (
            "telegram: [{name: ops, token: '1:a'}]\nroutes:\n  - {agent: default, chat: 'telegram/ops:7'}",
            "file line 3: routes[1]: telegram.accounts[1] is stored as telegram, so write telegram:7 instead of t",
        ),
        (
            "routes:\n  - {agent: default, chat: 'telegrm:7'}",
            "file line 2: routes: there is no account 'telegrm'; did you mean telegram?",
        ),
        (
            "agents:\n  a:\n  b:\nroutes:\n  - {agent: a, role: admin}\n  - {role: Admin, agent: b}",
            "file line 5 and file line 6: routes: both routes match the same messages: remove one of them",
        ),
        ("agents:\n  ops:\n    tool: 1", "file line 3: agents.ops: unknown key tool; did you mean tools?"),
        ("agents:\n  ops:\n    tools: 5", "file line 3: agents.ops: tools is a block, not a value"),
        ("agents:\n  ops:\n    costs: {prices: {}}", "agents.ops: unknown key costs.prices; valid keys: "),
        (
            "agents:\n  ops:\n    memory:\n      flush: 7",
            "file line 4: memory.flush: must be true or false (is 7) (agent ops)",
        ),
        ("agents:\n  ops:\n    persona: no.md", "file line 3: agents.ops.persona: there is no file "),
        (
            "agents:\n  ops:\n    skills: ../x",
            "file line 3: agents.ops.skills: must be the name of a folder in the state ",
        ),
        *(
            (f"routes:\n  - {{agent: default, {keys}}}", f"file line 2: routes: {said}")
            for keys, said in (
                ("chat: 'telegram:1', account: local", "chat telegram:1, account local: the account local has no such"),
                ("chat: local, account: telegram", "chat local, account telegram: the account telegram has no such"),
                ("chat: 'telegram:'", "telegram: is not a chat: write it as `/whoami` shows it"),
                ("chat: 'telegram:@group'", "telegram:@group is not a chat: write it as `/whoami` shows it"),
            )
        ),
        ("agents:\n  Ops:", "agents: 'Ops' cannot be the name of an agent: use at most 32 of the characters"),
        ("agents:\n  default: {persona: x}", "agents: default is the agent at the top level"),
        (
            "routes:\n  - {agent: default, guild: 9}\n  - {agent: default, guild: '9'}",
            "file line 2 and file line 3: routes: both routes match the same messages: remove one of them",
        ),
        (
            "routes:\n  - {agent: default, chat: 'telegram:7', guild: 9}",
            "file line 2: routes: guild 9 is on Discord and telegram:7 is not, so nothing matches: remove one of them",
        ),
        (
            "routes:\n  - {agent: default, guild: Lab}",
            "file line 2: routes[1]: route.guild: must be the id of a Discord server, a number",
        ),
        (
            "routes:\n  - {agent: default, role: '@Staff'}",
            "file line 2: routes[1]: route.role: must be admin, moderator, user, or the id of a Discord role, ",
        ),
        (
            "routes:\n  - {agent: default}\n  - {chat: telegram}",
            "file line 3: routes[2]: agent is missing: set it to the name of an agent",
        ),
        (
            "routes:\n  - {agent: default, chats: x}",
            "file line 2: routes[1]: route: unknown key chats; did you mean chat?",
        ),
        ("routes: {default: telegram}", "file line 1: routes: must be a list of blocks with agent, and with chat, "),
    ],
)
def test_each_mistake_is_refused_with_its_line(tmp_path: Path, yaml: str, said: str) -> None:
    assert said in refusal(tmp_path, yaml)


def test_what_an_agent_leaves_empty_comes_from_the_top_level(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
model: {name: main, base_url: "http://127.0.0.1:1/v1", api_key: sk-main-key-123, context_length: 9000}
memory: {flush: true}
agents:
  ops:
    model: {temperature: 0.2}
    memory:
    tools: {approval: }
""",
    )
    ops, main = found.agent("ops").config, found.config
    assert (ops.model.name, ops.model.plain_key, ops.model.context_length) == ("main", "sk-main-key-123", 9000)
    assert (ops.model.temperature, main.model.temperature) == (0.2, None)
    assert (ops.memory, ops.tools) == (main.memory, main.tools)


def test_an_agent_without_a_route_is_a_warning_with_its_line(tmp_path: Path) -> None:
    found = loaded(tmp_path, "local: {enabled: true}\nagents:\n  idle:\n")
    assert f"{tmp_path}/config.yaml line 3: no route leads to the agent idle: add a route" in found.warnings[-1]


def test_a_discord_role_with_shared_sessions_is_a_warning_with_its_line(tmp_path: Path) -> None:
    yaml = "local: {enabled: true}\nroutes:\n  - {agent: default, role: 71}\n"
    said = f"{tmp_path}/config.yaml line 3: routes: role 71 has no effect, because the people in a channel share"
    assert said in loaded(tmp_path, yaml).warnings[-1]
    assert not any("role 71" in line for line in loaded(tmp_path, yaml + "sessions: {groups: per_user}\n").warnings)


ORDER = [
    ("discord/shop:55#42", "", "", ""),
    ("discord/shop:55", "", "", ""),
    ("discord/shop:50", "discord/shop", "9", "72"),
    ("discord/shop:50", "", "", ""),
    ("", "", "9", "72"),
    ("", "", "", "72"),
    ("discord/shop", "discord/shop", "9", "71"),
    ("", "", "9", "admin"),
    ("", "", "9", ""),
    ("discord", "discord/shop", "", "admin"),
    ("", "discord/shop", "", "admin"),
    ("", "discord/shop", "", ""),
    ("discord/shop", "", "", ""),
    ("discord", "", "", ""),
    ("", "", "", "admin"),
    ("", "", "", ""),
]
"""Chat, account, guild and role of routes, the most specific first, for a person in a thread of a Discord channel."""
THREAD = ChatKey(platform="discord", account="discord/shop", chat_ref="55", user_ref="42")
SCOPE = ChatScope(guild_ref="9", parent_ref="50", role_refs="72 71")


def routes_of(selectors: Iterable[tuple[str, str, str, str]]) -> list[AgentRoute]:
    return [AgentRoute(agent=str(n), chat=c, account=a, guild=g, role=r) for n, (c, a, g, r) in enumerate(selectors)]


@pytest.mark.parametrize("place", range(len(ORDER)))
def test_a_more_specific_route_wins(place: int) -> None:
    found = route_for_chat(routes_of(ORDER[place:])[::-1], THREAD, SCOPE, "admin")
    assert found is not None
    assert found.agent == "0"


def test_roles_count_only_in_a_session_of_one_person() -> None:
    routes = routes_of([("", "", "9", "72"), ("", "", "9", "")])
    found = route_for_chat(routes, replace(THREAD, user_ref=""), SCOPE)
    assert found is routes[1]


def test_a_topic_is_more_specific_than_its_group() -> None:
    topic = ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="7")
    routes = routes_of([("telegram:-100", "", "", ""), ("telegram:-100/7", "", "", "")])
    assert route_for_chat(routes, topic, ChatScope()) is routes[1]
    assert route_for_chat(routes, replace(topic, thread_ref="8"), ChatScope()) is routes[0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "x", "discord/shop:50", "discord", "discord/shop:55"]),
            st.sampled_from(["", "discord/shop", "other"]),
            st.sampled_from(["", "9", "8"]),
            st.sampled_from(["", "admin", "user", "71", "72", "73"]),
        ),
        unique=True,
    )
)
def test_the_order_of_routes_does_not_matter(selectors: list[tuple[str, str, str, str]]) -> None:
    routes = routes_of(selectors)
    assert route_for_chat(routes, THREAD, SCOPE, "admin") == route_for_chat(routes[::-1], THREAD, SCOPE, "admin")
