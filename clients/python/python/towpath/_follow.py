"""Following a feed: a loop, and the state that moves past what the loop has finished."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Type,
    Union,
)

from ._errors import GapError, UsageError
from ._towpath import Change, Reader, copy_into

if TYPE_CHECKING:
    import sqlite3

_LOG = logging.getLogger("towpath")
_UNIT = 10_000
"""Largest number of changes that `copy` hands to a store at once."""

Start = Union[str, datetime]
"""`"beginning"`, `"now"`, a time, or the position of a change."""


class State(Protocol):
    """A place for a follow's state, such as a row of a database."""

    def load(self) -> Optional[str]:
        """Returns what was saved last, or `None` at first."""

    def save(self, state: str) -> None:
        """Keeps the state, which covers all changes that the loop has finished."""


class Store(Protocol):
    """A place for the items of a feed and the state of the follow."""

    def load(self) -> Optional[str]:
        """Returns the state that was kept last, or `None` at first."""

    def apply(self, changes: Sequence[Change], state: Optional[str]) -> None:
        """Applies changes that arrived together, and keeps the state after them in the same step.

        `state` is `None` in the middle of a unit of more than 10,000 changes. If the store ends there, the unit comes
        again from its beginning.
        """


class SqliteState:
    """State in the database in which the loop keeps what it makes of the changes.

    Both are committed together, so each change takes effect exactly once, whatever is killed when. The loop must not
    commit itself. What a loop that breaks has not committed is rolled back.

    >>> import sqlite3
    >>> database = sqlite3.connect(":memory:")
    >>> state = SqliteState(database, "news")
    >>> state.load() is None
    True
    >>> state.save("{}")
    >>> state.load()
    '{}'
    """

    def __init__(self, connection: sqlite3.Connection, name: str = "towpath") -> None:
        # Python 3.12 and later: then commit and rollback do nothing.
        commits_itself = getattr(connection, "autocommit", None) is True
        if connection.isolation_level is None or commits_itself:
            raise UsageError("a connection that commits by itself has no transactions that span statements")
        self.connection = connection
        self.name = name

    def load(self) -> Optional[str]:
        """Returns what was saved last under this name."""
        table = "CREATE TABLE IF NOT EXISTS towpath_state (name TEXT PRIMARY KEY, state TEXT NOT NULL)"
        with self.connection:
            self.connection.execute(table)
        row = self.connection.execute("SELECT state FROM towpath_state WHERE name = ?", (self.name,)).fetchone()
        return None if row is None else str(row[0])

    def save(self, state: str) -> None:
        """Keeps the state, and commits the transaction."""
        self.connection.execute("INSERT OR REPLACE INTO towpath_state VALUES (?, ?)", (self.name, state))
        self.connection.commit()

    def discard(self) -> None:
        """Rolls back what was not committed."""
        self.connection.rollback()

    def __str__(self) -> str:
        return f"towpath_state of {self.name}"


class _Saver:
    """Saves a state of the caller's between two changes: at the end of a unit, at most once in a while."""

    def __init__(self, state: Optional[State], every: float) -> None:
        self.state = state
        self.every = every
        self.due = time.monotonic() + every
        self.is_dirty = False

    def batch_ends(self, reader: Reader) -> None:
        if self.state is None:
            return
        text = reader.state
        if text is None or (reader.has_more and time.monotonic() < self.due):
            return
        self.state.save(text)
        self.is_dirty = False
        self.due = time.monotonic() + self.every

    def ends(self) -> None:
        if self.is_dirty and isinstance(self.state, SqliteState):
            self.state.discard()


class _Notices:
    """Passes messages of a follow on."""

    def __init__(self, on_gap: Optional[Callable[[GapError], None]]) -> None:
        self.on_gap = on_gap

    def tell(self, notice: Tuple[str, str]) -> None:
        kind, text = notice
        if kind == "gap" and self.on_gap is not None:
            self.on_gap(GapError(text))
        else:
            _LOG.warning("%s", text)


