import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.access.permissions import AccessControl, AccessResult
from hermes_state.admin import pairings
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store
from hermes_state.values import LOCAL_OWNER, ChatKind, InboundMessage, Sender, UserRef
from tests.gateway.helpers import ANN, BOSS, EVE, TestGateway, config_of, live_config, serving
from tests.hermes_state.rows import START, key_of


def access_of(store: Store, **access: object) -> AccessControl:
    return AccessControl(store, live_config(config_of(access=access)))


async def message(store: Store, tmp_path: Path, sender: Sender, kind: ChatKind, is_addressed: bool) -> InboundMessage:
    async with serving(store, tmp_path, is_started=False) as gateway:
        return replace(gateway.message("hi", sender=sender, is_addressed=is_addressed), chat_kind=kind)


@pytest.mark.parametrize(
    ("access", "ref", "role"),
    [
        ({"allow": [], "admins": []}, ANN.ref, None),
        ({}, ANN.ref, UserRole.USER),
        ({}, BOSS.ref, UserRole.ADMIN),
        ({}, EVE.ref, None),
        ({}, "discord:1", None),
        ({}, "telegram:11", None),
        ({"allow_all": True}, EVE.ref, UserRole.USER),
        ({"allow_all": True}, BOSS.ref, UserRole.ADMIN),
        ({"allow": [], "admins": []}, LOCAL_OWNER, UserRole.ADMIN),
    ],
)
async def test_only_named_people_have_a_role(
    store: Store, access: Mapping[str, object], ref: UserRef, role: UserRole | None
) -> None:
    assert access_of(store, **access).role_of(ref) is role


async def test_the_role_for_routes_is_that_of_the_person_whose_session_it_is(store: Store) -> None:
    access = access_of(store)
    group, boss = key_of("-7"), BOSS.ref.partition(":")[2]
    assert access.role_in(key_of(boss), ChatKind.DIRECT, BOSS.ref) == "admin"
    assert access.role_in(group, ChatKind.GROUP, BOSS.ref) == "", "people share the session"
    assert access.role_in(replace(group, user_ref=boss), ChatKind.GROUP, LOCAL_OWNER) == "admin"
    assert access.role_in(replace(group, user_ref=ANN.id), ChatKind.GROUP, LOCAL_OWNER) == "user"
    assert access.role_in(key_of(ANN.id), ChatKind.DIRECT, LOCAL_OWNER) is None, "the owner writes from elsewhere"


async def test_a_pairing_gives_access_until_it_is_revoked(store: Store) -> None:
    access = access_of(store)
    await store.write(pairings.offer, EVE, "ABCDEFGH", 60_000, 10, START)
    await access.load()
    assert access.role_of(EVE.ref) is None
    await store.write(pairings.approve, pairings.hash_code("ABCDEFGH"), UserRole.ADMIN, "x", START)
    await access.load()
    assert access.role_of(EVE.ref) is UserRole.ADMIN
    await store.write(pairings.revoke, EVE.ref, "x", START)
    await access.load()
    assert access.role_of(EVE.ref) is None


async def test_a_pairing_does_not_change_a_configured_admin(store: Store) -> None:
    access = access_of(store)
    await store.write(pairings.offer, BOSS, "ABCDEFGH", 60_000, 10, START)
    await store.write(pairings.approve, pairings.hash_code("ABCDEFGH"), UserRole.USER, "x", START)
    await access.load()
    assert access.role_of(BOSS.ref) is UserRole.ADMIN


BOT = replace(ANN, is_bot=True)


@pytest.mark.parametrize(
    ("sender", "kind", "is_addressed", "result"),
    [
        (ANN, ChatKind.DIRECT, True, AccessResult.ADMITTED),
        (EVE, ChatKind.DIRECT, True, AccessResult.STRANGER),
        (replace(EVE, name=ANN.ref), ChatKind.DIRECT, True, AccessResult.STRANGER),
        (ANN, ChatKind.GROUP, True, AccessResult.ADMITTED),
        (ANN, ChatKind.GROUP, False, AccessResult.UNADDRESSED),
        (EVE, ChatKind.GROUP, True, AccessResult.DENIED),
        (EVE, ChatKind.GROUP, False, AccessResult.UNADDRESSED),
        (EVE, ChatKind.CHANNEL, True, AccessResult.DENIED),
        (EVE, ChatKind.THREAD, True, AccessResult.DENIED),
        (BOT, ChatKind.DIRECT, True, AccessResult.BOT),
        (BOT, ChatKind.GROUP, True, AccessResult.BOT),
    ],
)
async def test_which_messages_are_admitted(
    store: Store, tmp_path: Path, sender: Sender, kind: ChatKind, is_addressed: bool, result: AccessResult
) -> None:
    access = access_of(store)
    assert access.judge(await message(store, tmp_path, sender, kind, is_addressed)) is result
    assert (access.counts[result], sum(access.counts.values())) == (1, 1)


async def test_of_two_concurrent_loads_the_later_one_wins(store: Store) -> None:
    await store.write(pairings.offer, EVE, "ABCDEFGH", 60_000, 10, START)
    await store.write(pairings.approve, pairings.hash_code("ABCDEFGH"), UserRole.USER, "x", START)
    access = access_of(store)
    real, has_looked, may_answer = store.read, asyncio.Event(), asyncio.Event()

    async def read(fn: object) -> object:
        is_first = not has_looked.is_set()
        found = await real(fn)  # type: ignore[arg-type]
        has_looked.set()
        if is_first:
            await may_answer.wait()
        return found

    access._store = type("Slow", (), {"read": staticmethod(read), "write": store.write})()
    first = asyncio.create_task(access.load())
    await has_looked.wait()
    await store.write(pairings.revoke, EVE.ref, "x", START)
    second = asyncio.create_task(access.load())
    await asyncio.wait({second}, timeout=0.05)  # it may not be done before the first
    may_answer.set()
    await asyncio.gather(first, second)
    assert access.role_of(EVE.ref) is None


async def test_a_revocation_is_loaded_even_from_a_slow_database(gateway: TestGateway) -> None:
    access = gateway.access
    access._paired = {EVE.ref: UserRole.USER}
    real, tries = gateway.store.read, 0

    async def read(fn: object, *args: object) -> object:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailable("slow")
        return await real(fn, *args)  # type: ignore[arg-type]

    access._store = type("Slow", (), {"read": staticmethod(read), "write": gateway.store.write})()
    await asyncio.wait_for(access.load(), 20)
    assert access.role_of(EVE.ref) is None
