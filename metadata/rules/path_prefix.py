"""Path of the portal and the API on a host that a proxy shares, such as /catmq; "" without
a prefix.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
MAX_CHARS = 200
# First segments of the server's own paths; a test compares them with the URL
# configuration.
OWN_SEGMENTS = frozenset((
    "acknowledge", "admin", "alarms", "api", "audit", "brokers", "checks", "consistency",
    "consumers", "create", "doctor", "export", "filters", "groups", "help", "java-clients", "jobs",
    "keys", "language", "livez", "login", "logout", "messages", "metrics", "names", "nodes",
    "parts", "password", "pipeline", "readyz", "rebalances", "reports", "runs", "search",
    "settings", "static", "subscriptions", "theme", "topics", "users",
))  # fmt: skip


def prefix_problem(prefix: str) -> str:
    """Return why a path cannot be the prefix, with the remedy; '' if it can.

    >>> prefix_problem("/catmq"), prefix_problem("/tools/mq-1"), prefix_problem("")
    ('', '', '')
    >>> prefix_problem("catmq/")
    "must look like /catmq: begin with / and not end with it, not 'catmq/'."
    """
    if not prefix:
        return ""
    if not PREFIX.fullmatch(prefix):
        if prefix.startswith("/") and not prefix.endswith("/"):
            return (
                "must have only A-Z a-z 0-9 . _ ~ - and single / in it, as in /catmq, "
                f"without query or fragment, not {prefix!r}."
            )
        return f"must look like /catmq: begin with / and not end with it, not {prefix!r}."
    if {".", ".."} & set(prefix.split("/")):
        return f"must not have . or .. as a part, because browsers resolve them, not {prefix!r}."
    if len(prefix) > MAX_CHARS:
        return f"must have at most {MAX_CHARS} characters, not {len(prefix)}."
    first_segment = prefix.split("/")[1]
    # A proxy may remove the prefix or leave it. With the prefix /topics, the meaning of
    # /topics/a would be unclear.
    if first_segment in OWN_SEGMENTS:
        return (
            f"must not begin with /{first_segment}, a path of the server itself: take "
            "another one."
        )
    return ""


def without_prefix(path: str, prefix: str) -> str:
    """Return a request's path as the server knows it, whether or not the proxy removed the
    prefix.

    >>> without_prefix("/catmq/topics", "/catmq"), without_prefix("/topics", "/catmq")
    ('/topics', '/topics')
    >>> without_prefix("/catmq", "/catmq"), without_prefix("/catmqx", "/catmq")
    ('/', '/catmqx')
    """
    if path == prefix:
        return "/"
    return path[len(prefix) :] if path.startswith(f"{prefix}/") else path


def url_with_prefix(url: str, prefix: str) -> str:
    """Return the URL of a broker's portal. The broker's own URL may end with the prefix
    already.

    >>> url_with_prefix("http://b1:8000", "/catmq"), url_with_prefix("https://x/catmq", "/catmq")
    ('http://b1:8000/catmq', 'https://x/catmq')
    >>> url_with_prefix("http://b1:8000", "")
    'http://b1:8000'
    """
    return url if urlsplit(url).path.endswith(prefix) else f"{url}{prefix}"
