"""Queue of chats that wait for a node to work in them: whoever has waited longest comes first."""

from collections.abc import Collection, Iterable
from itertools import islice

from hermes_state.values import ChatId


class ChatQueue:
    """Chats that wait, in the order in which this node has learned of them.

    One in which another node works keeps its place, and is asked for again after the next look at the database.

    >>> queue = ChatQueue()
    >>> for number in (7, 3, 5): queue.put(ChatId(number))
    >>> queue.leave([ChatId(7)])
    >>> queue.first(2)
    [3, 5]
    >>> queue.begin_look(), queue.end_look([ChatId(2), ChatId(5), ChatId(7)], served=())
    (None, None)
    >>> queue.first(9)
    [7, 5, 2]
    """

    def __init__(self) -> None:
        self._chats: dict[ChatId, bool] = {}
        """Each with whether it is to be asked for."""
        self._put: set[ChatId] = set()
        """Chats that were put here since the last look began, which may not have seen them."""

    def __bool__(self) -> bool:
        """True while there is one to be asked for."""
        return any(self._chats.values())

    def put(self, chat_id: ChatId) -> None:
        """Something waits in a chat; it keeps its place if it has one."""
        self._chats[chat_id] = True
        self._put.add(chat_id)

    def first(self, most: int) -> list[ChatId]:
        """Chats to ask for, in their order."""
        return list(islice((chat_id for chat_id, is_asked_for in self._chats.items() if is_asked_for), most))

    def remove(self, chat_id: ChatId) -> None:
        """This node works in a chat from now on."""
        self._chats.pop(chat_id, None)

    def leave(self, chat_ids: Iterable[ChatId]) -> None:
        """Other nodes work in these chats."""
        self._chats |= dict.fromkeys(chat_ids, False)

    def begin_look(self) -> None:
        """The database is about to be asked what waits."""
        self._put.clear()

    def end_look(self, found: Collection[ChatId], served: Collection[ChatId]) -> None:
        """Chats were `found` in which something waits, the oldest first; in the `served` ones this node works."""
        waiting = {*found, *self._put}
        kept = [chat_id for chat_id in self._chats if chat_id in waiting]
        self._chats = {chat_id: True for chat_id in (*kept, *found) if chat_id not in served}
