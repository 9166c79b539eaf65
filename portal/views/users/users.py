"""Users and roles: who may log in, and what each may do."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.listing.pages import page_of
from metadata.users import accounts
from metadata.users.accounts import UserView
from portal.actions.action import Action, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import password_field
from portal.auth.access import actor
from portal.kit import pages, rows
from portal.kit.pages import Link, to
from portal.kit.tables import Column, Columns, Empty, Text, code, listed, text, wanted, when
from portal.views.users.keys import MEANING, RightsFields, in_words, rights_of


def users_list(request: HttpRequest) -> HttpResponse:
    search = wanted(request).search.lower()
    views = tuple(
        one
        for one in accounts.list_users(actor=actor(request))
        if search in f"{one.name} {one.email}".lower()
    )
    columns: Columns[UserView] = [
        Column(_("User"), lambda one: code(one.name, to("user", one.name))),
        Column(
            _("Role"),
            lambda one: rows.state("administrator" if one.administrator else "user"),
        ),
        Column(_("State"), lambda one: rows.state("ok" if one.active else "inactive")),
        Column(
            _("Rights"),
            lambda one: text(
                _("everything") if one.administrator else in_words(one.rights) or None
            ),
        ),
        Column(_("E-mail"), lambda one: text(one.email or None)),
        Column(_("Last login"), lambda one: when(one.last_login_ms)),
        Column(_("Delete"), lambda one: text(_("delete"), to("user-delete", one.name))),
    ]
    table = listed(
        request,
        columns,
        page_of(views, query=wanted(request)),
        empty=Empty(_("No matching users")),
    )
    intro = _(
        "Administrators have all rights. Owners of a topic or group manage it. Other users see "
        "names and figures; everything else needs a right that is granted here."
    )
    actions = [Link(_("Create a user"), to("user-create"))]
    return pages.list_page(
        request, _("Users and roles"), table, section="users", intro=intro, actions=actions
    )


class Account(EditFields, RightsFields):
    administrator = forms.BooleanField(label=lazy("Administrator"), required=False)
    active = forms.BooleanField(label=lazy("May log in"), required=False)
    password = password_field(
        lazy("New password"), required=False, help_text=lazy("Empty: unchanged.")
    )
    field_order = ("password", "administrator", "active")


class NewAccount(RightsFields):
    name = forms.CharField(label=lazy("Name"), max_length=150)
    email = forms.EmailField(label=lazy("E-mail"), required=False)
    password = password_field(lazy("Password"))
    administrator = forms.BooleanField(label=lazy("Administrator"), required=False)
    field_order = ("name", "email", "password", "administrator")


class UserAction(Action):
    right = "admin"
    what = "user"
    section = "users"
    everywhere = True
    back_to = ("users",)


class CreateUser(UserAction):
    form_class = NewAccount
    title = lazy("Create a user")

    def preview(self, fields: dict[str, Any]) -> Preview:
        return Preview(effects=_may(self._create(fields, dry_run=True)))

    def run(self, fields: dict[str, Any]) -> Text:
        return _("User %s was created.") % self._create(fields).name

    def _create(self, fields: dict[str, Any], *, dry_run: bool = False) -> UserView:
        return accounts.create(
            name=fields["name"], password=fields["password"], email=fields["email"],
            administrator=fields["administrator"], rights=rights_of(fields),
            actor=self.actor, dry_run=dry_run,
        )  # fmt: skip


def _may(view: UserView) -> list[Text]:
    """List what an account may do, in sentences."""
    if view.administrator:
        return [
            _("%s has all rights, including those on users, keys and nodes.") % view.name
        ]
    more = [
        f"{MEANING[right]}: {', '.join(patterns)}"
        for right, patterns in view.rights.items()
    ]
    if "browse" in view.rights:
        names = {"name": view.name, "topics": ", ".join(view.rights["browse"])}
        return [
            _("%(name)s sees names, states and figures, and reads messages of %(topics)s.")
            % names,
            *more,
        ]
    return [
        _("%s sees names, states and figures, but no headers or bodies of messages.")
        % view.name,
        *more,
    ]


class ChangeUser(Edit, UserAction):
    form_class = Account
    title = lazy("User %(name)s")

    def now(self) -> dict[str, Any]:
        """As it is; but for the password, which nobody can read."""
        view = accounts.find_user(name=self.name, actor=self.actor)
        rights = {
            right: ", ".join(view.rights.get(right, ()))
            for right in RightsFields.base_fields
        }
        return {"administrator": view.administrator, "active": view.active, **rights}

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._update(fields, dry_run=True)
        found = super().preview(fields)
        if not fields["password"]:
            return found
        said = _(
            "The password will be changed. All sessions of %s end, and the old password "
            "becomes invalid."
        )
        effects = found.effects if found.table else ()  # else it says that nothing changes
        return Preview(effects=[*effects, said % self.name], table=found.table)

    def run(self, fields: dict[str, Any]) -> Text:
        return _("User %s was changed.") % self._update(fields).name

    def _update(self, fields: dict[str, Any], *, dry_run: bool = False) -> UserView:
        then = {**self.now(), **self._merge(fields).changed}
        return accounts.update(
            name=self.name, administrator=then["administrator"], active=then["active"],
            rights=rights_of(then), password=fields["password"], actor=self.actor, dry_run=dry_run,
        )  # fmt: skip


class DeleteUser(Delete, UserAction):
    title = lazy("Delete user %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._delete(fields, dry_run=True)
        effects = [_("The account and its rights will be deleted, and its sessions end.")]
        owns = accounts.owned_names(name=self.name, actor=self.actor)
        if owns:
            what = _(
                "The name stays an owner of %s. A new account with this name will manage them."
            )
            effects.append(what % ", ".join(owns))
        return Preview(effects=effects)

    def run(self, fields: dict[str, Any]) -> Text:
        self._delete(fields)
        return _("User %s was deleted.") % self.name

    def _delete(self, fields: dict[str, Any], *, dry_run: bool = False) -> None:
        accounts.delete(
            name=self.name, confirm=fields["confirm"], actor=self.actor, dry_run=dry_run
        )  # fmt: skip
