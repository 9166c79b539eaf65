"""Users: their rights, roles and accounts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.listing.pages import page_of
from metadata.rules.rights import Right
from metadata.users import accounts
from metadata.users.accounts import UserView
from portal.actions.action import Action, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import password_field
from portal.auth.access import actor
from portal.kit import cells, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Text,
    code,
    list_table,
    parse_list_query,
    text,
    timestamp,
)
from portal.views.users.keys import RIGHT_MEANINGS, RightsForm, describe_rights, read_rights


def users_list(request: HttpRequest) -> HttpResponse:
    """Show the users."""
    search = parse_list_query(request).search.lower()
    views = tuple(
        user
        for user in accounts.list_users(actor=actor(request))
        if search in f"{user.name} {user.email}".lower()
    )
    columns: Columns[UserView] = [
        Column(_("User"), lambda row: code(row.name, page_url("user", row.name))),
        Column(
            _("Role"),
            lambda row: cells.state("administrator" if row.administrator else "user"),
        ),
        Column(_("State"), lambda row: cells.state("ok" if row.active else "inactive")),
        Column(
            _("Rights"),
            lambda row: text(
                _("everything")
                if row.administrator
                else describe_rights(row.rights) or None
            ),
        ),
        Column(_("E-mail"), lambda row: text(row.email or None)),
        Column(_("Last login"), lambda row: timestamp(row.last_login_ms)),
        Column(
            _("Delete"), lambda row: text(_("delete"), page_url("user-delete", row.name))
        ),
    ]
    table = list_table(
        request,
        columns,
        page_of(views, query=parse_list_query(request)),
        empty=EmptyHint(_("No matching users")),
    )
    intro = _(
        "Administrators have all rights. Owners of a topic or group manage it. Other users see "
        "names and figures; everything else needs a right that is granted here."
    )
    actions = [Link(_("Create a user"), page_url("user-create"))]
    return pages.render_list(
        request, _("Users and roles"), table, section="users", intro=intro, actions=actions
    )


class AccountForm(EditFields, RightsForm):
    """Account settings of an existing user."""

    administrator = forms.BooleanField(label=lazy("Administrator"), required=False)
    active = forms.BooleanField(label=lazy("May log in"), required=False)
    password = password_field(
        lazy("New password"), required=False, help_text=lazy("Empty: unchanged.")
    )
    field_order = ("password", "administrator", "active")


class NewAccountForm(RightsForm):
    """Account settings of a new user."""

    name = forms.CharField(label=lazy("Name"), max_length=150)
    email = forms.EmailField(label=lazy("E-mail"), required=False)
    password = password_field(lazy("Password"))
    administrator = forms.BooleanField(label=lazy("Administrator"), required=False)
    field_order = ("name", "email", "password", "administrator")


class UserAction(Action):
    right = Right.ADMIN
    object_kind = "user"
    section = "users"
    needs_right_on_all = True
    back_to = ("users",)


class CreateUser(UserAction):
    form_class = NewAccountForm
    title = lazy("Create a user")

    def preview(self, fields: dict[str, Any]) -> Preview:
        return Preview(effects=_describe_account(self._create(fields, dry_run=True)))

    def run(self, fields: dict[str, Any]) -> Text:
        return _("User %s was created.") % self._create(fields).name

    def _create(self, fields: dict[str, Any], *, dry_run: bool = False) -> UserView:
        return accounts.create(
            name=fields["name"], password=fields["password"], email=fields["email"],
            administrator=fields["administrator"], rights=read_rights(fields),
            actor=self.actor, dry_run=dry_run,
        )  # fmt: skip


def _describe_account(view: UserView) -> list[Text]:
    """Describe the rights of an account in sentences."""
    if view.administrator:
        return [
            _("%s has all rights, including those on users, keys and nodes.") % view.name
        ]
    right_sentences = [
        f"{RIGHT_MEANINGS[right]}: {', '.join(patterns)}"
        for right, patterns in view.rights.items()
    ]
    if Right.BROWSE in view.rights:
        values = {"name": view.name, "topics": ", ".join(view.rights[Right.BROWSE])}
        return [
            _("%(name)s sees names, states and figures, and reads messages of %(topics)s.")
            % values,
            *right_sentences,
        ]
    return [
        _("%s sees names, states and figures, but no headers or bodies of messages.")
        % view.name,
        *right_sentences,
    ]


class ChangeUser(Edit, UserAction):
    form_class = AccountForm
    title = lazy("User %(name)s")

    def stored_settings(self) -> dict[str, Any]:
        """Return the settings of the account. Its password cannot be read."""
        view = accounts.find_user(name=self.name, actor=self.actor)
        rights = {
            right: ", ".join(view.rights.get(right, ())) for right in RightsForm.base_fields
        }
        return {"administrator": view.administrator, "active": view.active, **rights}

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._update(fields, dry_run=True)
        preview = super().preview(fields)
        if not fields["password"]:
            return preview
        sentence = _(
            "The password will be changed. All sessions of %s end, and the old password "
            "becomes invalid."
        )
        # Without a table of changed settings, the only effect is "Nothing changes.", which the
        # password makes wrong.
        effects = preview.effects if preview.table else ()
        return Preview(effects=[*effects, sentence % self.name], table=preview.table)

    def run(self, fields: dict[str, Any]) -> Text:
        return _("User %s was changed.") % self._update(fields).name

    def _update(self, fields: dict[str, Any], *, dry_run: bool = False) -> UserView:
        # The form was merged with the stored account, so that another administrator's
        # changes stay.
        settings = {**self.stored_settings(), **self._merge(fields).changed}
        return accounts.update(
            name=self.name, administrator=settings["administrator"], active=settings["active"],
            rights=read_rights(settings), password=fields["password"],
            actor=self.actor, dry_run=dry_run,
        )  # fmt: skip


class DeleteUser(Delete, UserAction):
    title = lazy("Delete user %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        self._delete(fields, dry_run=True)
        effects = [_("The account and its rights will be deleted, and its sessions end.")]
        # Ownership is a name in a setting, so it outlives the account.
        owned_names = accounts.owned_names(name=self.name, actor=self.actor)
        if owned_names:
            sentence = _(
                "The name stays an owner of %s. A new account with this name will manage them."
            )
            effects.append(sentence % ", ".join(owned_names))
        return Preview(effects=effects)

    def run(self, fields: dict[str, Any]) -> Text:
        self._delete(fields)
        return _("User %s was deleted.") % self.name

    def _delete(self, fields: dict[str, Any], *, dry_run: bool = False) -> None:
        accounts.delete(
            name=self.name, confirm=fields["confirm"], actor=self.actor, dry_run=dry_run
        )  # fmt: skip
