"""The WSGI side of the API: Django's requests, URLs and answers, without its way through
middleware.

Sessions, CSRF tokens, messages and frames are for users with browsers. A program has a key
in a header, and what it does not need costs more than its authentication, its limits and
its metrics together: see docs/decisions/0019-short-way-of-requests.md.
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

# Who joins can wait better than those who are members: above so many requests that wait for
# their turn a
# registration is refused, before it takes a thread from them.
MOST_WAITING = 100
JOINING = "/consumers"
PATHS = ("/api", "//api", "/livez", "/readyz", "/metrics")
# What programs are told is neither kept by whoever passes it on, nor taken for a page by a
# browser.
SAFE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
MOST_KNOWN_PATHS = 4096  # topics and consumers of a busy broker


class ApiHandler:
    """Answers what lies under PATHS."""

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        response = self.get_response(WSGIRequest(environ))
        start_response(
            f"{response.status_code} {response.reason_phrase}", [*response.items(), *SAFE]
        )
        if isinstance(response, HttpResponse):
            # its close() would send signals, and nothing is open in it
            return (response.content,)
        return response

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        """The answer, with its length: without one a server would have to send it in
        chunks.
        """
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
        if isinstance(response, HttpResponse) and "Content-Length" not in response:
            response["Content-Length"] = str(len(response.content))
        return response


def _answer(request: HttpRequest) -> HttpResponseBase:
    """Return the answer of the URL's view; connections to the metadata go back before it is
    written.
    """
    try:
        match = request.resolver_match = _resolved(request.path_info)
        response: HttpResponseBase = match.func(request, **match.kwargs)
        if isinstance(response, SimpleTemplateResponse):
            response.render()
        return response
    except Exception as error:  # noqa: BLE001 - endpoints answer theirs: Django logs and answers what is left
        return response_for_exception(request, error)
    finally:
        release_connections()


@lru_cache(MOST_KNOWN_PATHS)
def _resolved(path: str) -> ResolverMatch:
    """The view of a path. The same few come all the time: looked up anew each would cost
    more than its key.

    Raises Resolver404, which is not remembered. A base URL that ends in / doubles the first
    one.
    """
    return get_resolver().resolve(
        path.replace("//", "/", 1) if path.startswith("//") else path
    )
