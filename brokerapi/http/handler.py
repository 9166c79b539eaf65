"""The WSGI application of the API: Django's requests, URLs and responses, without its
middleware.

Sessions, CSRF tokens, messages and frames are for users with browsers. A program has a key
in a header, and the middleware would cost it more than its authentication, limits and
metrics together: see docs/decisions/0019-short-way-of-requests.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import ResolverMatch, get_resolver

from brokerapi.http import errors
from metadata.db.transactions import release_connections
from metadata.limits.bulkhead import bulkhead
from metadata.limits.concurrency import limiter

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

# New members can wait, members cannot: if more requests than this wait for a thread,
# registrations are refused.
MOST_WAITING = 100
JOINING = "/consumers"
PATHS = ("/api", "//api", "/livez", "/readyz", "/metrics")
# Answers are neither cached by proxies, nor rendered as a page by browsers.
SAFE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
MOST_KNOWN_PATHS = 4096  # topics and consumers of a busy broker


class ApiHandler:
    """Answers the URLs under PATHS."""

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        response = self.get_response(WSGIRequest(environ))
        start_response(
            f"{response.status_code} {response.reason_phrase}", [*response.items(), *SAFE]
        )
        if isinstance(response, HttpResponse):
            # Not the response itself: its close() would send signals, and nothing is open in it.
            return (response.content,)
        return response

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        if (
            limiter.waiting() > MOST_WAITING
            and request.method == "POST"
            and request.path.endswith(JOINING)
        ):
            response: HttpResponseBase = errors.respond(bulkhead.busy_error())
        else:
            # A heartbeat that is late costs a member its queues, and others the work of
            # taking over.
            with limiter.permit(first=request.path.endswith("/heartbeat")):
                response = _answer(request)
        # Without a length the server would have to send the answer in chunks.
        if isinstance(response, HttpResponse) and "Content-Length" not in response:
            response["Content-Length"] = str(len(response.content))
        return response


def _answer(request: HttpRequest) -> HttpResponseBase:
    try:
        match = request.resolver_match = resolve_path(request.path_info)
        response: HttpResponseBase = match.func(request, **match.kwargs)
        if isinstance(response, SimpleTemplateResponse):
            response.render()
        return response
    except Exception as error:  # noqa: BLE001 - endpoints answer their errors: Django logs and answers all others
        return response_for_exception(request, error)
    finally:
        # Before the answer is written: a slow client must not hold a metadata connection.
        release_connections()


@lru_cache(MOST_KNOWN_PATHS)
def resolve_path(path: str) -> ResolverMatch:
    """Return the view of a path. Raises Resolver404."""
    # Cached: the same few thousand paths come all the time, and resolving costs more than
    # authentication. Errors are not cached. A base URL that ends in / doubles the first
    # slash of the path.
    return get_resolver().resolve(
        path.replace("//", "/", 1) if path.startswith("//") else path
    )
