"""Moving the offsets of a group, with a preview."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import resets
from messagestore.resets import Move, Target
from metadata import groups
from metadata.errors import Code, Conflict
from portal.actions import Preview
from portal.tables import Column, Empty, Text, number, plain, text
from portal.views.group_actions import GroupAction


class Resetting(forms.Form):
    """Where to move a group's offsets."""

    topic = forms.CharField(label=lazy("Topic"), max_length=210)
    to = forms.ChoiceField(
        label=lazy("To"),
        choices=(
            ("earliest", lazy("the earliest message")),
            ("latest", lazy("the end: skip everything")),
            ("offset", lazy("an offset")),
            ("time", lazy("a point in time")),
        ),
    )
    offset = forms.IntegerField(label=lazy("Offset"), required=False, min_value=0)
    minutes_ago = forms.IntegerField(
        label=lazy("Minutes ago"), required=False, min_value=0, help_text=lazy("For a point in time.")
    )
    queues = forms.CharField(
        label=lazy("Only these queues"),
        required=False,
        help_text=lazy("Ids, separated by commas; empty: all."),
    )
    instance = forms.CharField(
        label=lazy("Instance"), required=False, help_text=lazy("Only for broadcasting groups.")
    )

    def clean_queues(self) -> list[int] | None:
        """The ids, None for all. Raises ValidationError."""
        words = self.cleaned_data["queues"].replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise forms.ValidationError(_("Give ids of queues, separated by commas."))
        return [int(word) for word in words] or None


class ResetGroup(GroupAction):
    """Moves offsets."""

    form_class = Resetting
    danger = True
    button = lazy("Move the offsets")

    def heading(self) -> Text:
        """The page's title."""
        return _("Reset offsets of %s") % self.name

    def initial(self) -> dict[str, Any]:
        """The first topic, if none is named."""
        view = groups.describe(name=self.name, actor=self.actor)
        first = next((one.topic for one in view.subscriptions), "")
        return {"topic": first, "to": "earliest", **super().initial()}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """From where to where each queue moves."""
        moves = self._do(fields, dry_run=True)
        columns = (
            Column(_("Queue")), Column(_("Now"), right=True), Column(_("Then"), right=True),
            Column(_("Repeated"), right=True), Column(_("Skipped"), right=True),
        )  # fmt: skip
        listed = [
            (text(one.queue), number(one.from_offset), number(one.to_offset),
             number(max(0, one.from_offset - one.to_offset)), number(max(0, one.to_offset - one.from_offset)))
            for one in moves
        ]  # fmt: skip
        return Preview(effects=self._effects(moves), table=plain(columns, listed, Empty(_("No queues."))))

    def _effects(self, moves: list[Move]) -> list[Text]:
        repeated = sum(max(0, one.from_offset - one.to_offset) for one in moves)
        skipped = sum(max(0, one.to_offset - one.from_offset) for one in moves)
        what = _("%(repeated)d messages are read again, %(skipped)d are skipped.")
        effects: list[Text] = [what % {"repeated": repeated, "skipped": skipped}]
        if not groups.describe(name=self.name, actor=self.actor).stopped:
            effects.append(_("The group is running: stop it first, then move its offsets."))
        return effects

    def run(self, fields: dict[str, Any]) -> Text:
        """Moves them."""
        if not groups.describe(name=self.name, actor=self.actor).stopped:
            raise Conflict(_("The group is running: stop it first."), code=Code.GROUP_RUNNING)
        moves = self._do(fields, dry_run=False)
        before = ", ".join(f"{one.queue}: {one.from_offset}" for one in moves)
        return _("%(count)d offsets were moved. They were at %(before)s.") % {
            "count": len(moves),
            "before": before,
        }

    def _do(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        ago = fields["minutes_ago"]
        at_time = fields["to"] == "time"
        target = Target(
            to=fields["to"],
            offset=fields["offset"] if fields["to"] == "offset" else None,
            ago_ms=None if ago is None or not at_time else ago * 60_000,
        )
        return resets.reset(
            group=self.name, topic=fields["topic"], target=target, queues=fields["queues"],
            instance=fields["instance"] or None, actor=self.actor, dry_run=dry_run,
        )  # fmt: skip
