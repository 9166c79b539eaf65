"""Refusals of Django itself, told to programs as a problem and to people as a page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from brokerapi.http import errors
from brokerapi.http.handler import PATHS
from portal.auth import error_pages


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A request that Django refuses, such as one for a host that is not allowed."""
    return errors.handler400(request, exception)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that Django forbids."""
    if _is_of_a_program(request):
        return errors.handler403(request, exception)
    return error_pages.handler403(request, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_of_a_program(request):
        return errors.handler404(request, exception)
    return error_pages.handler404(request, exception)


def handler500(request: HttpRequest) -> HttpResponse:
    """An error that nobody expected; Django has logged it."""
    return errors.handler500(request) if _is_of_a_program(request) else error_pages.handler500(request)


def _is_of_a_program(request: HttpRequest) -> bool:
    """Browsers say that they take pages; a program that takes anything is told what it can read."""
    return request.path.startswith(PATHS) or "text/html" not in request.headers.get("Accept", "")
