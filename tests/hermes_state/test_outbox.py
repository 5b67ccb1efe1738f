import contextlib
import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state import outbox
from hermes_state.outbox import AccountClaim, AccountMoved, OutboxKind, OutboxState, Reply, take_account
from hermes_state.values import Button, ChatId, Millis, OutboundPart
from tests.hermes_state.rows import START, exchange, make_chat, migrated
from tests.sampling import examples

CLAIM = AccountClaim(account="telegram", epoch=1)
LateEnd: TypeAlias = Callable[[sqlite3.Connection, outbox.OutboxRow], None]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        take_account(connection, "telegram")
        yield connection


def owe(db: sqlite3.Connection, chat: ChatId, text: str, key: str | None = None) -> bool:
    reply = Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown=text, dedupe_key=key or text)
    return outbox.enqueue(db, reply, START) is not None


def parts(*texts: str) -> list[OutboundPart]:
    return [OutboundPart(text=text, plain=text) for text in texts]


def first(db: sqlite3.Connection, chat: ChatId) -> outbox.OutboxRow:
    return outbox.load_open(db, chat, 1)[0]


def begin(db: sqlite3.Connection, chat: ChatId, text: str, claim: AccountClaim = CLAIM) -> outbox.OutboxRow:
    """Begin to send the chat's first unsent row."""
    row = first(db, chat)
    begun = outbox.begin_send(db, row.id, None if row.written is None else parts(text), claim, START)
    assert begun is not None
    return begun


def test_the_same_dedupe_key_enqueues_one_reply_even_after_it_was_sent(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    assert owe(db, chat, "hello", "turn:1")
    assert not owe(db, chat, "hello again", "turn:1")
    assert [row.written for row in outbox.load_open(db, chat)] == [outbox.WrittenReply(markdown="hello")]
    outbox.mark_sent(db, first(db, chat).id, "p1", START)
    assert not owe(db, chat, "hello", "turn:1")
    assert outbox.load_open(db, chat) == []
    assert outbox.load_chats_owed(db, "telegram") == []


def test_parts_are_stored_with_the_first_attempt(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    buttons, refs = (Button(label="Yes", command="/approve"),), {"reply_to": "5", "ticket": "t", "replaces": "p"}
    reply = Reply(chat_id=chat, kind=OutboxKind.FINAL, markdown="long", dedupe_key="k", buttons=buttons, **refs)
    outbox.enqueue(db, reply, START)
    row = first(db, chat)
    assert (row.written, row.rendered) == (outbox.WrittenReply(markdown="long", buttons=buttons), None)
    assert (row.reply_to, row.ticket, row.replaces) == ("5", "t", "p")
    outbox.begin_send(db, row.id, parts("one", "two", "three"), CLAIM, START)
    rows = outbox.load_open(db, chat)
    assert [(row.part, row.rendered and row.rendered.text, row.state) for row in rows] == [
        (0, "one", OutboxState.SENDING),
        (1, "two", OutboxState.PENDING),
        (2, "three", OutboxState.PENDING),
    ]
    assert [(row.reply_to, row.replaces) for row in rows] == [("5", "p"), (None, None), (None, None)]
    assert (rows[0].attempts, rows[0].first_tried_at) == (1, START)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("UPDATE outbox SET state = 'sent', settled_at = 1 WHERE kind = 'final'", "said"),
        ("UPDATE outbox SET state = 'dead', settled_at = 1 WHERE kind = 'final'", None),
        ("UPDATE outbox SET state = 'dead', settled_at = 1 WHERE kind = 'voice'", None),
        ("UPDATE outbox SET rendered = 1 WHERE kind = 'voice'", None),
    ],
)
def test_only_an_answer_that_was_not_given_up_is_spoken(db: sqlite3.Connection, ended: str, words: str | None) -> None:
    chat = make_chat(db)
    exchange(db, chat, "asked", "said")
    [(message_id, turn_id)] = db.execute("SELECT id, turn_id FROM messages WHERE role = 'assistant'").fetchall()
    voice = Reply(
        chat_id=chat, kind=OutboxKind.VOICE, markdown="", dedupe_key="v", turn_id=turn_id, message_id=message_id
    )
    row = outbox.enqueue(db, voice, START)
    assert row is not None
    assert outbox.load_words(db, row.id) == "said"
    db.execute(ended)
    assert outbox.load_words(db, row.id) == words


