"""Middleware of all pages: session cookies, a content security policy, and errors as pages."""

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
# Scripts, styles and images come from this server only.
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; "
    "frame-ancestors 'none'"
)
OUTAGE_DETAIL = "The metadata database did not answer."


class CookiePaths:
    """Limits every cookie to the path prefix, so that other sites on the host do not
    receive it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        # Some cookies, such as those of django.contrib.messages, have no setting for their path.
        for cookie in response.cookies.values():
            cookie["path"] = settings.FORCE_SCRIPT_NAME or "/"
        return response


class Sessions(SessionMiddleware):
    """Django's session middleware, but with a helpful answer if the session cannot be saved.

    Django answers 400 then, or 500 if the connection is broken.
    """

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Save the session and return the response with its cookie.

        If the session was deleted meanwhile, redirect to the login. If the metadata database
        is unavailable, return 503.
        """
        try:
            return super().process_response(request, response)
        except InterfaceError as error:
            cause: BaseException | None = error
        except SessionInterrupted as error:
            # Django raises this for any failed save: DatabaseError → UpdateError →
            # SessionInterrupted, each as the context of the next.
            update_error = error.__context__
            cause = update_error.__context__ if update_error else None
            # Exactly this class: an UPDATE matched no row, because the session was deleted.
            # A database that fails raises a subclass.
            if type(cause) is DatabaseError:
                return redirect_to_login(request.path)
        log.warning(
            "%s %s: 503, its login session could not be saved: %s",
            request.method,
            request.path,
            cause,
        )
        return error_pages.respond(request, MetadataUnavailable(OUTAGE_DETAIL))


class SafePages:
    """Adds the content security policy, and answers errors with pages."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the response with its security headers."""
        # All queries of a page use the same time.
        with one_moment() if request.method in ("GET", "HEAD") else nullcontext():
            response = self._get_response(request)
        # After a server error the session may be unavailable as well.
        if response.status_code < 500:
            sessions.prolong(request)
        response.setdefault("Content-Security-Policy", POLICY)
        response.setdefault("Referrer-Policy", "same-origin")
        # A shared computer must not show pages from its cache after the logout.
        if not request.path_info.startswith("/static/"):
            response.setdefault("Cache-Control", "no-store")
        return response

    def process_exception(
        self, request: HttpRequest, error: Exception
    ) -> HttpResponse | None:
        """Return a page for an error of the lower layers or a metadata outage, None for
        other errors.
        """
        # Django does not wrap the errors of a cursor that is closed on a broken connection,
        # so the driver's own classes are caught, too.
        driver = transaction.get_connection().Database
        outages = (
            OperationalError,
            InterfaceError,
            UpdateError,
            driver.OperationalError,
            driver.InterfaceError,
        )
        if isinstance(error, outages):
            return error_pages.respond(request, MetadataUnavailable(OUTAGE_DETAIL))
        return (
            error_pages.respond(request, error) if isinstance(error, CatmqError) else None
        )
