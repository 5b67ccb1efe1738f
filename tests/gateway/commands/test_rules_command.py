"""`/rules`: the list, permissions, and the effect of `drop`."""

from pathlib import Path

from hermes_state.store.writer import Store
from hermes_state.values import Origin
from tests.gateway.commands.test_compress_command import compress, view_of
from tests.gateway.helpers import TestGateway
from tests.gateway.models.windows import CountingModel, say_much, talking


async def told(gateway: TestGateway, command: str) -> str:
    await gateway.tell(command)
    return gateway.adapter.texts()[-1]


async def test_rules_are_listed_across_a_compression_until_they_are_dropped(store: Store, tmp_path: Path) -> None:
    async with talking(store, tmp_path, CountingModel(), count=6) as gateway:
        assert "No standing rules" in await told(gateway, "/rules")
        await gateway.ask("Always answer in German. It always rains here.")
        [rule] = [row for row in await view_of(gateway) if "German" in (row.text or "") and row.origin is Origin.HUMAN]
        line = f"- [m{rule.id}] Always answer in German."
        assert line in await told(gateway, "/rules")
        await say_much(gateway, range(12))
        await compress(gateway)
        assert line in await told(gateway, "/rules")
        assert "No active rule" in await told(gateway, "/rules drop m999999")
        assert "Send `/rules`" in await told(gateway, "/rules away")
        assert f"Rule m{rule.id} no longer applies" in await told(gateway, f"/rules drop m{rule.id}")
        assert "No standing rules" in await told(gateway, "/rules")
        assert (await view_of(gateway))[-1].origin is Origin.NOTICE
        await say_much(gateway, range(30, 42))
        await compress(gateway)
        assert "No standing rules" in await told(gateway, "/rules")
        assert not any("Always answer in German" in (row.text or "") for row in await view_of(gateway))
