"""API keys: create, limit, revoke. A key is shown only when it is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.db import access
from metadata.db.paging import Window
from metadata.installation import name_programs
from metadata.listing.pages import page_of
from metadata.rules.rights import GRANTABLE, Right
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import KEY
from metadata.users import api_keys
from metadata.users.api_keys import KeyView
from portal.actions.action import Action, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import pick_settings
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link, page_url
from portal.kit.setting_fields import with_settings
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

# All keys are read at once, and a page of them is shown.
MAX_KEYS = 1000
RIGHT_MEANINGS: dict[str, Text] = {
    Right.PRODUCE: lazy("Send to topics"),
    Right.CONSUME: lazy("Read with groups, from topics"),
    Right.BROWSE: lazy("Read messages without a group"),
    Right.MANAGE: lazy("Create, change and delete topics and groups"),
    Right.ADMIN: lazy("Everything, nodes and keys too"),
}


def keys_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), Right.ADMIN, "*", what="key")
    window = Window(search=parse_list_query(request).search, limit=MAX_KEYS)
    key_views = api_keys.list_keys(window=window, actor=actor(request)).items
    columns: Columns[KeyView] = [
        Column(_("API key"), lambda row: code(row.name)),
        Column(_("Rights"), lambda row: text(describe_rights(row.rights))),
        Column(_("Limits"), lambda row: text(_describe_limits(row))),
        Column(_("Created"), lambda row: timestamp(row.created_at_ms)),
        Column(
            _("Change"), lambda row: text(_("limits"), page_url("key-limits", row.name))
        ),
        Column(
            _("Revoke"), lambda row: text(_("revoke"), page_url("key-delete", row.name))
        ),
    ]
    hint = EmptyHint(
        _("No matching keys"), name_programs("python manage.py create_api_key --help")
    )
    table = list_table(
        request, columns, page_of(key_views, query=parse_list_query(request)), empty=hint
    )
    actions = [Link(_("Create a key"), page_url("key-create"))]
    return pages.render_list(request, _("API keys"), table, section="keys", actions=actions)


def _describe_limits(key: KeyView) -> str | None:
    limits = []
    if key.max_messages_per_s is not None:
        limits.append(_("%d messages a second") % key.max_messages_per_s)
    if key.max_bytes_per_s is not None:
        limits.append(_("%d bytes a second") % key.max_bytes_per_s)
    return ", ".join(limits) or None


def describe_rights(rights: Mapping[str, Sequence[str]]) -> str:
    """Return rights in a line, such as "produce orders*; browse logs"."""
    return "; ".join(f"{right} {', '.join(patterns)}" for right, patterns in rights.items())


class RightsForm(forms.Form):
    """A field for each right, with the patterns of names it covers."""

    produce = forms.CharField(
        label=lazy("Send to"),
        required=False,
        help_text=lazy("Patterns such as orders*, logs"),
    )
    consume = forms.CharField(label=lazy("Read with groups"), required=False)
    browse = forms.CharField(label=lazy("Read messages without a group"), required=False)
    manage = forms.CharField(label=lazy("Manage"), required=False)
    admin = forms.CharField(
        label=lazy("Everything"),
        required=False,
        help_text=lazy("Nodes, brokers and keys too: * for all."),
    )


def read_rights(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the rights that a form grants. Empty rights are left out."""
    rights = {
        right: str(fields.get(right) or "").replace(",", " ").split() for right in GRANTABLE
    }
    return {right: patterns for right, patterns in rights.items() if patterns}


@with_settings(KEY)
class NewKeyForm(RightsForm):
    name = forms.CharField(label=lazy("Name"), max_length=100)
    field_order = ("name",)


class KeyAction(Action):
    right = Right.ADMIN
    object_kind = "key"
    section = "keys"
    needs_right_on_all = True
    back_to = ("keys",)


class CreateKey(KeyAction):
    """Creates a key and shows it, for the only time."""

    form_class = NewKeyForm
    title = lazy("Create a key")

    def preview(self, fields: dict[str, Any]) -> Preview:
        # A dry run checks the name and the rights.
        view, _secret = self._create(fields, dry_run=True)
        effects = [
            f"{RIGHT_MEANINGS[right]}: {', '.join(patterns)}"
            for right, patterns in view.rights.items()
        ]
        return Preview(effects=[*effects, _("The key is shown once, on the next page.")])

    def run(self, fields: dict[str, Any]) -> Text:
        # Kept on this view only, until respond() has shown it.
        view, self.secret = self._create(fields)
        return _("Key %s was created.") % view.name

    def _create(
        self, fields: dict[str, Any], *, dry_run: bool = False
    ) -> tuple[KeyView, str]:
        limits = pick_settings(fields, KEY)
        rights = read_rights(fields)
        return api_keys.create(
            name=fields["name"],
            rights=rights,
            settings=limits,
            actor=self.actor,
            dry_run=dry_run,
        )

    def respond(self, message: Text) -> HttpResponse:
        """Show the key. It is in no cookie and no session, so no other page can show it."""
        return pages.render_page(
            self.request,
            "system/new_key",
            str(message),
            section="keys",
            secret=self.secret,
            back=self.back(),
        )


@with_settings(KEY)
class KeyLimitsForm(EditFields):
    """Send limits of an existing key."""


class LimitKey(Edit, KeyAction):
    form_class = KeyLimitsForm
    title = lazy("Limits of key %(name)s")

    def stored_settings(self) -> dict[str, Any]:
        return read_settings(KEY, api_keys.find_key(name=self.name, actor=self.actor))

    def save(self, changed: dict[str, Any]) -> None:
        api_keys.update(name=self.name, settings=changed, actor=self.actor)

    def saved_message(self) -> Text:
        return _("The limits of key %s were changed.") % self.name


class DeleteKey(Delete, KeyAction):
    button = lazy("Revoke")
    title = lazy("Revoke key %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        view = api_keys.find_key(name=self.name, actor=self.actor)
        sentence = _(
            "Requests with this key will be refused within a second. Its rights: %s"
        )
        return Preview(effects=[sentence % describe_rights(view.rights)])

    def run(self, fields: dict[str, Any]) -> Text:
        api_keys.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Key %s was revoked.") % self.name
