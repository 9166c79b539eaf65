"""Filters of a subscription: which messages of a topic a group takes, by their tags and
headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# names, each with the values that are taken
Headers = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A tag filter and a header filter, both of which a message must match; an empty one
    takes all.

    A filter is true if it leaves anything out.
    """

    tags: tuple[str, ...] = ()
    headers: Headers = ()

    def __bool__(self) -> bool:
        return bool(self.tags or self.headers)

    def takes(self, tag: str | None, headers: Mapping[str, str] | None) -> bool:
        """Return True for a message with one of the tags, and with one of the values of
        each header.

        >>> only = MessageFilter(("new",), (("region", ("eu", "us")), ("kind", ("order",))))
        >>> only.takes("new", {"region": "us", "kind": "order", "more": "x"})
        True
        >>> only.takes("new", {"region": "us"}), only.takes(None, {"region": "us", "kind": "order"})
        (False, False)
        """
        if self.tags and tag not in self.tags:
            return False
        carried = headers or {}
        return all(carried.get(name) in values for name, values in self.headers)


EVERYTHING = MessageFilter()


def header_filter(written: Mapping[str, Iterable[str]]) -> Headers:
    """Return a header filter from an object of names and lists of values."""
    return tuple((name, tuple(values)) for name, values in written.items())


def parse_headers(text: str) -> dict[str, list[str]]:
    """Return a header filter from lines as people write them. Raises ValueError, naming the
    line.

    >>> parse_headers("region=eu, us\\nkind=order")
    {'region': ['eu', 'us'], 'kind': ['order']}
    """
    found: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, values = line.partition("=")
        if not equals:
            raise ValueError(f"{line!r} is not name=value")
        found.setdefault(name.strip(), []).extend(
            value.strip() for value in values.split(",")
        )
    return found


def format_headers(headers: Mapping[str, Iterable[str]]) -> str:
    """Return a header filter as read_headers reads it.

    >>> format_headers({"region": ["eu", "us"], "kind": ["order"]})
    'region=eu,us\\nkind=order'
    """
    return "\n".join(f"{name}={','.join(values)}" for name, values in headers.items())