def _changes(reader: Reader, saver: _Saver, notices: _Notices) -> Generator[Change, None, None]:
    try:
        while True:
            batch, notice = reader.next()
            if notice is not None:
                notices.tell(notice)
                continue
            if batch is None:
                return
            done = 0
            saver.is_dirty = True
            try:
                for change in batch:
                    yield change
                    # The loop asks for the next one, so it has finished this one.
                    done += 1
            finally:
                reader.finished(done)
            saver.batch_ends(reader)
    finally:
        saver.ends()
        reader.close()


async def _changes_async(reader: Reader, saver: _Saver, notices: _Notices) -> AsyncGenerator[Change, None]:
    try:
        while True:
            taken = reader.try_next()
            if taken is None:
                await _arrival(reader)
                continue
            batch, notice = taken
            if notice is not None:
                notices.tell(notice)
                continue
            if batch is None:
                return
            done = 0
            saver.is_dirty = True
            try:
                for change in batch:
                    yield change
                    done += 1
            finally:
                reader.finished(done)
            saver.batch_ends(reader)
    finally:
        saver.ends()
        reader.close()


async def _arrival(reader: Reader) -> None:
    """Waits until something has arrived."""
    # Here, because it takes as long to import as the rest of the package.
    import asyncio

    loop = asyncio.get_running_loop()
    arrived = loop.create_future()

    def wake() -> None:
        if not arrived.done():
            arrived.set_result(None)

    descriptor = reader.fileno()
    loop.add_reader(descriptor, wake)
    try:
        await arrived
    finally:
        loop.remove_reader(descriptor)


class Follow(Iterator[Change], AsyncIterator[Change]):
    """The changes of a feed, for `for` or `async for`. `follow` creates it.

    A loop that ends, breaks or fails ends the follow once nothing refers to it any more; `close` and `with` end it at
    once. It is for one loop, in one thread.
    """

    def __init__(self, reader: Reader, saver: _Saver, notices: _Notices) -> None:
        self._parts = (reader, saver, notices)
        self._sync: Optional[Generator[Change, None, None]] = None
        self._async: Optional[AsyncGenerator[Change, None]] = None

    def __iter__(self) -> Iterator[Change]:
        if self._sync is None:
            self._sync = _changes(*self._parts)
        return self._sync

    def __next__(self) -> Change:
        return next(self.__iter__())

    def __aiter__(self) -> AsyncIterator[Change]:
        if self._async is None:
            self._async = _changes_async(*self._parts)
        return self._async

    async def __anext__(self) -> Change:
        return await self.__aiter__().__anext__()

    def close(self) -> None:
        """Ends the follow. The change that the loop has now is not finished, and comes again."""
        if self._sync is not None:
            self._sync.close()
        self._parts[0].close()

    async def aclose(self) -> None:
        """Ends the follow of an `async for`."""
        if self._async is not None:
            await self._async.aclose()
        self.close()

    def __enter__(self) -> Follow:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    async def __aenter__(self) -> Follow:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.aclose()


def _start(start: Start) -> str:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError("start: a time needs a time zone")
        return start.isoformat()
    return start


def _reader(
    url: str,
    state: Union[str, os.PathLike[str], State, Store, None],
    protocol: str,
    start: Start,
    once: bool,
    token: Optional[str],
    headers: Optional[Mapping[str, str]],
    large_content: Union[str, os.PathLike[str], None],
) -> Reader:
    path: Union[str, os.PathLike[str], None] = None
    name: Optional[str] = None
    content: Optional[str] = None
    if isinstance(state, (str, os.PathLike)):
        path = state
    elif state is not None:
        name, content = str(state), state.load()
    return Reader(
        url,
        protocol=protocol,
        start=_start(start),
        once=once,
        token=token,
        headers=list((headers or {}).items()),
        large_content=large_content,
        path=path,
        name=name,
        content=None if content is None else content.encode(),
    )


