"""Filters of a subscription: the messages of a topic that a group gets, by tags and
headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

# name of a header → allowed values, as pairs
Headers = tuple[tuple[str, tuple[str, ...]], ...]


class MessageFilter(Struct, frozen=True):
    """A tag filter and a header filter, which a message must both match; an empty filter
    matches all.

    The filter is true in a condition if it excludes any message.
    """

    tags: tuple[str, ...] = ()
    headers: Headers = ()

    def __bool__(self) -> bool:
        return bool(self.tags or self.headers)

    def takes(self, tag: str | None, headers: Mapping[str, str] | None) -> bool:
        """Return True for a message with one of the tags, and an allowed value of each
        header.

        >>> only = MessageFilter(("new",), (("region", ("eu", "us")), ("kind", ("order",))))
        >>> only.takes("new", {"region": "us", "kind": "order", "more": "x"})
        True
        >>> only.takes("new", {"region": "us"}), only.takes(None, {"region": "us", "kind": "order"})
        (False, False)
        """
        if self.tags and tag not in self.tags:
            return False
        message_headers = headers or {}
        return all(message_headers.get(name) in values for name, values in self.headers)


EVERYTHING = MessageFilter()


def header_filter(values_by_name: Mapping[str, Iterable[str]]) -> Headers:
    return tuple((name, tuple(values)) for name, values in values_by_name.items())


def parse_headers(text: str) -> dict[str, list[str]]:
    """Parse a header filter from lines of name=value,value. Raises ValueError with the
    line.

    >>> parse_headers("region=eu, us\\nkind=order")
    {'region': ['eu', 'us'], 'kind': ['order']}
    """
    values_of: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, values = line.partition("=")
        if not equals:
            raise ValueError(f"{line!r} is not name=value")
        values_of.setdefault(name.strip(), []).extend(
            value.strip() for value in values.split(",")
        )
    return values_of


def format_headers(headers: Mapping[str, Iterable[str]]) -> str:
    """Return a header filter as text for parse_headers().

    >>> format_headers({"region": ["eu", "us"], "kind": ["order"]})
    'region=eu,us\\nkind=order'
    """
    return "\n".join(f"{name}={','.join(values)}" for name, values in headers.items())
