"""Logging in: what is remembered of wrong passwords, and how many are tried at once.

To check a password costs a quarter of a second or more, on purpose, and nobody needs a key
to ask for it. So few are checked at once in a process; and an address that was wrong for
too many names is refused like one that was wrong too often for one name. Of a wrong try
only name, address and time are kept.
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

# wrong passwords for a name from one address; then none is tried for AXES_COOLOFF_TIME
PER_NAME = 8
PER_ADDRESS = 40  # for whatever names from one address
# names and addresses with wrong passwords; of more, the oldest are forgotten
MAX_REMEMBERED = 10_000
MAX_CONCURRENT_CHECKS = 1  # passwords that a process checks at once
WAIT_S = 2.0  # for a turn

_turns = threading.BoundedSemaphore(MAX_CONCURRENT_CHECKS)


@contextmanager
def turn() -> Iterator[None]:
    """Wait for the turn to check a password. Raises Unavailable."""
    if not _turns.acquire(timeout=WAIT_S):
        raise Unavailable(_("Too many users are logging in. Try again in a few seconds."))
    try:
        yield
    finally:
        _turns.release()


class LoginForm(AuthenticationForm):
    """Name and password; few are checked at once."""

    def clean(self) -> dict[str, Any]:
        """The user who may log in. Raises ValidationError, Unavailable."""
        with turn():
            return super().clean()


class Attempts(AxesDatabaseHandler):  # type: ignore[misc]
    """The memory of the throttle of logins: see AXES_HANDLER."""

    def get_failures(
        self, request: HttpRequest, credentials: dict[str, Any] | None = None
    ) -> int:
        """Return how many wrong passwords count: PER_NAME are too many, and PER_ADDRESS
        weigh as much.
        """
        failures: int = super().get_failures(request, credentials)
        mine = AccessAttempt.objects.filter(
            ip_address=request.axes_ip_address,  # type: ignore[attr-defined]  # set by axes
            attempt_time__gte=get_cool_off_threshold(request),
        )
        total = mine.aggregate(total=Sum("failures_since_start"))["total"] or 0
        return max(failures, total * PER_NAME // PER_ADDRESS)

    def user_login_failed(
        self, sender: Any, credentials: dict[str, Any], request: Any = None, **kwargs: Any
    ) -> None:
        """Counts a wrong password, without the words of its request."""
        if request is None:
            return
        bare = copy.copy(request)
        bare.GET, bare.POST = QueryDict(), QueryDict()
        bare.axes_user_agent = bare.axes_http_accept = ""
        super().user_login_failed(sender, credentials, bare, **kwargs)
        for name in ("axes_locked_out", "axes_credentials", "axes_failures_since_start"):
            if hasattr(bare, name):
                setattr(request, name, getattr(bare, name))
        self._forget()

    def _forget(self) -> None:
        """Forgets the oldest of too many."""
        oldest = AccessAttempt.objects.order_by("-attempt_time", "-pk").values_list(
            "pk", flat=True
        )
        surplus = list(oldest[MAX_REMEMBERED : MAX_REMEMBERED + 100])
        if surplus:
            AccessAttempt.objects.filter(pk__in=surplus).delete()
