"""Items of changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Mapping, Optional, Sequence


def _time(text: Optional[str]) -> Optional[datetime]:
    # Python 3.9 and 3.10 do not know the `Z`, nor fractions that are not of 3 or 6 digits.
    if text is None:
        return None
    text = text.replace("Z", "+00:00")
    if "." in text:
        start, rest = text.split(".", 1)
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        text = f"{start}.{digits[:6]:0<6}{rest[len(digits):]}"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # The year 0000, which RFC 3339 has and Python has not. It must not hold up the changes behind it.
        return None


@dataclass(frozen=True)
class Author:
    """An author of an item."""

    name: str
    email: Optional[str] = None
    url: Optional[str] = None


@dataclass(frozen=True)
class Attachment:
    """A file that belongs to an item."""

    url: str
    media_type: Optional[str] = None
    size: Optional[int] = None
    title: Optional[str] = None
    sha256: Optional[str] = None


@dataclass(frozen=True)
class Item:
    """The fields of an item beside its content."""

    title: Optional[str] = None
    url: Optional[str] = None
    summary: Optional[str] = None
    published: Optional[datetime] = None
    updated: Optional[datetime] = None
    authors: Sequence[Author] = ()
    tags: Sequence[str] = ()
    image: Optional[str] = None
    attachments: Sequence[Attachment] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def _of(cls, members: Mapping[str, Any]) -> Item:
        """The item of a line's `item`."""
        return cls(
            title=members.get("title"),
            url=members.get("url"),
            summary=members.get("summary"),
            published=_time(members.get("published")),
            updated=_time(members.get("updated")),
            authors=tuple(Author(**author) for author in members.get("authors", ())),
            tags=tuple(members.get("tags", ())),
            image=members.get("image"),
            attachments=tuple(Attachment(**attachment) for attachment in members.get("attachments", ())),
            extra=members.get("extra", {}),
        )
