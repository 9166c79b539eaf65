"""Middleware of every page: a policy that lets nothing foreign run, and errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.exceptions import SessionInterrupted
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse

from metadata.db.clock import one_moment
from metadata.errors import CatmqError, MetadataUnavailable
from portal.auth import error_pages, sessions

log = logging.getLogger(__name__)
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; "
    "frame-ancestors 'none'"
)
MESSAGE = "The metadata database did not answer."


def _of_driver() -> tuple[type[Exception], ...]:
    """The driver's own errors: a cursor that is closed on a connection that broke raises
    these.
    """
    driver = transaction.get_connection().Database
    return driver.OperationalError, driver.InterfaceError


class CookiePaths:
    """Limits every cookie to the path prefix, so that other sites of the host do not get
    it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        # Some cookies, as those of django.contrib.messages, have no setting for their path.
        for cookie in response.cookies.values():
            cookie["path"] = settings.FORCE_SCRIPT_NAME or "/"
        return response


class Sessions(SessionMiddleware):
    """Django's own, which answers 400 or 500 if the session cannot be saved."""

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """The answer with its cookie; 503 if metadata is away, the login if the session is
        gone.
        """
        try:
            return super().process_response(request, response)
        except SessionInterrupted as error:
            cause = error.__context__.__context__ if error.__context__ else None
            if type(cause) is DatabaseError:  # no row was there to be updated
                return redirect_to_login(request.path)
        except InterfaceError as error:
            cause = error
        log.warning(
            "%s %s: 503, its login session could not be saved: %s",
            request.method,
            request.path,
            cause,
        )
        return error_pages.respond(request, MetadataUnavailable(MESSAGE))


class SafePages:
    """Adds the content security policy; turns our errors into pages that say what to do."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """The answer, with its policy."""
        with one_moment() if request.method in ("GET", "HEAD") else nullcontext():
            response = self._get_response(request)
        if response.status_code < 500:  # else the session is perhaps not to be had, either
            sessions.prolong(request)
        response.setdefault("Content-Security-Policy", POLICY)
        response.setdefault("Referrer-Policy", "same-origin")
        if not request.path_info.startswith("/static/"):
            response.setdefault("Cache-Control", "no-store")
        return response

    def process_exception(
        self, request: HttpRequest, error: Exception
    ) -> HttpResponse | None:
        """A page for an error of ours, or of a metadata database that is away; None leaves
        it to Django.
        """
        if isinstance(
            error, (OperationalError, InterfaceError, UpdateError, *_of_driver())
        ):
            return error_pages.respond(request, MetadataUnavailable(MESSAGE))
        return (
            error_pages.respond(request, error) if isinstance(error, CatmqError) else None
        )
