"""Messages as the rows of an INSERT: where a send spends most of its Python time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from messagestore.messages import headers_text
from messagestore.tables.shapes import NewBatch

Quote = Callable[[bytes], bytes]


def literal_rows(batches: Sequence[NewBatch], quote: Quote) -> list[bytes]:
    """One row per message at offsets @b, @b+1, …, stored at @t; `quote` is the connection's own."""
    rows: list[bytes] = []
    for batch in batches:
        source = quote(batch.producer.encode())
        plain_end = b",NULL," + source + b",@t)"
        for index, message in enumerate(batch.messages, len(rows)):
            key = b"NULL" if message.key is None else quote(message.key.encode())
            body = quote(message.body)
            if message.tag is None and message.trace_id is None and not message.headers:  # most of them
                rows.append(b"(@b+%d,%b,NULL,NULL,_binary%b%b" % (index, key, body, plain_end))
                continue
            tag = b"NULL" if message.tag is None else quote(message.tag.encode())
            text = headers_text(message.headers)
            headers = b"NULL" if text is None else quote(text.encode())
            trace = b"NULL" if message.trace_id is None else quote(message.trace_id.encode())
            row = b"(@b+%d,%b,%b,%b,_binary%b,%b,%b,@t)" % (index, key, tag, headers, body, trace, source)
            rows.append(row)
    return rows
