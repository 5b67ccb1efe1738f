"""Agents in chats to which webhooks and scripts write: they must not take over the role or place of a person."""

import time
from contextlib import AsyncExitStack

from tests.e2e.test_outside import SECRET, Outside, post, signed
from tests.e2e.world import World
from tests.fakes.discord_state import ALICE, GUILD


async def started(world: World, config: str, stack: AsyncExitStack) -> Outside:
    world.configure(config)
    for name in ("HERMES_ACCESS__ALLOW", "HERMES_ACCESS__ADMINS"):
        del world.gateway.environ[name]
    world.gateway.environ |= world.web_chat()
    outside = Outside(world, stack)
    await outside.start()
    return outside


async def accepted(outside: Outside, body: bytes) -> bool:
    return await post(outside, "plain", body, signed(SECRET, body.hex(), int(time.time()), body)) == 202


async def test_webhooks_and_scripts_leave_a_private_chat_to_the_agent_of_its_person(world: World) -> None:
    config = f"""
access: {{allow: ["telegram:43"], admins: ["telegram:42"]}}
agents: {{ops: {{persona: You look after our servers.}}, desk: }}
webhooks: {{plain: {{secret: {SECRET}, chat: "telegram:42"}}}}
routes:
  - {{role: admin, agent: ops}}
"""
    async with AsyncExitStack() as stack:
        outside = await started(world, config, stack)
        await world.converse("hello from an admin")
        await world.ask("hello from a customer", "hello from a customer", chat_id=43)
        assert (await world.command_line("send", "telegram:43", "nightly report", "--ask"))[0] == 0
        assert await world.replies(2, chat_id=43, match="nightly report")
        assert await accepted(outside, b"disk full")
        assert await world.replies(2, match="disk full")
        assert world.query("SELECT agent, end_reason FROM sessions ORDER BY id") == [("ops", None), ("", None)]
        world.configure(config + '  - {chat: "telegram:43", agent: desk}\n')
        await world.reload()
        await world.command_line("send", "telegram:43", "second report", "--ask")
        assert await world.replies(4, chat_id=43, match="second report"), "a route of the place needs no person"
        assert world.query("SELECT agent FROM sessions ORDER BY id") == [("ops",), ("",), ("desk",)]


async def test_a_webhook_reaches_the_agent_of_a_new_route_for_the_server(discord_world: World) -> None:
    world = discord_world
    config = f"""
access: {{allow: ["discord:{ALICE}"]}}
agents: {{support: {{persona: You help customers.}}}}
"""
    async with AsyncExitStack() as stack:
        outside = await started(world, config, stack)
        await world.gateway.wait_for_log("discord running", since=world.gateway.started_from)
        said = {"user_id": ALICE, "content": "one in the server", "channel": "general", "mention": True}
        await world.dc.post("message", said)
        assert await world.dc.get("sent", action="send|edit", match="one in the server", wait=20, count=1)
        [(chat,)] = world.query("SELECT chat_ref FROM chats WHERE platform = 'discord'")
        routes = f"routes: [{{guild: {GUILD}, agent: support}}]\n"
        world.configure(f'{config}{routes}webhooks: {{plain: {{secret: {SECRET}, chat: "discord:{chat}"}}}}\n')
        await world.reload()
        assert await accepted(outside, b"disk full")
        await world.until_rows("SELECT count(*) FROM turns WHERE ended_at IS NOT NULL", (2,))
        assert world.query("SELECT agent FROM sessions ORDER BY id") == [("",), ("support",)]
