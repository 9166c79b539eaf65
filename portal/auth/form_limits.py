"""Limits of the size of a form, checked before its body is read.

Django reads a form to check its CSRF token, so it reads a body before the sender is
authenticated. Its default upload handlers would also write files of any size to the disk.
No form of the portal uploads a file.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.files.uploadhandler import FileUploadHandler, SkipFile
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from portal.auth import error_pages

# Limit for clients that are not logged in. A login form needs a hundredth of it.
ANONYMOUS_MAX_BYTES = 64 << 10


class NoFiles(FileUploadHandler):
    """Skips every uploaded file. The fields of the form are kept."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        raise SkipFile

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        return None

    def file_complete(self, file_size: int) -> None:
        return None


class FormLimits(MiddlewareMixin):
    """Refuses a form by its Content-Length.

    A chunked body has no Content-Length, and Django does not read it.
    """

    def process_view(
        self, request: HttpRequest, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        """Return 413 for a form that is too large."""
        # Endpoints of the API have their own limits.
        if getattr(view, "csrf_exempt", False):
            return None
        # This hook runs after the session was read and before the CSRF check reads the
        # body.
        length = request.META.get("CONTENT_LENGTH") or "0"
        size = int(length) if length.isdigit() else 0
        if size <= ANONYMOUS_MAX_BYTES:
            return None
        limit = int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0)
        if size > limit:
            return error_pages.too_large(request, _("A form has at most %d bytes.") % limit)
        if request.user.is_authenticated:
            return None
        detail = _(
            "Without a login, a form has at most %d bytes. Log in and submit it again."
        )
        return error_pages.too_large(request, detail % ANONYMOUS_MAX_BYTES)
