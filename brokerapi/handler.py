"""The WSGI side of the API: Django without middleware.

Sessions, CSRF tokens, messages and frames are for people with browsers. A program has a key in a
header, and the middleware it does not need costs a third of the framework's share of a send.
"""

from __future__ import annotations

from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from brokerapi import errors
from metadata.gate import gate
from metadata.turnstile import turnstile

# Who joins can wait better than those who are members: above so many requests that wait for their turn a
# registration is refused, before it takes a thread from them.
MOST_WAITING = 100
JOINING = "/consumers"
PATHS = ("/api", "/livez", "/readyz", "/metrics")


class ApiHandler(WSGIHandler):
    """Answers what lies under PATHS."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Puts the views right behind Django's last resort for errors."""
        self._view_middleware: list[object] = []
        self._template_response_middleware: list[object] = []
        self._exception_middleware: list[object] = []
        self._middleware_chain = convert_exception_to_response(self._get_response)  # type: ignore[attr-defined]

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        """The answer, with its length: without one a server would have to send it in chunks."""
        if turnstile.waiting() > MOST_WAITING and request.method == "POST" and request.path.endswith(JOINING):
            response: HttpResponseBase = errors.respond(gate.later())
        else:
            # A heartbeat that is late costs a member its queues, and others the work of taking over.
            with turnstile.passage(first=request.path.endswith("/heartbeat")):
                response = super().get_response(request)
        if isinstance(response, HttpResponse) and "Content-Length" not in response:
            response["Content-Length"] = str(len(response.content))
        return response
