"""The password of whoever is logged in: changed by oneself, who knows the old one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import authenticate, get_user_model, update_session_auth_hash
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.db.access import LOOK
from metadata.errors import Invalid
from metadata.users import accounts
from portal.actions.action import Action, Preview
from portal.actions.fields import password_field
from portal.auth import logins
from portal.kit.tables import Text


class PasswordForm(forms.Form):
    """The old password, and the new one twice."""

    old = password_field(
        lazy("Current password"), autocomplete="current-password", max_length=500
    )
    password = password_field(lazy("New password"), max_length=500)
    again = password_field(lazy("Confirm new password"), max_length=500)

    def clean(self) -> dict[str, Any]:
        """The fields. Raises ValidationError if the new ones differ."""
        found = super().clean() or {}
        if "again" in found and found.get("password") != found["again"]:
            self.add_error("again", _("The two passwords differ."))
        return found


class ChangePassword(Action):
    """Changes it. Wrong old passwords count as wrong logins do: after some, none is tried
    for a while.
    """

    form_class = PasswordForm
    right = LOOK
    object_kind = "account"
    section = "password"
    needs_right_on_all = True
    title = lazy("Your password")
    back_to = ("overview",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._prove(fields)
        accounts.change_own_password(
            password=fields["password"], actor=self.actor, dry_run=True
        )
        return Preview(
            effects=[
                _(
                    "You stay logged in here. All your other sessions end, and the old password "
                    "becomes invalid."
                )
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        self._prove(fields)
        accounts.change_own_password(password=fields["password"], actor=self.actor)
        return _("Your password was changed.")

    def _prove(self, fields: dict[str, Any]) -> None:
        """Raises Invalid unless the old password is right, Unavailable if too many are
        checked now.
        """
        with logins.turn():
            user = authenticate(
                self.request, username=self.actor.name, password=fields["old"]
            )
        if user is None:
            raise Invalid.field("old", _("Wrong password."))

    def _execute(self, form: forms.Form) -> HttpResponse:
        """As of any action; the session, which the old password opened, then goes on under
        the new one.
        """
        answer = super()._execute(form)
        if answer.status_code == 302:
            update_session_auth_hash(
                self.request, get_user_model().objects.get(username=self.actor.name)
            )
        return answer
