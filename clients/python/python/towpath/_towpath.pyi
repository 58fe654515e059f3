from datetime import datetime
from os import PathLike
from typing import Any, Callable, Optional, Sequence, Union, final

from ._change import Item

__all__ = ["Change", "Reader", "check", "copy_into", "discover", "publish", "version"]

@final
class Change:
    """One change of a feed. `docs/change-format.md` of the project describes its members."""

    @property
    def feed(self) -> str:
        """Name of the feed, or its URL where the publisher tells no name."""
    @property
    def op(self) -> str:
        """`put`, `patch` or `delete`; `reset` if the feed began anew and what you have of it is void."""
    @property
    def id(self) -> str:
        """Id of the item; empty for a reset."""
    @property
    def position(self) -> str:
        """Position from which a follow may resume (`start`); empty for a reset."""
    @property
    def modified(self) -> Optional[datetime]:
        """Time of the change at its publisher."""
    @property
    def content_type(self) -> Optional[str]:
        """Media type of the content; `None` without content."""
    @property
    def data(self) -> Optional[bytes]:
        """Content as bytes, whatever its type."""
    @property
    def content(self) -> Union[str, bytes, None]:
        """Content that is not JSON: a text, or bytes."""
    @property
    def json(self) -> Any:
        """Content that is JSON, as a value."""
    @property
    def item(self) -> Optional[Item]:
        """The other fields of the item; `None` for a deletion and a reset."""
    @property
    def patch(self) -> Optional[dict[str, Any]]:
        """Patch by which the item changed: `content_type`, and one of `json`, `content`, `content_base64`."""
    def to_json(self) -> str:
        """The change as a line of JSON, as `towpath follow` prints it."""
    def to_dict(self) -> dict[str, Any]:
        """The members of that line."""
    def __hash__(self) -> int: ...

_Taken = tuple[Optional[list[Change]], Optional[tuple[str, str]]]

@final
class Reader:
    def __new__(
        cls,
        url: str,
        *,
        protocol: str,
        start: str,
        once: bool,
        token: Optional[str],
        headers: Sequence[tuple[str, str]],
        large_content: Union[str, PathLike[str], None],
        path: Union[str, PathLike[str], None],
        name: Optional[str],
        content: Optional[bytes],
    ) -> Reader: ...
    def next(self) -> _Taken: ...
    def try_next(self) -> Optional[_Taken]: ...
    def finished(self, count: int) -> None: ...
    @property
    def state(self) -> Optional[str]: ...
    @property
    def has_more(self) -> bool: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...

def copy_into(
    url: str,
    destination: str,
    *,
    state: Union[str, PathLike[str], None],
    protocol: str,
    start: str,
    once: bool,
    token: Optional[str],
    headers: Sequence[tuple[str, str]],
    large_content: Union[str, PathLike[str], None],
    stop_on_refused_item: bool,
    tell: Callable[[tuple[str, str]], None],
) -> None: ...
def discover(
    url: str, token: Optional[str], headers: Sequence[tuple[str, str]]
) -> list[tuple[str, str, str]]: ...
def check(url: str, protocol: str, token: Optional[str], headers: Sequence[tuple[str, str]]) -> str: ...
def publish(
    base: str, name: str, token: Optional[str], method: str, id: str, body: str
) -> str: ...
def version() -> str: ...
