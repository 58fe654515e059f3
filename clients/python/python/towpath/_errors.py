"""Exceptions of the package."""

from __future__ import annotations

from typing import Optional


class TowpathError(Exception):
    """Base of all errors of this package. The message says what failed, where and why."""

    url: Optional[str]
    """URL that failed, without credentials and query; `None` if the error is not about one."""
    status: Optional[int]
    """Status code of the server's answer; `None` unless it was an error status."""

    def __init__(self, message: str, url: Optional[str] = None, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.url = url
        self.status = status


class NetworkError(TowpathError):
    """No answer, half of one, or silence."""


class HttpError(TowpathError):
    """An error status. `status` is its code."""


class ProtocolError(TowpathError):
    """An answer that is not what the protocol says: HTML, broken JSON, a wrong digest."""


class StateError(TowpathError):
    """A state of another feed or version, damaged, or one that cannot be saved."""


class UsageError(TowpathError, ValueError):
    """An argument that cannot be used."""


class DestinationError(TowpathError):
    """A destination of `copy` that refuses for good, or refuses an item."""


class GapError(TowpathError):
    """Changes that the publisher cannot supply any more."""
