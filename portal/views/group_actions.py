"""What can be done to groups and their subscriptions."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import resets, subscriptions
from messagestore.resets import Move, Target
from metadata import groups, rebalance
from metadata import subscriptions as subscription_rows
from metadata.errors import Code, Conflict
from portal.actions import Action, NoFields, Preview
from portal.fields import PeopleFields, changes, given
from portal.pages import to
from portal.tables import Column, Empty, Text, badge, number, plain, text
from portal.views.topic_actions import Confirm

SETTINGS = ("session_timeout_ms", "max_active_members", "allow_addresses", "deny_addresses")


class GroupSettings(PeopleFields):
    """Settings of a group."""

    field_order: ClassVar[tuple[str, ...]] = SETTINGS

    session_timeout_ms = forms.IntegerField(
        label=lazy("Session timeout, ms"),
        min_value=2_000,
        max_value=300_000,
        initial=15_000,
        help_text=lazy("A member that is silent for longer loses its queues."),
    )
    max_active_members = forms.IntegerField(
        label=lazy("Most active members"), required=False, min_value=1, help_text=lazy("Empty: no limit.")
    )
    allow_addresses = forms.CharField(
        label=lazy("Allowed addresses"),
        required=False,
        max_length=2000,
        help_text=lazy("Addresses or networks such as 10.0.0.0/8, separated by commas; empty: all."),
    )
    deny_addresses = forms.CharField(label=lazy("Refused addresses"), required=False, max_length=2000)


class NewGroup(GroupSettings):
    """A group to be made."""

    name = forms.CharField(label=lazy("Name"), max_length=100, help_text=lazy("Letters, digits, . _ -"))
    mode = forms.ChoiceField(
        label=lazy("Mode"),
        choices=(
            ("clustering", lazy("clustering: members share the queues")),
            ("broadcasting", lazy("broadcasting: every instance reads all")),
        ),
    )
    field_order: ClassVar[tuple[str, ...]] = ("name", "mode", *SETTINGS)


class Subscribing(forms.Form):
    """A topic to read."""

    topic = forms.CharField(label=lazy("Topic"), max_length=100)
    start = forms.ChoiceField(
        label=lazy("From"),
        choices=(("earliest", lazy("the earliest message")), ("latest", lazy("what comes from now on"))),
    )


class SubscriptionSettings(forms.Form):
    """Which of a subscription is read."""

    stopped = forms.BooleanField(label=lazy("Stop reading this topic"), required=False)
    stopped_queues = forms.CharField(
        label=lazy("Queues not to read"), required=False, help_text=lazy("Ids, separated by commas.")
    )

    def clean_stopped_queues(self) -> list[int]:
        """The ids. Raises ValidationError."""
        words = self.cleaned_data["stopped_queues"].replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise forms.ValidationError(_("Give ids of queues, separated by commas."))
        return sorted({int(word) for word in words})


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
        """What would be made."""
        return Preview(
            effects=[_("Group %s is made. It reads nothing until it subscribes.") % fields["name"]]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Makes it."""
        settings = given(fields, without=("name", "mode"))
        groups.create(name=fields["name"], mode=fields["mode"], settings=settings, actor=self.actor)
        return _("Group %s is ready.") % str(fields["name"])


class ChangeGroup(GroupAction):
    """Changes settings."""

    form_class = GroupSettings

    def heading(self) -> Text:
        """The page's title."""
        return _("Settings of %s") % self.name

    def initial(self) -> dict[str, Any]:
        """The settings as they are."""
        view = groups.describe(name=self.name, actor=self.actor)
        return {field: getattr(view, field) for field in GroupSettings.base_fields}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What changes."""
        return changes(GroupSettings, self.initial(), given(fields))

    def run(self, fields: dict[str, Any]) -> Text:
        """Changes them."""
        groups.update(name=self.name, settings=given(fields), actor=self.actor)
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
        """Whom it reaches."""
        view = groups.describe(name=self.name, actor=self.actor)
        what = _("%(members)d members get no more messages of %(topics)d topics. Positions stay as they are.")
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
        """Whom it reaches."""
        view = groups.describe(name=self.name, actor=self.actor)
        return Preview(effects=[_("%d members go on where they were.") % len(view.members)])


class RebalanceGroup(GroupAction):
    """Shares the queues anew."""

    button = lazy("Rebalance")

    def heading(self) -> Text:
        """The page's title."""
        return _("Rebalance %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Which queue would go from whom to whom."""
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


class DeleteGroup(GroupAction):
    """Deletes a group."""

    form_class = Confirm
    danger = True

    def heading(self) -> Text:
        """The page's title."""
        return _("Delete %s") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What would be forgotten."""
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


class Subscribe(GroupAction):
    """Lets a group read a topic."""

    form_class = Subscribing

    def heading(self) -> Text:
        """The page's title."""
        return _("Let %s read a topic") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Where it begins."""
        late = fields["start"] == "latest"
        where = _("what comes from now on") if late else _("the earliest message that is kept")
        what = _("Group %(group)s reads %(topic)s, beginning with %(where)s.")
        return Preview(effects=[what % {"group": self.name, "topic": fields["topic"], "where": where}])

    def run(self, fields: dict[str, Any]) -> Text:
        """Subscribes it."""
        subscriptions.create(group=self.name, topic=fields["topic"], start=fields["start"], actor=self.actor)
        return _("Group %(group)s reads %(topic)s.") % {"group": self.name, "topic": fields["topic"]}


class ChangeSubscription(GroupAction):
    """Stops or starts reading of one topic, or of some of its queues."""

    form_class = SubscriptionSettings

    def heading(self) -> Text:
        """The page's title."""
        return _("%(group)s reading %(topic)s") % {"group": self.name, "topic": self.word("topic")}

    def initial(self) -> dict[str, Any]:
        """As it is."""
        view = subscription_rows.named(group=self.name, topic=self.word("topic"), actor=self.actor)
        return {"stopped": view.stopped, "stopped_queues": ", ".join(map(str, view.stopped_queues))}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What changes."""
        listed = {**fields, "stopped_queues": ", ".join(map(str, fields["stopped_queues"]))}
        return changes(SubscriptionSettings, self.initial(), listed)

    def run(self, fields: dict[str, Any]) -> Text:
        """Changes it."""
        topic = self.word("topic")
        subscription_rows.update(group=self.name, topic=topic, settings=given(fields), actor=self.actor)
        return _("What %(group)s reads of %(topic)s was changed.") % {"group": self.name, "topic": topic}


class Unsubscribe(GroupAction):
    """Ends a subscription."""

    form_class = NoFields
    danger = True
    button = lazy("Unsubscribe")

    def heading(self) -> Text:
        """The page's title."""
        return _("%(group)s reads %(topic)s no more") % {"group": self.name, "topic": self.word("topic")}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What would be forgotten."""
        return Preview(effects=[_("The positions of the group in this topic are forgotten for good.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Ends it."""
        topic = self.word("topic")
        subscriptions.delete(group=self.name, topic=topic, actor=self.actor)
        return _("Group %(group)s reads %(topic)s no more.") % {"group": self.name, "topic": topic}
