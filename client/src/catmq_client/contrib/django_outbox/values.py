"""Checks and conversions of message values before they are written to the application's
database.
"""

from __future__ import annotations

from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction

from catmq_client.admin.calls import NAME, NAME_RULE
from catmq_client.contrib.django_outbox.conf import OutboxSettings
from catmq_client.errors import OptionError

MAX_BMP = 0xFFFF  # the last character of MySQL's utf8mb3
_encoder = DjangoJSONEncoder()


def to_json_types(value: Any) -> Any:
    """Return a JSON value with dates, times, decimals and UUIDs as text, as
    DjangoJSONEncoder writes them. Values of unknown types are returned unchanged. Raises
    OptionError for a time of day with a time zone.
    """
    try:
        return _convert(value)
    except RecursionError:
        # Too deep, or a cycle: json.dumps refuses the value later with a clear error.
        return value


def _convert(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {name: _convert(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_convert(element) for element in value]
    try:
        return _encoder.default(value)
    except TypeError:
        return value
    except ValueError as error:
        raise OptionError(f"json: {error}") from error  # a time of day with a time zone


def check_topic(topic: str) -> str:
    if not isinstance(topic, str) or not NAME.fullmatch(topic):
        raise OptionError(f"topic: {topic!r} is not a valid name: {NAME_RULE}")
    return topic


def check_text(name: str, text: str | None, alias: str) -> None:
    """Raise OptionError for text that the database cannot store.

    An INSERT that fails would end the caller's transaction on PostgreSQL.
    """
    if text is None:
        return
    connection = transaction.get_connection(alias)
    if "\0" in text and connection.vendor == "postgresql":
        raise OptionError(
            f"{name}={text!r}: PostgreSQL takes no NUL character, leave it out"
        )
    charset = connection.settings_dict.get("OPTIONS", {}).get("charset", "")
    # utf8 is MySQL's old name of utf8mb3, whose characters have at most three bytes.
    if charset in ("utf8", "utf8mb3") and any(
        ord(character) > MAX_BMP for character in text
    ):
        raise OptionError(
            f"{name}={text!r}: the connection of database {alias!r} has the charset "
            f"{charset}, which lacks "
            'this character: write "charset": "utf8mb4" in its OPTIONS'
        )


def check_size(body: bytes, headers: dict[str, str], limits: OutboxSettings) -> None:
    """Raise OptionError for a message that brokers refuse for its size. `headers` includes
    the outbox's own header.
    """
    size = sum(len(name.encode()) + len(text.encode()) for name, text in headers.items())
    for description, number, limit, setting in (
        ("body has {} bytes", len(body), limits.max_body_bytes, "MAX_BODY_BYTES"),
        (
            "headers are {}, with that of the outbox",
            len(headers),
            limits.max_headers,
            "MAX_HEADERS",
        ),
        (
            "headers have {} bytes together",
            size,
            limits.max_headers_bytes,
            "MAX_HEADERS_BYTES",
        ),
    ):
        if number > limit:
            raise OptionError(
                f"{description.format(number)}: at most {limit} are allowed. Brokers may allow "
                "more, then set "
                f"CATMQ_OUTBOX[{setting!r}]"
            )
