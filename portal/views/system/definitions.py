"""Export and import of definitions: the document of this installation, and that of another
one.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.topology import imports
from metadata.definitions.exports import export
from metadata.definitions.plans import Plan, Step
from portal.actions.action import Create, Preview
from portal.auth.access import actor
from portal.kit.tables import Column, Columns, Empty, Text, badge, code, plain, text

OUTCOMES: dict[str, tuple[Text, str]] = {
    "create": (lazy("create"), "ok"),
    "change": (lazy("change settings"), "warn"),
    "same": (lazy("exists"), ""),
    "keep": (lazy("keep, differs"), "warn"),
    "conflict": (lazy("conflict"), "bad"),
    "unfinished": (lazy("unfinished"), "bad"),
}
KINDS: dict[str, Text] = {
    "topic": lazy("topic"),
    "group": lazy("group"),
    "subscription": lazy("subscription"),
}


def download(request: HttpRequest) -> HttpResponse:
    """Return the document as a file; `?topic=` is a pattern."""
    document = export(topic=request.GET.get("topic", ""), actor=actor(request))
    answer = HttpResponse(
        json.dumps(document, ensure_ascii=False, indent=2), content_type="application/json"
    )
    answer["Content-Disposition"] = 'attachment; filename="definitions.json"'
    return answer


class DocumentField(forms.CharField):
    """A JSON document. Raises ValidationError."""

    widget = forms.Textarea

    def clean(self, value: Any) -> Any:
        try:
            return json.loads(super().clean(value))
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %s") % error) from None


class Importing(forms.Form):
    """The document, and the rule for what exists."""

    document = DocumentField(
        label=lazy("Document"),
        widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false"}),
        help_text=lazy("The JSON of an export. Paste it here."),
    )
    existing = forms.ChoiceField(
        label=lazy("What exists with other settings"),
        choices=[
            ("refuse", lazy("refuse the import")),
            ("keep", lazy("keep its settings")),
            ("change", lazy("change its settings")),
        ],
    )


class Import(Create):
    """Makes what a document defines; each entry has its row in the audit log."""

    form_class = Importing
    title = lazy("Import topics and groups")
    back_to = ("topics",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = self._do(fields, dry_run=True)
        blocked = bool(plan.steps_with("conflict", "unfinished"))
        effects: list[Text] = [_summary(plan)]
        if blocked:
            effects.append(
                _("The import is refused while there are conflicts. Nothing was done.")
            )
        columns: Columns[Step] = [
            Column(_("Place"), lambda one: code(one.entry.place)),
            Column(_("Kind"), lambda one: text(KINDS[one.entry.kind])),
            Column(_("Name"), lambda one: text(one.entry.name)),
            Column(_("Result"), lambda one: badge(*OUTCOMES[one.outcome])),
            Column(_("Here → in the document"), lambda one: text(_differences(one))),
            Column(_("Problem"), lambda one: text(one.problem or None)),
        ]
        table = plain(columns, plan.steps, Empty(_("The document is empty.")))
        return Preview(effects=effects, table=table, blocked=blocked)

    def run(self, fields: dict[str, Any]) -> Text:
        plan = self._do(fields, dry_run=False)
        return _("The import is done. %s") % _summary(plan)

    def _do(self, fields: dict[str, Any], *, dry_run: bool) -> Plan:
        return imports.import_definitions(
            document=fields["document"],
            existing=fields["existing"],
            dry_run=dry_run,
            actor=self.actor,
        )


def _summary(plan: Plan) -> str:
    counts: Counter[str] = Counter(one.outcome for one in plan.steps)
    return ", ".join(
        f"{word}: {counts[one]}" for one, (word, _tone) in OUTCOMES.items() if counts[one]
    )


def _differences(step: Step) -> str | None:
    found = (
        f"{one.field}: {_value(one.here)} → {_value(one.there)}" for one in step.differences
    )
    return ", ".join(found) or None


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
