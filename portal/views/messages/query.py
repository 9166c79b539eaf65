"""The query box of the message search: `key:42 header:source=web "some text"`, or a message
id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from django.utils.translation import gettext as _

from metadata.errors import Invalid

# Prefix in the query box → name of the field.
FIELD_PREFIXES: Mapping[str, str] = {
    "key": "key",
    "tag": "tag",
    "trace": "trace_id",
    "header": "header",
    "queue": "queue",
    "offset": "offset",
    "id": "message_id",
}
_FIELD_PATTERN = re.compile(rf'(?<!\S)({"|".join(FIELD_PREFIXES)}):(?:"([^"]*)"|(\S+))')
_QUOTED_PATTERN = re.compile(r'"([^"]*)"')
_ID_PATTERN = re.compile(r"[0-9]{1,18}-[0-9]{1,18}", re.ASCII)


def parse_query(query: str) -> dict[str, str]:
    """Return the fields in a query. The rest of the query is text in the body. Raises
    Invalid.

    >>> parse_query('key:"a b" tag:new paid in full')
    {'key': 'a b', 'tag': 'new', 'contains': 'paid in full'}
    >>> parse_query("7-145"), parse_query('"path": "x"'), parse_query('"a text"')
    ({'message_id': '7-145'}, {'contains': '"path": "x"'}, {'contains': 'a text'})
    """
    fields: dict[str, str] = {}
    for name, quoted, word in _FIELD_PATTERN.findall(query):
        if FIELD_PREFIXES[name] in fields:
            raise Invalid.field(
                "q", _("%s is given twice; a search is for one value of it.") % name
            )
        fields[FIELD_PREFIXES[name]] = quoted or word
    text = _FIELD_PATTERN.sub("", query).strip()
    if not text:
        return fields
    # A message id would rarely be text in a body.
    if not fields and _ID_PATTERN.fullmatch(text):
        return {"message_id": text}
    quoted_text = _QUOTED_PATTERN.fullmatch(text)
    return {**fields, "contains": quoted_text[1] if quoted_text else text}


def parse_header(text: str) -> tuple[str, str] | None:
    """Return the name and value of a header filter, None if there is none. Raises Invalid.

    >>> parse_header("source=web=1"), parse_header("")
    (('source', 'web=1'), None)
    """
    name, equals, value = text.partition("=")
    if text and not (name and equals):
        raise Invalid.field("header", _("Write the header as name=value."))
    return (name, value) if text else None
