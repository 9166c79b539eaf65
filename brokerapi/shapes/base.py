"""The bases of msgspec shapes, and query parameters that several endpoints share.

Most management requests and their answers have other bases, see fields.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import DecodeError, Meta, Struct, json

from metadata.errors import Invalid

# Ids, offsets, epochs and generations: what fits a signed BIGINT.
Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ShortText = Annotated[str, Meta(max_length=200)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all requests."""


class Answer(Struct, kw_only=True):
    """Base of all answers."""


class SchemaQuery(Request, kw_only=True):
    """Format of the schema; the default is by `Accept`."""

    format: Literal["", "yaml", "json"] = ""


class ListQuery(Request, kw_only=True):
    """A page of a list by name: those after `after` whose name contains `search`."""

    search: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str = ""


class TopicsQuery(ListQuery, kw_only=True):
    """A page of a list of topics, of one kind."""

    kind: Literal["normal", "failure"] = "normal"


class ConfirmQuery(Request, kw_only=True):
    """A deletion requires the name as confirmation."""

    confirm: str = ""


class PlanQuery(Request, kw_only=True):
    """Queue ids separated by commas; default all. Only the nodes of these queues must
    answer.
    """

    queues: Annotated[
        str, Meta(pattern=r"^([0-9]{1,18}(,[0-9]{1,18})*)?$", max_length=10_000)
    ] = ""


class TagsQuery(Request, kw_only=True):
    """A tag filter and a header filter, as a subscription has them; `headers` is a JSON
    object.
    """

    tags: Annotated[str, Meta(max_length=1_000)] = ""
    headers: Annotated[
        str,
        Meta(
            max_length=20_000,
            description='header filter as JSON, such as {"region": ["eu", "us"]}; empty: '
            "all messages",
        ),
    ] = ""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name. Raises Invalid if `headers` is not JSON."""
        try:
            return {
                "tags": self.tags,
                "headers": json.decode(self.headers or "{}", type=dict[str, list[str]]),
            }
        except DecodeError as error:
            raise Invalid.field(
                "headers", 'is not a JSON object such as {"region": ["eu", "us"]}'
            ) from error


class NewestQuery(Request, kw_only=True):
    """A page of a list, newest first: entries older than `after`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: Annotated[int, Meta(ge=1)] | None = None
