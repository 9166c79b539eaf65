"""The access log, and the fields that all lines of a request have.

Used only if CATMQ_LOG_FORMAT or CATMQ_ACCESS_LOG asks for it, so that requests cost nothing
otherwise. No line has a query string, a body or a secret: a query may have a part of a
message, and some paths have a consumer id or a token.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any

from django.urls import Resolver404, ResolverMatch

from brokerapi.http.handler import resolve_path
from metadata.log_context import log_context
from metadata.rules.path_prefix import without_prefix
from metadata.rules.trace_context import parse_traceparent

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("catmq_site.access")

# Arguments of URLs with which somebody could act for another.
SECRET_ARGUMENTS = ("consumer", "token")
MAX_PATH_CHARS = 500
# A longer or stranger id of a client could be a forged entry, or fill the disk.
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KINDS_BY_PREFIX = {"topics/": "topic", "groups/": "group"}


class RequestLog:
    """Calls an application within a log context, and logs its requests.

    `access_log` is "off", "errors" (status 400 and above) or "on".
    """

    def __init__(
        self, application: WSGIApplication, *, access_log: str, path_prefix: str
    ) -> None:
        self._application = application
        self._access_log = access_log
        self._path_prefix = path_prefix
        self._numbers = count(1)
        # Of this worker. Drawn at the first request: the module is loaded before the fork.
        self._id_prefix = ""

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        began_at = time.monotonic()
        path = without_prefix(environ["PATH_INFO"], self._path_prefix)
        match = _find_match(path)
        status = 0
        length: str | None = None

        def note_status(line: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            nonlocal status, length
            status = int(line[:3])
            length = next((v for k, v in headers if k.lower() == "content-length"), None)
            return start_response(line, headers, *rest)

        fields: dict[str, Any] = {"request_id": self._request_id(environ)}
        fields |= _find_objects(match)
        if trace := parse_traceparent(environ.get("HTTP_TRACEPARENT")):
            fields["trace_id"] = trace.trace_id
        with log_context(**fields):
            chunks = self._application(environ, note_status)
            # Without a status the application failed, and the worker logs that itself.
            if status and self._is_logged(status):
                duration_ms = 1000 * (time.monotonic() - began_at)
                shown_path = describe_path(path, match)
                values = {
                    "method": environ["REQUEST_METHOD"],
                    "path": shown_path,
                    "status": status,
                    "duration_ms": round(duration_ms, 1),
                    "address": environ.get("REMOTE_ADDR", ""),
                    "bytes": int(length) if length else None,
                }
                text = "%s %s %d in %.1f ms"
                line = (values["method"], shown_path, status, duration_ms)
                log.info(text, *line, extra=values)
            return chunks

    def _is_logged(self, status: int) -> bool:
        if self._access_log == "errors":
            return status >= HTTPStatus.BAD_REQUEST
        return self._access_log == "on"

    def _request_id(self, environ: WSGIEnvironment) -> str:
        """Return the id that a proxy or the client gave the request, else a new one."""
        given = environ.get("HTTP_X_REQUEST_ID", "")
        if REQUEST_ID.fullmatch(given):
            return str(given)
        if not self._id_prefix:
            self._id_prefix = os.urandom(5).hex()
        return f"{self._id_prefix}-{next(self._numbers)}"


def _find_match(path: str) -> ResolverMatch | None:
    try:
        return resolve_path(path.encode("latin-1").decode())
    except (Resolver404, UnicodeError):
        return None


def _find_objects(match: ResolverMatch | None) -> dict[str, str]:
    """Return the topic and the group that a URL names."""
    if match is None:
        return {}
    objects: dict[str, str] = {
        name: match.kwargs[name] for name in ("topic", "group") if name in match.kwargs
    }
    # Pages call the name of their object just that.
    for prefix, kind in _KINDS_BY_PREFIX.items():
        if match.route.startswith(prefix) and "name" in match.kwargs:
            objects[kind] = match.kwargs["name"]
    return objects


def describe_path(path: str, match: ResolverMatch | None) -> str:
    """Return a path for a log line: secret arguments are replaced by their names."""
    text = path.encode("latin-1", "replace").decode(errors="replace")
    for name in SECRET_ARGUMENTS:
        secret = match.kwargs.get(name) if match else None
        if secret:
            text = text.replace(secret, f"<{name}>")
    return text[:MAX_PATH_CHARS]
