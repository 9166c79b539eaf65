"""Errors as pages, each with its cause and a remedy."""

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
    """Return the HTTP status of an error, 500 for an unknown kind."""
    return next(
        (
            status
            for error_class, status in STATUS.items()
            if isinstance(error, error_class)
        ),
        500,
    )


def respond(request: HttpRequest, error: CatmqError) -> HttpResponse:
    """Return the page of an error."""
    if isinstance(error, MetadataUnavailable):
        # Nobody can be authenticated now, so this page contains nothing secret.
        cluster = snapshot.current() if snapshot.age_s() < float("inf") else None
        nodes = len(cluster.nodes) if cluster else 0
        figures = {
            "nodes": nodes,
            "answering": nodes - len(node_pools.unreachable_nodes()),
            "topics": len(cluster.topics) if cluster else 0,
            "groups": len(cluster.groups) if cluster else 0,
            "age_s": round(snapshot.age_s()) if cluster else None,
        }
        return render(request, "portal/frame/outage.html", {"figures": figures}, status=503)
    status = http_status(error)
    log.info("%s %s: %d %s", request.method, request.path, status, error.detail)
    return _error_page(request, status, error_texts.describe_error(error))


def _error_page(
    request: HttpRequest, status: int, detail: str, title: str = ""
) -> HttpResponse:
    """Return an error page. Logged-in users get it with the navigation around it."""
    context = {
        "status": status,
        "title": title or TITLES.get(status, _("Server error")),
        "detail": detail,
    }
    template = (
        "portal/frame/error.html"
        if _may_show_navigation(request)
        else "portal/frame/error_alone.html"
    )
    return render(request, template, context, status=status)


def _may_show_navigation(request: HttpRequest) -> bool:
    """Return True if the request has an actor, or its user can be authenticated now."""
    if hasattr(request, "actor"):
        return True
    # The error that is being shown may come from authentication itself, so it may fail again.
    with suppress(CatmqError, DatabaseError, AttributeError):
        if request.user.is_authenticated and not sessions.has_ended(request):
            request.actor = access.actor_of(request)  # type: ignore[attr-defined]  # read by access.template_context()
            return True
    return False


def too_large(request: HttpRequest, detail: str) -> HttpResponse:
    """Answer 413 to a form that is too large to be read."""
    return _error_page(request, 413, detail)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403 to a request that Django refuses."""
    return _error_page(request, 403, _("You have no permission for this page."))


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 to an unknown address."""
    return _error_page(
        request, 404, _("There is no page at this address."), _("Page not found")
    )


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer 500 to an unexpected error. The page and the log have the same id."""
    incident = uuid.uuid4().hex[:16]
    log.error("page failed, id %s: %s", incident, request.path, exc_info=True)
    return _error_page(request, 500, _("The log has details under the id %s.") % incident)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer 403 to a form from another site, from an expired page, or changed by a proxy."""
    return _error_page(request, 403, _explain_csrf_failure(request))


def _explain_csrf_failure(request: HttpRequest) -> str:
    """Return why a form was refused. A misconfigured proxy makes every form fail."""
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
