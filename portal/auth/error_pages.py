"""Errors as pages: what is wrong, and what to do."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from urllib.parse import urlsplit

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from messagestore.pool import node_pools
from metadata.cache import snapshot
from metadata.errors import (
    CatmqError,
    Conflict,
    Forbidden,
    Invalid,
    MetadataUnavailable,
    NotFound,
    Unavailable,
)
from portal.auth import access, error_texts, sessions

log = logging.getLogger(__name__)
STATUS: dict[type[CatmqError], int] = {
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Invalid: 400,
    Unavailable: 503,
}
TITLES = {
    403: gettext_lazy("Permission denied"),
    404: gettext_lazy("Not found"),
    409: gettext_lazy("Conflict"),
    400: gettext_lazy("Invalid request"),
    413: gettext_lazy("Too large"),
    503: gettext_lazy("Unavailable right now"),
}


def http_status(error: CatmqError) -> int:
    return next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)


def respond(request: HttpRequest, error: CatmqError) -> HttpResponse:
    if isinstance(error, MetadataUnavailable):
        return _outage(request)
    status = http_status(error)
    log.info("%s %s: %d %s", request.method, request.path, status, error.detail)
    return _page(request, status, error_texts.describe_error(error))


def _outage(request: HttpRequest) -> HttpResponse:
    """The metadata database is away: who asks cannot be known, so the page names nothing
    that is a secret.
    """
    known = snapshot.current() if snapshot.age_s() < float("inf") else None
    nodes = len(known.nodes) if known else 0
    seen = {
        "nodes": nodes,
        "answering": nodes - len(node_pools.away()),
        "topics": len(known.topics) if known else 0,
        "groups": len(known.groups) if known else 0,
        "age_s": round(snapshot.age_s()) if known else None,
    }
    return render(request, "portal/frame/outage.html", {"seen": seen}, status=503)


def _page(request: HttpRequest, status: int, detail: str, title: str = "") -> HttpResponse:
    """A page with the navigation around it for who logged in, and alone for others."""
    words = {
        "status": status,
        "title": title or TITLES.get(status, _("Server error")),
        "detail": detail,
    }
    template = (
        "portal/frame/error.html" if _is_known(request) else "portal/frame/error_alone.html"
    )
    return render(request, template, words, status=status)


def _is_known(request: HttpRequest) -> bool:
    """Return True if the page may show the navigation: somebody logged in, and it is known
    who.
    """
    if hasattr(request, "actor"):
        return True
    with suppress(CatmqError, DatabaseError, AttributeError):  # it may be this that failed
        if request.user.is_authenticated and not sessions.has_ended(request):
            request.actor = access.actor_of(request)  # type: ignore[attr-defined]  # read by access.known()
            return True
    return False


def too_large(request: HttpRequest, detail: str) -> HttpResponse:
    """Answer 413 to a form that is too large to be read."""
    return _page(request, 413, detail)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403 to what Django forbids."""
    return _page(request, 403, _("You have no permission for this page."))


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, 404, _("There is no page at this address."), _("Page not found"))


def handler500(request: HttpRequest) -> HttpResponse:
    """An error that nobody expected."""
    incident = uuid.uuid4().hex[:16]
    log.error("page failed, id %s: %s", incident, request.path, exc_info=True)
    return _page(request, 500, _("The log has details under the id %s.") % incident)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer a form of another site, of an old page, or one that a proxy has spoiled."""
    return _page(request, 403, _csrf_reason(request))


def _csrf_reason(request: HttpRequest) -> str:
    """Describe why a form was refused; a proxy in front can make every form fail."""
    origin = urlsplit(request.headers.get("Origin", ""))
    if (
        origin.netloc == request.get_host()
        and origin.scheme == "https"
        and not request.is_secure()
    ):
        return _(
            "The browser used https, but the server was not told so. Set "
            "CATMQ_TRUSTED_PROXIES to the "
            "address of the proxy, and let the proxy send X-Forwarded-Proto: https."
        )
    if origin.netloc and origin.netloc != request.get_host():
        addresses = {"browser": origin.netloc, "server": request.get_host()}
        return (
            _(
                "The browser opened %(browser)s, but the server was asked for %(server)s. "
                "If a proxy stands between them, let it pass the Host header on."
            )
            % addresses
        )
    return _(
        "This form was not sent from a page that is still valid. Go back, reload the page "
        "and try again."
    )
