"""Use only the named brokers, so that requests through a link do not find a way around it."""

from __future__ import annotations

import os

from catmq_client.http.transport import HttpTransport

# environment variable: the program uses only the brokers of CATMQ_URL
ONLY = "CATMQ_TEST_ONLY"


def transport() -> HttpTransport | None:
    """Return a transport without discovery if ONLY is set; None lets the program choose."""
    return HttpTransport(discover=False) if os.environ.get(ONLY) else None