def follow(
    url: str,
    *,
    state: Union[str, os.PathLike[str], State, None] = None,
    protocol: str = "auto",
    start: Start = "beginning",
    once: bool = False,
    token: Optional[str] = None,
    headers: Optional[Mapping[str, str]] = None,
    large_content: Union[str, os.PathLike[str], None] = None,
    save_every: float = 1.0,
    on_gap: Optional[Callable[[GapError], None]] = None,
) -> Follow:
    """Follows a feed: an iterator over its changes, for `for` or `async for`.

    It has no end, unless `once` ends it with what is published now. Outages are outlasted.

    - `state` keeps progress over restarts: the path of a file, which `towpath follow --state` may share, or an object with
      `load()` and `save(state)`, such as `SqliteState`. It moves past a change when the loop asks for the next one.
    - `start` says where to begin without a state: `"beginning"`, `"now"`, a time, or a change's `position`.
    - `protocol` is `"auto"`, `"smart"`, `"diffdelta"`, `"replication"`, `"history"` or `"rss"`.
    - `token` and `headers` are for the server of `url` only, wherever links and redirects lead.
    - `large_content` is a folder for contents of any size: each becomes a file there, whose `file:` URL the first of the
      item's `attachments` has. Without it the item has the publisher's address.
    - `save_every` is the longest time in seconds that a state of yours stays unsaved while more pages or documents are at
      hand. It is saved at their ends only.
    - `on_gap` receives a `GapError` for changes that the publisher cannot supply any more. Without it they are logged.

    >>> import towpath
    >>> for change in towpath.follow(FEED, once=True):
    ...     print(change.op, change.id, change.item.title if change.item else "")
    put 1 Ten boats
    put 2 A sail
    """
    reader = _reader(url, state, protocol, start, once, token, headers, large_content)
    own = None if state is None or isinstance(state, (str, os.PathLike)) else state
    return Follow(reader, _Saver(own, save_every), _Notices(on_gap))


def copy(
    url: str,
    store: Union[Store, str],
    *,
    state: Union[str, os.PathLike[str], None] = None,
    protocol: str = "auto",
    start: Start = "beginning",
    once: bool = False,
    token: Optional[str] = None,
    headers: Optional[Mapping[str, str]] = None,
    large_content: Union[str, os.PathLike[str], None] = None,
    on_gap: Optional[Callable[[GapError], None]] = None,
    stop_on_refused_item: bool = False,
) -> None:
    """Keeps a copy of a feed in a destination, or in a store of yours.

    A destination is a text, as for `towpath follow --into`: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `dir:PATH`,
    `exec:COMMAND`, `webhook:URL` or `nats://HOST/SUBJECT`. Databases and folders keep the position themselves. For the others
    `state` is the file that keeps it. An item that the destination refuses is kept aside, unless `stop_on_refused_item`.

    >>> import sqlite3, towpath
    >>> towpath.copy(FEED, "sqlite:copy.db", once=True)
    >>> sqlite3.connect("copy.db").execute("SELECT id, title FROM items ORDER BY id").fetchall()
    [('1', 'Ten boats'), ('2', 'A sail')]

    A store of yours is an object with `load()` and `apply(changes, state)`:

    >>> import towpath
    >>> class Memory:
    ...     items, state = {}, None
    ...     def load(self):
    ...         return self.state
    ...     def apply(self, changes, state):
    ...         for change in changes:
    ...             self.items[change.id] = change
    ...         self.state = state
    >>> memory = Memory()
    >>> towpath.copy(FEED, memory, once=True)
    >>> sorted(memory.items)
    ['1', '2']
    """
    notices = _Notices(on_gap)
    if isinstance(store, str):
        copy_into(
            url,
            store,
            state=state,
            protocol=protocol,
            start=_start(start),
            once=once,
            token=token,
            headers=list((headers or {}).items()),
            large_content=large_content,
            stop_on_refused_item=stop_on_refused_item,
            tell=notices.tell,
        )
        return
    if state is not None or stop_on_refused_item:
        raise UsageError("state and stop_on_refused_item are for destinations: a store keeps its state, and may raise")
    reader = _reader(url, store, protocol, start, once, token, headers, large_content)
    waiting: List[Change] = []
    try:
        while True:
            batch, notice = reader.next()
            if notice is not None:
                notices.tell(notice)
                continue
            if batch is None:
                return
            waiting.extend(batch)
            state = reader.state
            if state is not None or len(waiting) >= _UNIT:
                store.apply(waiting, state)
                waiting = []
            reader.finished(len(batch))
    finally:
        reader.close()
