"""Brokers as they were named, and no others: what goes through a link must not find the way
around it.
"""

from __future__ import annotations

import os

from catmq_client.http.transport import HttpTransport

# in the environment of a program: it asks the brokers of CATMQ_URL only
ONLY = "CATMQ_TEST_ONLY"


def transport() -> HttpTransport | None:
    """The transport of a program that is to ask the named brokers only; None: its own
    choice.
    """
    return HttpTransport(discover=False) if os.environ.get(ONLY) else None
