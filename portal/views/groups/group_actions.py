"""Actions on groups."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.db import access
from metadata.groups import groups
from metadata.membership import rebalance
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import GROUP
from portal.actions.action import Action, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import given
from portal.kit.pages import to
from portal.kit.setting_fields import with_settings
from portal.kit.tables import Column, Empty, Text, badge, plain, text
from portal.views.topics.topic_actions import Confirm

PAUSED = ("stopped",)  # by an action of its own


@with_settings(GROUP, without=PAUSED)
class NewGroup(forms.Form):
    """A group to be made."""

    name = forms.CharField(label=lazy("Name"), max_length=100, help_text=lazy("Letters, digits, . _ -"))
    mode = forms.ChoiceField(
        label=lazy("Mode"),
        choices=(
            ("clustering", lazy("clustering: members share the queues")),
            ("broadcasting", lazy("broadcasting: every instance reads all")),
        ),
    )


@with_settings(GROUP, without=PAUSED)
class EditGroup(EditFields):
    """Settings of a group that exists."""


class GroupAction(Action):
    """Something done to one group."""

    what = "group"
    section = "groups"

    @property
    def name(self) -> str:
        """The group's name."""
        return self.word("name")

    def back(self) -> str:
        """The group's page."""
        return to("group", self.name)


class CreateGroup(Action):
    """Makes a group."""

    form_class = NewGroup
    what = "group"
    section = "groups"

    def target(self) -> str:
        """The name that was typed; without one, whoever may manage anything may open the form."""
        rights = self.actor.rights
        patterns = (*rights.get("manage", ()), *rights.get("admin", ()))
        return self.request.POST.get("name", "").strip() or next(iter(patterns), "*")

    def heading(self) -> Text:
        """The page's title."""
        return _("Create a group")

    def back(self) -> str:
        """The list."""
        return to("groups")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the group that would be made."""
        if fields["owners"]:
            access.require_ownership(self.actor, fields["name"], what="group")
        return Preview(
            effects=[_("Group %s is made. It reads nothing until it subscribes.") % fields["name"]]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Makes it."""
        settings = given(fields, GROUP)
        groups.create(name=fields["name"], mode=fields["mode"], settings=settings, actor=self.actor)
        return _("Group %s is ready.") % str(fields["name"])


class ChangeGroup(Edit, GroupAction):
    """Changes settings."""

    form_class = EditGroup

    def heading(self) -> Text:
        """The page's title."""
        return _("Settings of %s") % self.name

    def now(self) -> dict[str, Any]:
        """The settings as they are."""
        view = groups.describe(name=self.name, actor=self.actor)
        return given(read_settings(GROUP, view), EditGroup.base_fields)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the changes. Raises Forbidden for other owners unless the actor may do all they get."""
        if "owners" in self._merge(fields).changed:
            access.require_ownership(self.actor, self.name, what="group")
        return super().preview(fields)

    def save(self, changed: dict[str, Any]) -> Text:
        """Changes them."""
        groups.update(name=self.name, settings=changed, actor=self.actor)
        return _("The settings of %s were changed.") % self.name


class StopGroup(GroupAction):
    """Stops reading."""

    danger = True
    stopped = True
    button = lazy("Stop")

    def heading(self) -> Text:
        """The page's title."""
        return _("Stop %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Count the members and topics it stops."""
        view = groups.describe(name=self.name, actor=self.actor)
        what = _(
            "Nothing is pulled any more: members %(members)d, topics %(topics)d. Positions stay as they are."
        )
        return Preview(effects=[what % {"members": len(view.members), "topics": len(view.subscriptions)}])

    def run(self, fields: dict[str, Any]) -> Text:
        """Stops or starts it."""
        groups.update(name=self.name, settings={"stopped": self.stopped}, actor=self.actor)
        return (_("Group %s was stopped.") if self.stopped else _("Group %s was started.")) % self.name


class StartGroup(StopGroup):
    """Goes on reading."""

    danger = False
    stopped = False
    button = lazy("Start")

    def heading(self) -> Text:
        """The page's title."""
        return _("Start %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Count the members that go on."""
        view = groups.describe(name=self.name, actor=self.actor)
        return Preview(effects=[_("%d members go on where they were.") % len(view.members)])


class RebalanceGroup(GroupAction):
    """Shares the queues anew."""

    button = lazy("Rebalance")

    def heading(self) -> Text:
        """The page's title."""
        return _("Rebalance %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """List the queues that would move, from whom to whom."""
        plan = rebalance.ask(group=self.name, actor=self.actor, dry_run=True)
        columns = (
            Column(_("Topic")),
            Column(_("Queue")),
            Column(_("From")),
            Column(_("To")),
            Column(_("When")),
        )
        listed = [
            (text(move.topic), text(move.queue), text(move.source or _("nobody")),
             text(move.target or _("nobody")),
             badge(_("at once") if move.at_once else _("when its owner let go")))
            for move in plan.moves
        ]  # fmt: skip
        table = plain(columns, listed, Empty(_("Nothing moves: the queues are shared evenly.")))
        return Preview(effects=[_("%d queues move.") % len(plan.moves)], table=table)

    def run(self, fields: dict[str, Any]) -> Text:
        """Does it."""
        done = rebalance.ask(group=self.name, actor=self.actor)
        return _("%(count)d queues of %(name)s move.") % {"count": len(done.moves), "name": self.name}


class DeleteGroup(GroupAction):
    """Deletes a group."""

    form_class = Confirm
    danger = True

    def heading(self) -> Text:
        """The page's title."""
        return _("Delete %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the group and positions that would be forgotten."""
        view = groups.describe(name=self.name, actor=self.actor)
        what = _("Group %(name)s and its positions in %(topics)d topics are forgotten.")
        return Preview(effects=[what % {"name": self.name, "topics": len(view.subscriptions)}])

    def run(self, fields: dict[str, Any]) -> Text:
        """Deletes it."""
        groups.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Group %s was deleted.") % self.name

    def done(self, said: Text) -> Any:
        """Its page is gone: to the list."""
        self.kwargs = {}
        return super().done(said)

    def back(self) -> str:
        """The group, or once it is gone the list."""
        return to("group", self.name) if self.kwargs else to("groups")
