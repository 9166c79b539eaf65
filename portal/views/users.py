"""Users and roles: who may log in, and what each may do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata import users
from metadata.errors import CatmqError
from metadata.listing.pages import Listed
from metadata.users import UserView
from portal import pages, rows
from portal.access import actor
from portal.actions import Action, Preview
from portal.pages import Link, to
from portal.tables import Cell, Column, Empty, Text, code, listed, text, wanted, when
from portal.views.keys import RightsFields, in_words, rights_of


def users_list(request: HttpRequest) -> HttpResponse:
    """All accounts."""
    search = wanted(request).search.lower()
    views = tuple(
        one for one in users.listed(actor=actor(request)) if search in f"{one.name} {one.email}".lower()
    )
    columns = (
        Column(_("User")), Column(_("Role")), Column(_("State")), Column(_("Rights")), Column(_("E-mail")),
        Column(_("Last login (UTC)")),
    )  # fmt: skip
    table = listed(
        request, columns, Listed(views, len(views), 1, 1), row=_row, empty=Empty(_("Nobody fits the search."))
    )
    intro = _(
        "Administrators may do everything. Who is named among the owners of a topic or group manages it. "
        "Everybody else sees names and figures, and more only by rights given here."
    )
    actions = [Link(_("Create a user"), to("user-create"))]
    return pages.list_page(
        request, _("Users and roles"), table, section="users", intro=intro, actions=actions
    )


def _row(one: UserView) -> Sequence[Cell]:
    return (
        code(one.name, to("user", one.name)),
        rows.state("administrator" if one.administrator else "user"),
        rows.state("ok" if one.active else "inactive"),
        text(_("everything") if one.administrator else in_words(one.rights) or None),
        text(one.email or None),
        when(one.last_login_ms),
    )


class Account(RightsFields):
    """Role, state and rights of an account."""

    administrator = forms.BooleanField(label=lazy("Administrator"), required=False)
    active = forms.BooleanField(label=lazy("May log in"), required=False, initial=True)
    password = forms.CharField(
        label=lazy("New password"),
        required=False,
        help_text=lazy("Empty: it stays."),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    field_order = ("name", "email", "password", "administrator", "active")


class NewAccount(Account):
    """An account to be made."""

    name = forms.CharField(label=lazy("Name"), max_length=150)
    email = forms.EmailField(label=lazy("E-mail"), required=False)
    password = forms.CharField(
        label=lazy("Password"), widget=forms.PasswordInput(attrs={"autocomplete": "new-password"})
    )


class UserAction(Action):
    """Something done to accounts. Passwords must not come back in a preview, so the form acts at once."""

    right = "admin"
    what = "user"
    section = "users"

    def target(self) -> str:
        """Accounts are for whoever may do everything."""
        return "*"

    def back(self) -> str:
        """The list."""
        return to("users")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Nothing is shown before: see the class."""
        return Preview()

    def post(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """Does it at once."""
        form = self.form_class(request.POST)
        if not form.is_valid():
            return self._show(form, status=400)
        try:
            return self.done(self.run(form.cleaned_data))
        except CatmqError as error:
            return self._refuse(form, error)


class CreateUser(UserAction):
    """Makes an account."""

    form_class = NewAccount

    def heading(self) -> Text:
        """The page's title."""
        return _("Create a user")

    def run(self, fields: dict[str, Any]) -> Text:
        """Makes it."""
        users.create(
            name=fields["name"], password=fields["password"], email=fields["email"],
            administrator=fields["administrator"], rights=rights_of(fields), actor=self.actor,
        )  # fmt: skip
        return _("User %s was made.") % str(fields["name"])


class ChangeUser(UserAction):
    """Changes an account."""

    form_class = Account

    def heading(self) -> Text:
        """The page's title."""
        return _("User %s") % self.word("name")

    def initial(self) -> dict[str, Any]:
        """As it is."""
        view = users.named(name=self.word("name"), actor=self.actor)
        rights = {right: ", ".join(patterns) for right, patterns in view.rights.items()}
        return {**rights, "administrator": view.administrator, "active": view.active}

    def run(self, fields: dict[str, Any]) -> Text:
        """Changes it."""
        users.update(
            name=self.word("name"), administrator=fields["administrator"], active=fields["active"],
            rights=rights_of(fields), password=fields["password"], actor=self.actor,
        )  # fmt: skip
        return _("User %s was changed.") % self.word("name")
