"""Change of the user's own password, which requires the old password."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import authenticate, get_user_model, update_session_auth_hash
from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.errors import Invalid
from metadata.rules.rights import Right
from metadata.users import accounts
from portal.actions.action import Action, Preview
from portal.actions.fields import password_field
from portal.auth import logins
from portal.kit.tables import Text


class PasswordForm(forms.Form):
    """The old password, and the new password twice."""

    old = password_field(
        lazy("Current password"), autocomplete="current-password", max_length=500
    )
    password = password_field(lazy("New password"), max_length=500)
    again = password_field(lazy("Confirm new password"), max_length=500)

    def clean(self) -> dict[str, Any]:
        """Return the fields. Raises ValidationError if the new passwords differ."""
        fields = super().clean() or {}
        if "again" in fields and fields.get("password") != fields["again"]:
            self.add_error("again", _("The two passwords differ."))
        return fields


class ChangePassword(Action):
    """Changes the user's own password.

    Wrong old passwords count as wrong logins, so that a stolen session cannot be used to
    guess the password.
    """

    form_class = PasswordForm
    right = Right.LOOK
    object_kind = "account"
    section = "password"
    needs_right_on_all = True
    title = lazy("Your password")
    back_to = ("overview",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._check_old_password(fields)
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
        self._check_old_password(fields)
        accounts.change_own_password(password=fields["password"], actor=self.actor)
        return _("Your password was changed.")

    def _check_old_password(self, fields: dict[str, Any]) -> None:
        """Raise Invalid if the old password is wrong, Unavailable if too many logins wait."""
        # Counts and limits attempts like a login does.
        with logins.turn():
            user = authenticate(
                self.request, username=self.actor.name, password=fields["old"]
            )
        if user is None:
            raise Invalid.field("old", _("Wrong password."))

    def _execute(self, form: forms.Form) -> HttpResponse:
        """Change the password, and keep the current session valid."""
        response = super()._execute(form)
        # Sessions are bound to the password hash, so this session would end as all others
        # do.
        if response.status_code == 302:
            update_session_auth_hash(
                self.request, get_user_model().objects.get(username=self.actor.name)
            )
        return response
