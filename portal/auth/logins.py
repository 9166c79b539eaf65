"""Limits on logins: wrong passwords, and passwords checked at the same time.

Checking a password takes a quarter of a second or more, on purpose, and needs no login. So
a process checks few passwords at once. An address with wrong passwords for many names is
blocked, like an address with many wrong passwords for a single name. Only name, address and
time of a wrong password are stored.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.contrib.auth.forms import AuthenticationForm
from django.db.models import Sum
from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext as _

from metadata.errors import Unavailable

# Wrong passwords for a name from an address. After these, AXES_COOLOFF_TIME must pass.
PER_NAME = 8
# Wrong passwords for any names from an address.
PER_ADDRESS = 40
# Stored wrong passwords. The oldest are deleted beyond this, so that an attack cannot fill the
# database.
MAX_REMEMBERED = 10_000
# Passwords that a process checks at the same time.
MAX_CONCURRENT_CHECKS = 1
# Longest wait for a password check to begin.
WAIT_S = 2.0

_turns = threading.BoundedSemaphore(MAX_CONCURRENT_CHECKS)


@contextmanager
def turn() -> Iterator[None]:
    """Hold the permission to check a password. Raises Unavailable if too many logins wait."""
    if not _turns.acquire(timeout=WAIT_S):
        raise Unavailable(_("Too many users are logging in. Try again in a few seconds."))
    try:
        yield
    finally:
        _turns.release()


class LoginForm(AuthenticationForm):
    """The login form. It limits how many passwords are checked at once."""

    def clean(self) -> dict[str, Any]:
        """Authenticate the user. Raises ValidationError, Unavailable."""
        with turn():
            return super().clean()


class Attempts(AxesDatabaseHandler):  # type: ignore[misc]
    """Wrong passwords, as django-axes stores and counts them (AXES_HANDLER)."""

    def get_failures(
        self, request: HttpRequest, credentials: dict[str, Any] | None = None
    ) -> int:
        """Return the number of wrong passwords, as django-axes compares it with PER_NAME.

        The failures of an address are scaled, so that PER_ADDRESS of them count as
        PER_NAME.
        """
        failures: int = super().get_failures(request, credentials)
        attempts = AccessAttempt.objects.filter(
            ip_address=request.axes_ip_address,  # type: ignore[attr-defined]  # set by axes
            attempt_time__gte=get_cool_off_threshold(request),
        )
        total = attempts.aggregate(total=Sum("failures_since_start"))["total"] or 0
        return max(failures, total * PER_NAME // PER_ADDRESS)

    def user_login_failed(
        self, sender: Any, credentials: dict[str, Any], request: Any = None, **kwargs: Any
    ) -> None:
        """Count a wrong password."""
        if request is None:
            return
        # The request is stored with the attempt, so it must not contain the password.
        bare_request = copy.copy(request)
        bare_request.GET, bare_request.POST = QueryDict(), QueryDict()
        bare_request.axes_user_agent = bare_request.axes_http_accept = ""
        super().user_login_failed(sender, credentials, bare_request, **kwargs)
        # The caller reads the outcome from its own request.
        for name in ("axes_locked_out", "axes_credentials", "axes_failures_since_start"):
            if hasattr(bare_request, name):
                setattr(request, name, getattr(bare_request, name))
        oldest = AccessAttempt.objects.order_by("-attempt_time", "-pk").values_list(
            "pk", flat=True
        )
        surplus = list(oldest[MAX_REMEMBERED : MAX_REMEMBERED + 100])
        if surplus:
            AccessAttempt.objects.filter(pk__in=surplus).delete()
