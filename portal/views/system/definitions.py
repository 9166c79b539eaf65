"""Export and import of definitions: topics, groups and subscriptions as a JSON document."""

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
from metadata.rules.definitions import ExistingRule, ImportOutcome
from portal.actions.action import Create, Preview
from portal.auth.access import actor
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Text,
    badge,
    code,
    simple_table,
    text,
)

OUTCOME_LABELS: dict[ImportOutcome, tuple[Text, str]] = {
    ImportOutcome.CREATE: (lazy("create"), "ok"),
    ImportOutcome.CHANGE: (lazy("change settings"), "warn"),
    ImportOutcome.SAME: (lazy("exists"), ""),
    ImportOutcome.KEEP: (lazy("keep, differs"), "warn"),
    ImportOutcome.CONFLICT: (lazy("conflict"), "bad"),
    ImportOutcome.UNFINISHED: (lazy("unfinished"), "bad"),
}
KIND_LABELS: dict[str, Text] = {
    "topic": lazy("topic"),
    "group": lazy("group"),
    "subscription": lazy("subscription"),
}


def download(request: HttpRequest) -> HttpResponse:
    """Return the document as a file. `?topic=` is a pattern."""
    document = export(topic=request.GET.get("topic", ""), actor=actor(request))
    response = HttpResponse(
        json.dumps(document, ensure_ascii=False, indent=2), content_type="application/json"
    )
    response["Content-Disposition"] = 'attachment; filename="definitions.json"'
    return response


class DocumentField(forms.CharField):
    """A JSON document. Raises ValidationError."""

    widget = forms.Textarea

    def clean(self, value: Any) -> Any:
        try:
            # Deeply nested JSON raises RecursionError.
            return json.loads(super().clean(value))
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %s") % error) from None


class ImportForm(forms.Form):
    """The document, and the rule for objects that exist with other settings."""

    document = DocumentField(
        label=lazy("Document"),
        widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false"}),
        help_text=lazy("The JSON of an export. Paste it here."),
    )
    existing = forms.ChoiceField(
        label=lazy("What exists with other settings"),
        choices=[
            (ExistingRule.REFUSE, lazy("refuse the import")),
            (ExistingRule.KEEP, lazy("keep its settings")),
            (ExistingRule.CHANGE, lazy("change its settings")),
        ],
    )


class Import(Create):
    """Creates the objects that a document defines. Each has an audit row."""

    form_class = ImportForm
    title = lazy("Import topics and groups")
    back_to = ("topics",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = self._import(fields, dry_run=True)
        # An import is carried out completely or not at all.
        is_blocked = bool(plan.steps_with(ImportOutcome.CONFLICT, ImportOutcome.UNFINISHED))
        effects: list[Text] = [_count_outcomes(plan)]
        if is_blocked:
            effects.append(
                _("The import is refused while there are conflicts. Nothing was done.")
            )
        columns: Columns[Step] = [
            Column(_("Place"), lambda row: code(row.entry.path)),
            Column(_("Kind"), lambda row: text(KIND_LABELS[row.entry.kind])),
            Column(_("Name"), lambda row: text(row.entry.name)),
            Column(_("Result"), lambda row: badge(*OUTCOME_LABELS[row.outcome])),
            Column(
                _("Here → in the document"),
                lambda row: text(
                    ", ".join(
                        f"{d.field}: {_to_json(d.here)} → {_to_json(d.there)}"
                        for d in row.differences
                    )
                    or None
                ),
            ),
            Column(_("Problem"), lambda row: text(row.problem or None)),
        ]
        table = simple_table(columns, plan.steps, EmptyHint(_("The document is empty.")))
        return Preview(effects=effects, table=table, blocked=is_blocked)

    def run(self, fields: dict[str, Any]) -> Text:
        plan = self._import(fields, dry_run=False)
        return _("The import is done. %s") % _count_outcomes(plan)

    def _import(self, fields: dict[str, Any], *, dry_run: bool) -> Plan:
        return imports.import_definitions(
            document=fields["document"],
            existing=fields["existing"],
            dry_run=dry_run,
            actor=self.actor,
        )


def _count_outcomes(plan: Plan) -> str:
    counts: Counter[ImportOutcome] = Counter(outcome.outcome for outcome in plan.steps)
    return ", ".join(
        f"{label}: {counts[outcome]}"
        for outcome, (label, _tone) in OUTCOME_LABELS.items()
        if counts[outcome]
    )


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