@examples(40)
@given(st.lists(st.one_of(st.just(0), st.integers(1, 4)), max_size=30))
def test_interleaved_replies_are_sent_whole_and_in_order(steps: list[int]) -> None:
    """A step of 0 stores a reply. A step of n sends the next part, after rendering a new reply to n parts."""
    with migrated() as db:
        take_account(db, "telegram")
        chat = make_chat(db)
        stored: list[str] = []
        sent: list[tuple[str, int]] = []

        def send(count: int) -> None:
            rows = outbox.load_open(db, chat, 1)
            if rows:
                new = parts(*"x" * count) if rows[0].written is not None else None
                outbox.begin_send(db, rows[0].id, new, CLAIM, START)
                outbox.mark_sent(db, rows[0].id, f"p{len(sent)}", START)
                sent.append((rows[0].dedupe_key, rows[0].part))

        for step in steps:
            if step:
                send(step)
            else:
                stored.append(f"k{len(stored)}")
                owe(db, chat, stored[-1])
        while outbox.load_open(db, chat, 1):
            send(2)
        assert [key for key, part in sent if part == 0] == stored
        for before, after in itertools.pairwise(sent):
            assert after == (before[0], before[1] + 1) or after[1] == 0


def test_a_retry_keeps_the_bytes_and_the_time_of_the_first_attempt(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    owe(db, chat, "hello")
    begun = begin(db, chat, "hello")
    outbox.mark_retry(db, begun, False, "refused", CLAIM, Millis(START + 500))
    row = first(db, chat)
    assert (row.state, row.next_at, row.attempts) == (OutboxState.PENDING, START + 500, 1)
    outbox.begin_send(db, row.id, None, CLAIM, Millis(START + 500))
    row = first(db, chat)
    assert row.rendered == parts("hello")[0]
    assert (row.attempts, row.first_tried_at) == (2, START)


def test_an_interrupted_send_is_ambiguous_even_while_it_is_sent_again(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    owe(db, chat, "one")
    owe(db, chat, "two")
    begin(db, chat, "one")
    claim, count = take_account(db, "telegram")
    assert count == 1
    for _ in range(2):
        assert [row.state for row in outbox.load_open(db, chat)] == [OutboxState.AMBIGUOUS, OutboxState.PENDING]
        begun = outbox.begin_send(db, first(db, chat).id, None, claim, START)
        assert begun is not None
        assert begun.state is OutboxState.AMBIGUOUS
    outbox.mark_sent(db, begun.id, "p1", START)
    assert take_account(db, "telegram")[1] == 0


def test_an_uncertain_owner_does_not_take_an_account(db: sqlite3.Connection) -> None:
    claim, _ = take_account(db, "telegram")
    with pytest.raises(AccountMoved):
        take_account(db, "telegram", lambda: False)
    assert take_account(db, "telegram")[0].epoch == claim.epoch + 1


def test_an_undeliverable_row_is_settled_and_kept_for_the_operator(db: sqlite3.Connection) -> None:
    chat, other = make_chat(db), make_chat(db, "other")
    owe(db, chat, "hello")
    owe(db, other, "b")
    outbox.mark_dead(db, begin(db, chat, "hello"), "blocked", CLAIM, START)
    assert outbox.load_open(db, chat) == []
    assert outbox.load_chats_owed(db, "telegram") == [other]
    query = "SELECT state, error, payload FROM outbox WHERE chat_id = ?"
    [(state, error, payload)] = db.execute(query, (chat,)).fetchall()
    assert (state, error) == ("dead", "blocked")
    assert "hello" in payload


def test_each_sent_part_is_linked_to_its_message(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")
    message_id = db.execute("SELECT message_id FROM outbox").fetchone()[0]
    outbox.begin_send(db, first(db, chat).id, parts("one", "two"), CLAIM, START)
    outbox.replace_preview(db, turn.id, "late")
    assert first(db, chat).replaces is None, "it was tried before"
    for ref in ("p1", "p2"):
        outbox.mark_sent(db, first(db, chat).id, ref, START)
    query = "SELECT ref, message_id, part FROM platform_messages WHERE message_id = ? ORDER BY part"
    assert db.execute(query, (message_id,)).fetchall() == [("p1", message_id, 0), ("p2", message_id, 1)]


def test_a_delivered_part_is_settled_even_if_its_message_was_deleted_meanwhile(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "q", "a")
    row = begin(db, chat, "a")
    db.execute("DELETE FROM messages WHERE id = ?", (row.message_id,))
    outbox.mark_sent(db, row.id, "p1", START)
    assert db.execute("SELECT state FROM outbox").fetchall() == [("sent",)]
    assert db.execute("SELECT 1 FROM platform_messages WHERE ref = 'p1'").fetchall() == []


LATE_ENDS: dict[str, LateEnd] = {
    "retry": lambda db, row: outbox.mark_retry(db, row, False, "late", CLAIM, START),
    "dead": lambda db, row: outbox.mark_dead(db, row, "late", CLAIM, START),
}


@pytest.mark.parametrize("late", LATE_ENDS.values(), ids=LATE_ENDS)
@pytest.mark.parametrize("has_begun", [False, True], ids=["has-yet-to-send", "is-sending"])
def test_a_former_owner_cannot_end_the_next_owners_attempts(
    db: sqlite3.Connection, late: LateEnd, has_begun: bool
) -> None:
    chat = make_chat(db)
    owe(db, chat, "hello")
    row = begin(db, chat, "hello")
    claim, _ = take_account(db, "telegram")
    owed = begin(db, chat, "hello", claim) if has_begun else first(db, chat)
    with pytest.raises(AccountMoved):
        late(db, row)
    assert first(db, chat) == owed


@pytest.mark.parametrize("late", LATE_ENDS.values(), ids=LATE_ENDS)
@pytest.mark.parametrize("is_sent", [False, True], ids=["sent again", "sent"])
def test_a_late_end_changes_neither_a_later_attempt_nor_a_settled_row(
    db: sqlite3.Connection, late: LateEnd, is_sent: bool
) -> None:
    chat = make_chat(db)
    owe(db, chat, "hello")
    row = begin(db, chat, "hello")
    if is_sent:
        outbox.mark_sent(db, row.id, "p1", START)
    else:
        begin(db, chat, "hello")
    before = db.execute("SELECT * FROM outbox").fetchall()
    late(db, row)
    assert db.execute("SELECT * FROM outbox").fetchall() == before


def test_any_owner_can_mark_a_row_sent(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    owe(db, chat, "hello")
    row = begin(db, chat, "hello")
    claim, _ = take_account(db, "telegram")
    outbox.mark_sent(db, row.id, "p1", START)
    assert outbox.begin_send(db, row.id, None, claim, START) is None
    assert outbox.load_open(db, chat) == []


def test_a_former_owner_cannot_begin_a_send(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    owe(db, chat, "hello")
    take_account(db, "telegram")
    with pytest.raises(AccountMoved):
        outbox.begin_send(db, first(db, chat).id, parts("hello"), CLAIM, START)
    assert (first(db, chat).state, first(db, chat).attempts) == (OutboxState.PENDING, 0)


class Owners:
    """Nodes that serve an account in turn, each with at most one request in progress.

    A node that has lost the account does not notice at once. Its request may still reach the platform, and it may still
    store the outcome.
    """

    def __init__(self, db: sqlite3.Connection, chat: ChatId) -> None:
        self.db, self.chat = db, chat
        self.claims: dict[int, AccountClaim] = {}
        self.requests: dict[int, tuple[outbox.OutboxRow, bool]] = {}
        """Row and possible-repeat mark of the request, by node."""
        self.shown: list[tuple[int, bool]] = []
        """Row and possible-repeat mark of each message that people see."""
        self.refused: set[int] = set()
        """Rows whose last attempt the platform refused while its node owned the account."""

    def take(self, node: int) -> None:
        """Give the account to a node. If the node had it before, it gives up its request."""
        self.requests.pop(node, None)
        self.claims[node] = take_account(self.db, "telegram")[0]

    def begin(self, node: int) -> None:
        rows = outbox.load_open(self.db, self.chat, 1)
        if node not in self.claims or node in self.requests or not rows:
            return
        row = rows[0]
        new = None if row.written is None else parts("one", "two")
        with contextlib.suppress(AccountMoved):
            begun = outbox.begin_send(self.db, row.id, new, self.claims[node], START)
            if begun is not None:
                self.requests[node] = begun, row.state is OutboxState.AMBIGUOUS

    def reach(self, node: int) -> None:
        """Let the request succeed and lose its answer."""
        if node in self.requests:
            row, is_repeat = self.requests.pop(node)
            self.shown.append((row.id, is_repeat))
            self._end(node, lambda: outbox.mark_retry(self.db, row, True, "cut", self.claims[node], START))

    def send(self, node: int) -> None:
        if node in self.requests:
            row, is_repeat = self.requests.pop(node)
            self.shown.append((row.id, is_repeat))
            outbox.mark_sent(self.db, row.id, f"p{len(self.shown)}", START)

    def fail(self, node: int) -> None:
        if node in self.requests:
            row, is_repeat = self.requests.pop(node)
            self._end(node, lambda: outbox.mark_retry(self.db, row, is_repeat, "away", self.claims[node], START))

    def refuse(self, node: int) -> None:
        if node in self.requests:
            row, _ = self.requests.pop(node)
            is_owner = self.claims[node].epoch == max(claim.epoch for claim in self.claims.values())
            if is_owner and any(one.id == row.id for one in outbox.load_open(self.db, self.chat)):
                self.refused.add(row.id)
            self._end(node, lambda: outbox.mark_dead(self.db, row, "refused", self.claims[node], START))

    def _end(self, node: int, mark: Callable[[], None]) -> None:
        with contextlib.suppress(AccountMoved):
            mark()

    def finish(self) -> None:
        """Let the last owner send the rest."""
        last = max(self.claims, key=lambda node: self.claims[node].epoch, default=0)
        self.take(last)
        while outbox.load_open(self.db, self.chat, 1):
            self.begin(last)
            self.send(last)


STEPS = (Owners.take, Owners.begin, Owners.begin, Owners.reach, Owners.send, Owners.fail, Owners.refuse)


@examples(120)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1)), min_size=2, max_size=20))
def test_no_reply_is_lost_and_only_ambiguous_ones_repeat_with_a_mark(
    steps: list[tuple[Callable[[Owners, int], None], int]],
) -> None:
    with migrated() as db:
        chat = make_chat(db)
        owners = Owners(db, chat)
        for number in range(2):
            owe(db, chat, f"k{number}")
        owners.take(0)
        owners.begin(0)
        for step, node in steps:
            step(owners, node)
        owners.finish()
        seen = Counter(row_id for row_id, _ in owners.shown)
        unmarked = Counter(row_id for row_id, is_repeat in owners.shown if not is_repeat)
        for row_id, state in db.execute("SELECT id, state FROM outbox").fetchall():
            assert seen[row_id] or row_id in owners.refused, "it is lost"
            assert state == "sent" or row_id in owners.refused
            assert unmarked[row_id] <= 1, "it comes twice, and nothing says so"
