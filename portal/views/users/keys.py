"""API keys: who may call the API. The secret is shown once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.db import access
from metadata.db.paging import Window
from metadata.listing.pages import page_of
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import KEY
from metadata.users import api_keys
from metadata.users.api_keys import KeyView
from portal.actions.action import Action, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import given
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link, to
from portal.kit.setting_fields import with_settings
from portal.kit.tables import Column, Columns, Empty, Text, code, listed, text, wanted, when

MOST = 1000
MEANING: dict[str, Text] = {
    "produce": lazy("Send to topics"),
    "consume": lazy("Read with groups, from topics"),
    "browse": lazy("Read messages without a group"),
    "manage": lazy("Create, change and delete topics and groups"),
    "admin": lazy("Everything, nodes and keys too"),
}


def keys_list(request: HttpRequest) -> HttpResponse:
    access.require(actor(request), "admin", "*", what="key")
    window = Window(search=wanted(request).search, limit=MOST)
    found = api_keys.list_keys(window=window, actor=actor(request)).items
    columns: Columns[KeyView] = [
        Column(_("API key"), lambda one: code(one.name)),
        Column(_("Rights"), lambda one: text(in_words(one.rights))),
        Column(_("Limits"), lambda one: text(_limits(one))),
        Column(_("Created"), lambda one: when(one.created_at_ms)),
        Column(_("Change"), lambda one: text(_("limits"), to("key-limits", one.name))),
        Column(_("Revoke"), lambda one: text(_("revoke"), to("key-delete", one.name))),
    ]
    hint = Empty(_("No matching keys"), "python manage.py create_api_key --help")
    table = listed(request, columns, page_of(found, query=wanted(request)), empty=hint)
    actions = [Link(_("Create a key"), to("key-create"))]
    return pages.list_page(request, _("API keys"), table, section="keys", actions=actions)


def _limits(one: KeyView) -> str | None:
    found = []
    if one.max_messages_per_s is not None:
        found.append(_("%d messages a second") % one.max_messages_per_s)
    if one.max_bytes_per_s is not None:
        found.append(_("%d bytes a second") % one.max_bytes_per_s)
    return ", ".join(found) or None


def in_words(rights: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{right} {', '.join(patterns)}" for right, patterns in rights.items())


class RightsFields(forms.Form):
    """One line of patterns for each right."""

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


def rights_of(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """The rights that a form gives."""
    found = {
        right: str(fields.get(right) or "").replace(",", " ").split()
        for right in access.RIGHTS
    }
    return {right: patterns for right, patterns in found.items() if patterns}


@with_settings(KEY)
class NewKey(RightsFields):
    name = forms.CharField(label=lazy("Name"), max_length=100)
    field_order = ("name",)


class KeyAction(Action):
    right = "admin"
    what = "key"
    section = "keys"
    everywhere = True
    back_to = ("keys",)


class CreateKey(KeyAction):
    """Makes a key, and shows it this once."""

    form_class = NewKey
    title = lazy("Create a key")

    def preview(self, fields: dict[str, Any]) -> Preview:
        view, _secret = self._create(fields, dry_run=True)
        effects = [
            f"{MEANING[right]}: {', '.join(patterns)}"
            for right, patterns in view.rights.items()
        ]
        return Preview(effects=[*effects, _("The key is shown once, on the next page.")])

    def run(self, fields: dict[str, Any]) -> Text:
        view, self.secret = self._create(fields)
        return _("Key %s was created.") % view.name

    def _create(
        self, fields: dict[str, Any], *, dry_run: bool = False
    ) -> tuple[KeyView, str]:
        limits = given(fields, KEY)
        rights = rights_of(fields)
        return api_keys.create(
            name=fields["name"],
            rights=rights,
            settings=limits,
            actor=self.actor,
            dry_run=dry_run,
        )

    def done(self, said: Text) -> HttpResponse:
        """The one page that shows the secret: it is in no cookie and no session."""
        return pages.show(
            self.request,
            "system/new_key",
            str(said),
            section="keys",
            secret=self.secret,
            back=self.back(),
        )


@with_settings(KEY)
class KeyLimits(EditFields):
    """Send limits of a key that exists."""


class LimitKey(Edit, KeyAction):
    form_class = KeyLimits
    title = lazy("Limits of key %(name)s")

    def now(self) -> dict[str, Any]:
        return read_settings(KEY, api_keys.find_key(name=self.name, actor=self.actor))

    def save(self, changed: dict[str, Any]) -> None:
        api_keys.update(name=self.name, settings=changed, actor=self.actor)

    def saved(self) -> Text:
        return _("The limits of key %s were changed.") % self.name


class DeleteKey(Delete, KeyAction):
    button = lazy("Revoke")
    title = lazy("Revoke key %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        view = api_keys.find_key(name=self.name, actor=self.actor)
        what = _("Requests with this key will be refused within a second. Its rights: %s")
        return Preview(effects=[what % in_words(view.rights)])

    def run(self, fields: dict[str, Any]) -> Text:
        api_keys.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Key %s was revoked.") % self.name
