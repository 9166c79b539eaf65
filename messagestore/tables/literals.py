"""Messages as the rows of an INSERT: where a send spends most of its Python time."""

from __future__ import annotations

from collections.abc import Sequence

from messagestore.engine.messages import NewMessage, headers_text
from messagestore.engine.mysql_session import escaped, quoted
from messagestore.tables.shapes import NewBatch


def literal_rows(batches: Sequence[NewBatch]) -> list[bytes]:
    """One row per message at offsets @b, @b+1, …, stored at @t."""
    rows: list[bytes] = []
    for batch in batches:
        source = quoted(batch.producer.encode())
        end = b"',NULL," + source + b",@t)"
        for index, message in enumerate(batch.messages, len(rows)):
            key = message.key
            if key is None or message.tag is not None or message.trace_id is not None or message.headers:
                rows.append(_row(index, message, source))
            else:  # most of them
                rows.append(
                    b"(@b+%d,'%b',NULL,NULL,_binary'%b%b"
                    % (index, escaped(key.encode()), escaped(message.body), end)
                )
    return rows


def _row(index: int, message: NewMessage, source: bytes) -> bytes:
    texts = (message.key, message.tag, headers_text(message.headers), message.trace_id)
    key, tag, headers, trace = (b"NULL" if one is None else quoted(one.encode()) for one in texts)
    body = quoted(message.body)
    return b"(@b+%d,%b,%b,%b,_binary%b,%b,%b,@t)" % (index, key, tag, headers, body, trace, source)
