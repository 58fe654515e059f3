"""Publishing, discovery and checks."""

from __future__ import annotations

import base64
import json as _json
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _towpath
from ._change import Attachment, Author
from ._errors import UsageError
from ._follow import Follow, follow
from ._towpath import Change

_ABSENT: Any = object()


class Published(NamedTuple):
    """What a server did with published lines."""

    appended: int
    """Number of new entries of the feed's log."""
    unchanged: int
    """Number of lines that were there already."""


class Offer(NamedTuple):
    """A protocol that an address offers."""

    protocol: str
    url: str
    why: str


@dataclass(frozen=True)
class Finding:
    """Outcome of one rule of a specification."""

    section: str
    level: str
    """`MUST`, `SHOULD` or `ADVICE`."""
    rule: str
    outcome: str
    """`pass`, `fail` or `skipped`."""
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """Findings about a feed."""

    url: str
    protocol: str
    conforms: bool
    """False if a MUST is violated."""
    findings: Sequence[Finding]


def _value(value: Any) -> Any:
    """A value for a line of JSON."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError("a time needs a time zone")
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {name: member for name, member in asdict(value).items() if member is not None}
    raise UsageError(f"{type(value).__name__} cannot be part of a line")


def _line(line: Union[Mapping[str, Any], Change]) -> str:
    if isinstance(line, Change):
        return line.to_json()
    members = dict(line)
    content = members.get("content")
    if isinstance(content, (bytes, bytearray, memoryview)):
        del members["content"]
        members["content_base64"] = base64.b64encode(content).decode()
    try:
        return _json.dumps(members, default=_value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"item {members.get('id')!r}: {error}") from error


class Feed:
    """A feed to publish to. `Client.feed` creates it."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    @property
    def url(self) -> str:
        """URL of the feed, which may be followed."""
        return f"{self.client.base.rstrip('/')}/feeds/{self.name}"

    def put(
        self,
        id: str,
        *,
        title: Optional[str] = None,
        url: Optional[str] = None,
        summary: Optional[str] = None,
        published: Optional[datetime] = None,
        updated: Optional[datetime] = None,
        authors: Sequence[Union[Author, Mapping[str, str]]] = (),
        tags: Sequence[str] = (),
        image: Optional[str] = None,
        attachments: Sequence[Union[Attachment, Mapping[str, Any]]] = (),
        extra: Optional[Mapping[str, Any]] = None,
        json: Any = _ABSENT,
        content: Union[str, bytes, None] = None,
        content_type: Optional[str] = None,
        modified: Optional[datetime] = None,
        publish_at: Optional[datetime] = None,
    ) -> Published:
        """Publishes an item whole: its content, as `json` or as `content`, and its other fields.

        >>> import towpath
        >>> news = towpath.Client(BASE).feed("news")
        >>> news.put("3", title="Fog", json={"boats": 0}).appended
        1
        >>> news.delete("3").appended
        1
        """
        fields = {
            "title": title,
            "url": url,
            "summary": summary,
            "published": published,
            "updated": updated,
            "authors": list(authors),
            "tags": list(tags),
            "image": image,
            "attachments": list(attachments),
            "extra": extra,
        }
        line: Dict[str, Any] = {"id": id, "item": {name: value for name, value in fields.items() if value}}
        if json is not _ABSENT:
            line["json"] = json
        others = {"content": content, "content_type": content_type, "modified": modified, "publish_at": publish_at}
        line.update((name, value) for name, value in others.items() if value is not None)
        return self.batch([line])

    def patch(self, id: str, changes: Mapping[str, Any]) -> Published:
        """Changes parts of an item, by a merge patch of its line: `{"json": {"boats": 11}}`."""
        return self._published("PATCH", id, _json.dumps(changes, default=_value))

    def delete(self, id: str) -> Published:
        """Deletes an item. An `HttpError` with the status 404 says that there is none."""
        return self._published("DELETE", id, "")

    def get(self, id: str) -> Dict[str, Any]:
        """Returns the members of an item's line."""
        line: Dict[str, Any] = _json.loads(self._send("GET", id, ""))
        return line

    def batch(self, lines: Iterable[Union[Mapping[str, Any], Change]]) -> Published:
        """Publishes lines, or changes of another feed: all of them, or none. Up to 10,000 and 64 MiB."""
        return self._published("POST", "", "".join(f"{_line(line)}\n" for line in lines))

    def follow(self, **options: Any) -> Follow:
        """Follows the feed; the options are those of `follow`."""
        return follow(self.url, **{"token": self.client.token, **options})

    def _send(self, method: str, id: str, body: str) -> str:
        return _towpath.publish(self.client.base, self.name, self.client.token, method, id, body)

    def _published(self, method: str, id: str, body: str) -> Published:
        answer = _json.loads(self._send(method, id, body))
        return Published(answer["appended"], answer.get("unchanged", 0))


class Client:
    """A server of towpath. The token is sent to it only."""

    def __init__(self, base: str, *, token: Optional[str] = None) -> None:
        self.base = base
        self.token = token

    def feed(self, name: str) -> Feed:
        """Returns a feed of the server."""
        return Feed(self, name)


def discover(url: str, *, token: Optional[str] = None, headers: Optional[Mapping[str, str]] = None) -> List[Offer]:
    """Returns the protocols that an address offers, the preferred one first.

    >>> import towpath
    >>> towpath.discover(FEED)[0].protocol
    'smart'
    """
    return [Offer(*offer) for offer in _towpath.discover(url, token, list((headers or {}).items()))]


def check(
    url: str,
    *,
    protocol: str = "auto",
    token: Optional[str] = None,
    headers: Optional[Mapping[str, str]] = None,
) -> Report:
    """Checks a feed for conformance with the specification of its protocol.

    >>> import towpath
    >>> towpath.check(FEED, protocol="smart").conforms
    True
    """
    report = _json.loads(_towpath.check(url, protocol, token, list((headers or {}).items())))
    report["findings"] = tuple(Finding(**finding) for finding in report["findings"])
    return Report(**report)
