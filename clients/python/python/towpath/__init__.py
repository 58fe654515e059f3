"""Follow feeds without missing a change, and publish them.

    import towpath

    for change in towpath.follow("https://example.com/feeds/news", state="news.state"):
        print(change.op, change.id, change.item and change.item.title)

The loop comes back after outages and restarts, and goes on where it was. With asyncio it is `async for`. Warnings go to the
logger `towpath`.
"""

from ._change import Attachment, Author, Item
from ._client import Client, Feed, Finding, Offer, Published, Report, check, discover
from ._errors import (
    DestinationError,
    GapError,
    HttpError,
    NetworkError,
    ProtocolError,
    StateError,
    TowpathError,
    UsageError,
)
from ._follow import Follow, SqliteState, State, Store, copy, follow
from ._towpath import Change
from ._towpath import version as _version

__version__ = _version()

__all__ = [
    "Attachment",
    "Author",
    "Change",
    "Client",
    "DestinationError",
    "Feed",
    "Finding",
    "Follow",
    "GapError",
    "HttpError",
    "Item",
    "NetworkError",
    "Offer",
    "ProtocolError",
    "Published",
    "Report",
    "SqliteState",
    "State",
    "StateError",
    "Store",
    "TowpathError",
    "UsageError",
    "check",
    "copy",
    "discover",
    "follow",
]
