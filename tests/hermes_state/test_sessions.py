import sqlite3

import pytest

from hermes_state import inbox, journal
from hermes_state.errors import LineageMoved, LookupReason, LookupRejected, SessionNotFound
from hermes_state.inbox import InboxKind
from hermes_state.sessions import (
    EndReason,
    choose_model,
    end_session,
    ensure_active,
    expire_idle,
    find_conversation,
    forget_model,
    get_compression_tip,
    give_title,
    list_conversations,
    load_active,
    load_session,
    load_tip,
    load_title,
    new_session_key,
    reset,
    resume,
    set_system_prompt,
    set_title,
)
from hermes_state.values import ChatId, LineageId, Millis, SessionId
from tests.hermes_state.rows import ANN, START, compress, exchange, finish, make_chat, receive, seen, start

HOUR = 3_600_000


def active(db: sqlite3.Connection, chat: ChatId) -> SessionId:
    session = load_active(db, chat)
    assert session is not None
    return session.id


def test_a_chat_keeps_its_session_until_it_ends(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    assert load_active(db, chat) is None
    first = ensure_active(db, chat, START)
    assert ensure_active(db, chat, START).id == first.id
    assert (int(first.lineage_id), first.depth, first.ended_at) == (first.id, 0, None)
    end_session(db, first.id, EndReason.EXPIRED, START)
    assert ensure_active(db, chat, START).id != first.id


def test_a_session_ends_once(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    session = ensure_active(db, chat, START)
    end_session(db, session.id, EndReason.EXPIRED, Millis(START - 5))
    ended = load_session(db, session.id)
    assert (ended.ended_at, ended.end_reason, ended.version) == (START, EndReason.EXPIRED, 1)
    with pytest.raises(LineageMoved):
        end_session(db, session.id, EndReason.RESET, START)
    assert resume(db, chat, session.key, START).id == session.id, "it is resumed in place"


def test_unknown_sessions_raise_not_found(db: sqlite3.Connection) -> None:
    with pytest.raises(SessionNotFound):
        load_session(db, SessionId(1))
    with pytest.raises(SessionNotFound):
        load_tip(db, LineageId(1))
    with pytest.raises(SessionNotFound):
        get_compression_tip(db, SessionId(1))


def test_a_reset_ends_the_conversation_and_starts_another(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")
    fresh = reset(db, chat, Millis(START + 5))
    assert int(fresh.lineage_id) == fresh.id
    assert fresh.lineage_id != turn.lineage_id
    assert load_tip(db, turn.lineage_id).end_reason is EndReason.RESET
    assert active(db, chat) == fresh.id


def test_resuming_by_any_id_of_the_chain_reopens_its_tip(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = exchange(db, chat, "q", "a").lineage_id
    root = load_tip(db, lineage)
    tip = compress(db, lineage, keep=2)
    before = load_session(db, tip)
    fresh = reset(db, chat, START)
    back = resume(db, chat, root.short_key.upper(), START)
    assert (back.id, back.ended_at, back.end_reason) == (tip, None, None)
    assert back.version > before.version, "earlier plans are refused"
    assert active(db, chat) == tip
    assert load_session(db, fresh.id).end_reason is EndReason.SWITCHED
    assert exchange(db, chat, "q2", "a2").lineage_id == lineage
    assert seen(db, lineage) == ["handoff", "q", "a", "q2", "a2"]


@pytest.mark.parametrize("prefix", ["", "abc", "abc!", "zzzzzzzz", "%%%%", "....", "' or 1=1"])
def test_an_unknown_session_id_is_refused(db: sqlite3.Connection, prefix: str) -> None:
    chat = make_chat(db)
    exchange(db, chat, "q", "a")
    with pytest.raises(LookupRejected):
        resume(db, chat, prefix, START)


def test_neither_the_active_conversation_nor_that_of_another_chat_is_resumed(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    session, theirs = ensure_active(db, chat, START), ensure_active(db, make_chat(db, "theirs"), START)
    with pytest.raises(LookupRejected, match=LookupReason.ALREADY_ACTIVE):
        resume(db, chat, session.key, START)
    with pytest.raises(LookupRejected):
        resume(db, chat, theirs.key, START)


def test_an_ambiguous_id_prefix_is_refused(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    first = ensure_active(db, chat, START)
    second = reset(db, chat, Millis(START + 1_000))
    shared = first.key[: next(at for at in range(18) if first.key[at] != second.key[at])]
    with pytest.raises(LookupRejected, match=LookupReason.AMBIGUOUS_SESSION):
        find_conversation(db, chat, shared)


def test_visible_ids_differ_even_within_a_millisecond_and_sort_by_time(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    keys = [ensure_active(db, chat, START).short_key] + [reset(db, chat, START).short_key for _ in range(20)]
    assert len(set(keys)) == 21
    assert keys == sorted(keys)
    assert new_session_key(Millis(START)) < new_session_key(Millis(START + 1)) < new_session_key(Millis(START + HOUR))


def test_a_chosen_model_belongs_to_its_conversation(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = exchange(db, chat, "q", "a").lineage_id
    tip = load_tip(db, lineage)
    choose_model(db, tip.id, "fast")
    assert start(db, chat, "again").chosen_model == "fast", "a turn carries it"
    assert reset(db, chat, START).chosen_model is None
    assert resume(db, chat, tip.key, START).chosen_model == "fast"


def test_a_model_choice_is_forgotten_only_if_still_chosen(db: sqlite3.Connection) -> None:
    lineage = exchange(db, make_chat(db), "q", "a").lineage_id
    choose_model(db, load_tip(db, lineage).id, "new")
    assert not forget_model(db, lineage, "old")
    assert load_tip(db, lineage).chosen_model == "new"
    assert forget_model(db, lineage, "new")
    assert load_tip(db, lineage).chosen_model is None


def test_the_system_prompt_is_set_once(db: sqlite3.Connection) -> None:
    session = ensure_active(db, make_chat(db), START)
    assert set_system_prompt(db, session.id, "first") == "first"
    assert set_system_prompt(db, session.id, "second") == "first"


def test_a_title_survives_a_compression_and_only_a_person_replaces_it(db: sqlite3.Connection) -> None:
    lineage = exchange(db, make_chat(db), "q", "a").lineage_id
    assert load_title(db, lineage) is None
    before = load_tip(db, lineage).version
    assert give_title(db, lineage, "From a model")
    assert load_tip(db, lineage).version == before, "a compression that is being planned still holds"
    compress(db, lineage)
    assert load_tip(db, lineage).title == load_title(db, lineage) == "From a model"
    assert not give_title(db, lineage, "Another one")
    set_title(db, load_tip(db, lineage).id, "From a person")
    assert not give_title(db, lineage, "Another one")
    assert load_title(db, lineage) == "From a person"
    with pytest.raises(SessionNotFound):
        give_title(db, LineageId(999), "Nobody's")


def test_a_conversation_is_listed_once(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    first = exchange(db, chat, "q", "a", at=START).lineage_id
    compress(db, first)
    exchange(db, chat, "q2", "a2", at=START + 10)
    reset(db, chat, Millis(START + 20))
    second = exchange(db, chat, "q3", "a3", at=START + 30).lineage_id
    reset(db, chat, Millis(START + 40))
    found = list_conversations(db, chat, 10)
    assert [(one.tip.lineage_id, one.message_count, one.is_active) for one in found] == [
        (second, 2, False),
        (first, 4, False),
    ]
    assert found[1].tip.id == load_tip(db, first).id
    assert len(list_conversations(db, chat, 1)) == 1


def expire(db: sqlite3.Connection, at: int, hours: int = 1) -> list[SessionId]:
    return expire_idle(db, Millis(at - hours * HOUR), 100, Millis(at))


def test_an_idle_conversation_expires_and_the_next_message_starts_a_new_one(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "q", at=START)
    finish(db, turn, "a", at=START + HOUR)  # only people keep it alive
    command = receive(db, chat, "/retry", kind=InboxKind.COMMAND)
    retried = journal.start_retry(db, command, chat, ANN, Millis(START + HOUR))
    assert expire(db, START + 9 * HOUR) == [], "there is work in it"
    finish(db, retried, "b", at=START + HOUR)
    session = active(db, chat)
    receive(db, chat, "waits", ref="w")
    assert expire(db, START + 9 * HOUR) == []
    assert inbox.withdraw(db, chat, "w", START)
    assert expire(db, START + HOUR) == []
    assert expire(db, START + HOUR + 1) == [session]
    assert load_session(db, session).end_reason is EndReason.EXPIRED
    assert expire(db, START + 9 * HOUR) == []
    assert exchange(db, chat, "q2", "a2").lineage_id != turn.lineage_id


def test_a_childs_idle_time_counts_from_the_last_human_message(db: sqlite3.Connection) -> None:
    child = compress(db, exchange(db, make_chat(db), "q", "a").lineage_id)
    assert expire(db, START + 2 * HOUR) == [child]


def test_a_resumed_conversation_has_the_full_idle_time(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "q", "a")
    [old] = expire(db, START + 9 * HOUR)
    back = resume(db, chat, load_session(db, old).key, Millis(START + 10 * HOUR))
    assert expire(db, START + 11 * HOUR) == []
    assert expire(db, START + 11 * HOUR + 1) == [back.id]


def test_expiry_works_in_slices(db: sqlite3.Connection) -> None:
    for number in range(5):
        exchange(db, make_chat(db, str(number)), "q", "a")
    counts = [len(expire_idle(db, Millis(START + 1), 2, Millis(START + HOUR))) for _ in range(4)]
    assert counts == [2, 2, 1, 0]
