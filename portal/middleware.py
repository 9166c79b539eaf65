"""What every page for people gets: a policy that lets nothing foreign run, and errors as pages."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.sessions.backends.base import UpdateError
from django.db import InterfaceError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse

from metadata.errors import CatmqError, MetadataUnavailable
from portal import errors, sessions

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
MESSAGE = "The metadata database did not answer."


def _of_driver() -> tuple[type[Exception], ...]:
    """The driver's own errors: a cursor that is closed on a connection that broke raises these."""
    driver = transaction.get_connection().Database
    return driver.OperationalError, driver.InterfaceError


class SafePages:
    """Adds the content security policy; turns our errors into pages that say what to do."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """The answer, with its policy."""
        response = self._get_response(request)
        if response.status_code < 500:  # else the session is perhaps not to be had, either
            sessions.prolong(request)
        response.setdefault("Content-Security-Policy", POLICY)
        response.setdefault("Referrer-Policy", "same-origin")
        if not request.path.startswith("/static/"):
            response.setdefault("Cache-Control", "no-store")
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """A page for an error of ours, or of a metadata database that is away; None leaves it to Django."""
        if isinstance(error, (OperationalError, InterfaceError, UpdateError, *_of_driver())):
            return errors.respond(request, MetadataUnavailable(MESSAGE))
        return errors.respond(request, error) if isinstance(error, CatmqError) else None
