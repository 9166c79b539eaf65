"""Actions on groups: create, change, pause, resume, rebalance, delete."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from metadata.cache import snapshot
from metadata.groups import groups
from metadata.membership import rebalance
from metadata.membership.rebalance import Move
from metadata.rules.groups.states import GroupMode
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import GROUP, LIMITS, SHARE
from portal.actions.action import Action, Create, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import pick_settings, shown_only_for
from portal.kit import cells
from portal.kit.setting_fields import with_settings
from portal.kit.tables import Column, Columns, EmptyHint, Text, badge, simple_table, text

# Pausing has an action of its own.
PAUSE_SETTING = ("stopped",)


@with_settings(GROUP, without=PAUSE_SETTING)
class NewGroupForm(forms.Form):
    name = forms.CharField(
        label=lazy("Name"), max_length=100, help_text=lazy("Letters, digits, . _ -")
    )
    mode = forms.ChoiceField(
        label=lazy("Mode"),
        choices=(
            (GroupMode.CLUSTERING, lazy("clustering: members share the queues")),
            (GroupMode.BROADCASTING, lazy("broadcasting: every instance reads all")),
            (
                GroupMode.SHARE,
                lazy(
                    "share: members lease messages; there may be more members than queues"
                ),
            ),
        ),
    )


# Without scripts the form shows the settings of all modes.
for _name in SHARE:
    shown_only_for(NewGroupForm.base_fields[_name], "mode", "share")
for _name in LIMITS:
    shown_only_for(NewGroupForm.base_fields[_name], "mode", "share", negate=True)


@with_settings(GROUP, without=[*PAUSE_SETTING, *SHARE])
class EditGroupForm(EditFields):
    """Settings of an existing group whose members own queues."""


@with_settings(GROUP, without=[*PAUSE_SETTING, *LIMITS])
class EditShareGroupForm(EditFields):
    """Settings of an existing share group. Its members own no queues, so nothing limits who
    may own them.
    """


class GroupAction(Action):
    object_kind = "group"
    section = "groups"
    back_to = ("group", "name")


class CreateGroup(Create):
    form_class = NewGroupForm
    object_kind = "group"
    section = "groups"
    title = lazy("Create a group")
    back_to = ("groups",)

    def describe_effect(self, fields: dict[str, Any]) -> Text:
        return _(
            "Group %s will be created. It receives no messages until it subscribes to a topic."
        ) % str(fields["name"])

    def run(self, fields: dict[str, Any]) -> Text:
        settings = pick_settings(fields, GROUP)
        groups.create(
            name=fields["name"], mode=fields["mode"], settings=settings, actor=self.actor
        )
        return _("Group %s is ready.") % str(fields["name"])


class ChangeGroup(Edit, GroupAction):
    form_class: type[forms.Form] = EditGroupForm
    title = lazy("Settings of %(name)s")

    def setup(self, request: HttpRequest, *args: Any, **arguments: Any) -> None:
        """Choose the form with the settings that apply to the mode of the group."""
        super().setup(request, *args, **arguments)
        group = snapshot.current().group(self.name)
        if group is not None and group.is_share:
            self.form_class = EditShareGroupForm

    def stored_settings(self) -> dict[str, Any]:
        view = groups.describe(name=self.name, actor=self.actor)
        # Settings without a field are left out, such as the pause.
        return pick_settings(read_settings(GROUP, view), self.form_class.base_fields)

    def save(self, changed: dict[str, Any]) -> None:
        groups.update(name=self.name, settings=changed, actor=self.actor)


class StopGroup(GroupAction):
    danger = True
    # StartGroup sets it to False.
    stopped = True
    button = lazy("Pause")
    title = lazy("Pause %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        view = groups.describe(name=self.name, actor=self.actor)
        topics, members = len(view.subscriptions), len(view.members)
        delivery_effect = ngettext(
            "%d topic will not be delivered.", "%d topics will not be delivered.", topics
        )
        member_effect = (
            ngettext("%d member will wait.", "%d members will wait.", members) % members
        )
        return Preview(
            effects=[delivery_effect % topics, member_effect, _("Offsets are kept.")]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        groups.update(name=self.name, settings={"stopped": self.stopped}, actor=self.actor)
        return (
            _("Group %s is paused.") if self.stopped else _("Group %s is resumed.")
        ) % self.name


class StartGroup(StopGroup):
    danger = False
    stopped = False
    button = lazy("Resume")
    title = lazy("Resume %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        view = groups.describe(name=self.name, actor=self.actor)
        members = len(view.members)
        sentence = ngettext(
            "%d member will continue at its offsets.",
            "%d members will continue at their offsets.",
            members,
        )
        return Preview(effects=[sentence % members])


class RebalanceGroup(GroupAction):
    button = lazy("Rebalance")
    title = lazy("Rebalance %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        # A dry run computes the moves and rolls them back.
        plan = rebalance.rebalance_by_hand(group=self.name, actor=self.actor, dry_run=True)
        columns: Columns[Move] = [
            Column(_("Queue"), lambda row: cells.queue(row.queue)),
            Column(_("From"), lambda row: text(row.source or _("nobody"))),
            Column(_("To"), lambda row: text(row.target or _("nobody"))),
            Column(
                _("When"),
                lambda row: badge(
                    _("at once") if row.at_once else _("when its owner releases it")
                ),
            ),
        ]
        move_count = len(plan.moves)
        if not move_count:
            return Preview(effects=[_("No moves: the assignment is balanced.")])
        sentence = (
            ngettext("%d queue will move.", "%d queues will move.", move_count) % move_count
        )
        return Preview(
            effects=[sentence], table=simple_table(columns, plan.moves, EmptyHint(""))
        )

    def run(self, fields: dict[str, Any]) -> Text:
        plan = rebalance.rebalance_by_hand(group=self.name, actor=self.actor)
        return _("%(count)d queues of %(name)s move.") % {
            "count": len(plan.moves),
            "name": self.name,
        }


class DeleteGroup(Delete, GroupAction):
    title = lazy("Delete %(name)s")
    page_after = "groups"

    def preview(self, fields: dict[str, Any]) -> Preview:
        view = groups.describe(name=self.name, actor=self.actor)
        sentence = _("Group %(name)s and its offsets in %(topics)d topics will be deleted.")
        return Preview(
            effects=[sentence % {"name": self.name, "topics": len(view.subscriptions)}]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        groups.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Group %s was deleted.") % self.name
