"""The box of a search for messages: `key:42 header:source=web "some text"`, or the id of a
message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.utils.translation import gettext as _

from metadata.errors import Invalid

FIELD_PREFIXES: Mapping[str, str] = {  # what is written → the name of the field
    "key": "key",
    "tag": "tag",
    "trace": "trace_id",
    "header": "header",
    "queue": "queue",
    "offset": "offset",
    "id": "message_id",
}
_FIELD = re.compile(rf'(?<!\S)({"|".join(FIELD_PREFIXES)}):(?:"([^"]*)"|(\S+))')
_QUOTED = re.compile(r'"([^"]*)"')
_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}", re.ASCII)


def parse_query(query: str) -> dict[str, str]:
    """Return the fields that a query names; the rest is text in the body, as it is written.
    Raises Invalid.

    >>> parse_query('key:"a b" tag:new paid in full')
    {'key': 'a b', 'tag': 'new', 'contains': 'paid in full'}
    >>> parse_query("7-145"), parse_query('"path": "x"'), parse_query('"a text"')
    ({'message_id': '7-145'}, {'contains': '"path": "x"'}, {'contains': 'a text'})
    """
    found: dict[str, str] = {}
    for name, quoted, word in _FIELD.findall(query):
        if FIELD_PREFIXES[name] in found:
            raise Invalid.field(
                "q", _("%s is given twice; a search is for one value of it.") % name
            )
        found[FIELD_PREFIXES[name]] = quoted or word
    text = _FIELD.sub("", query).strip()
    if not text:
        return found
    if not found and _ID.fullmatch(text):
        return {"message_id": text}
    quoted_text = _QUOTED.fullmatch(text)
    return {**found, "contains": quoted_text[1] if quoted_text else text}


def parse_header(text: str) -> tuple[str, str] | None:
    """Return the name and the value of a header to look for, None if there is none. Raises
    Invalid.

    >>> parse_header("source=web=1"), parse_header("")
    (('source', 'web=1'), None)
    """
    name, equals, value = text.partition("=")
    if text and not (name and equals):
        raise Invalid.field("header", _("Write the header as name=value."))
    return (name, value) if text else None
