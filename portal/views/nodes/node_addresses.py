"""Accounts and address of a node, and its recovery: promote a replica, adopt restored data."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes import promotion, promotion_plans, registry
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan
from messagestore.nodes.replica_inspection import Lost
from metadata.nodes import node_rows
from metadata.rules.settings import NODE
from metadata.rules.tls import MAX_PATH
from portal.actions.action import NoFields, Preview
from portal.actions.fields import password_field
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Table,
    Text,
    code,
    number,
    simple_table,
    timestamp,
)
from portal.views.nodes.node_actions import NodeAction, tls_field

# How long a promotion waits for brokers. The browser waits meanwhile.
PROMOTION_PATIENCE_S = 15.0


class AccountForm(forms.Form):
    username = forms.CharField(label=lazy("Account"), max_length=200)
    password = password_field(lazy("Password"))


class SetAccount(NodeAction):
    form_class = AccountForm
    title = lazy("Account of %(name)s")

    def initial(self) -> dict[str, Any]:
        return {
            "username": node_rows.find_node(name=self.name, actor=self.actor).username,
            **super().initial(),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        # Connects with the new account and checks its rights.
        registry.set_account(name=self.name, **fields, actor=self.actor, dry_run=True)
        old_username = node_rows.find_node(name=self.name, actor=self.actor).username
        values = {"before": old_username, "after": fields["username"]}
        test_result = _(
            "The account was tested. It can connect and has all necessary rights."
        )
        effect = _("Within a second, brokers use %(after)s instead of %(before)s.")
        return Preview(effects=[test_result, effect % values])

    def run(self, fields: dict[str, Any]) -> Text:
        registry.set_account(name=self.name, **fields, actor=self.actor)
        return _("Brokers now connect to node %(node)s as %(account)s.") % {
            "node": self.name,
            "account": fields["username"],
        }


class ReaderForm(forms.Form):
    """Account that can only read. Empty: no account."""

    username = forms.CharField(
        label=lazy("Account"),
        required=False,
        max_length=200,
        help_text=lazy(
            "Jobs read the node with this account. It needs the right SELECT on the node's "
            "database. Empty: no account."
        ),
    )
    password = password_field(lazy("Password"), required=False)


class SetReader(NodeAction):
    form_class = ReaderForm
    title = lazy("Reader account of %(name)s")

    def initial(self) -> dict[str, Any]:
        view = node_rows.find_node(name=self.name, actor=self.actor)
        return {"username": view.reader_username, **super().initial()}

    def preview(self, fields: dict[str, Any]) -> Preview:
        # Tests the new account, unless it is removed.
        registry.set_reader(name=self.name, **fields, actor=self.actor, dry_run=True)
        if not fields["username"]:
            return Preview(
                effects=[
                    _(
                        "Jobs will no longer be able to read this node without an account "
                        "of their own."
                    )
                ]
            )
        return Preview(
            effects=[
                _("The account was tested. Jobs can read the node with %s.")
                % fields["username"]
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        registry.set_reader(name=self.name, **fields, actor=self.actor)
        return _("The reader account of %s was changed.") % self.name


class PromoteForm(forms.Form):
    """Address of the replica that becomes the primary."""

    host = forms.CharField(label=lazy("Host"), required=False, max_length=255)
    port = forms.IntegerField(
        label=lazy("Port"), required=False, min_value=1, max_value=65_535
    )
    tls = tls_field(lazy("as now"))
    tls_ca = forms.CharField(
        label=lazy(NODE["tls_ca"].label), required=False, max_length=MAX_PATH
    )
    known_dead = forms.BooleanField(
        label=lazy("The old primary is off for good; do not wait for brokers to confirm"),
        required=False,
    )


class PromoteNode(NodeAction):
    form_class = PromoteForm
    danger = True
    button = lazy("Promote it now")
    title = lazy("Promote a replica of %(name)s")

    def initial(self) -> dict[str, Any]:
        view = node_rows.find_node(name=self.name, actor=self.actor)
        return {"host": view.replica_host, "port": view.replica_port, **super().initial()}

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = promotion_plans.promote(
            name=self.name, actor=self.actor, **_new_address(fields)
        )
        note = _(
            "This request may take a minute. If it fails, the node stays offline. Then repeat it."
        )
        return Preview(
            effects=[*_describe_plan(plan), *_describe_fence(plan, fields), note],
            table=_lost_messages_table(plan),
        )

    def run(self, fields: dict[str, Any]) -> Text:
        arguments = {
            **_new_address(fields),
            "known_dead": fields["known_dead"],
            "patience_s": PROMOTION_PATIENCE_S,
        }
        return _describe_outcome(
            promotion.promote(name=self.name, **arguments, actor=self.actor)
        )


def _new_address(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the new address and its encryption. None keeps the current value."""
    encryption = {name: fields[name] or None for name in ("tls", "tls_ca")}
    return {"host": fields["host"], "port": fields["port"], **encryption}


class AdoptNode(NodeAction):
    """Continues with the database that is at a node's address now."""

    form_class = NoFields
    danger = True
    button = lazy("Adopt this database")
    title = lazy("Adopt restored data at %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = promotion_plans.adopt(name=self.name, actor=self.actor)
        purpose = _(
            "For a restored backup, a replica that took over the address, or an empty database."
        )
        return Preview(
            effects=[purpose, *_describe_plan(plan)], table=_lost_messages_table(plan)
        )

    def run(self, fields: dict[str, Any]) -> Text:
        return _describe_outcome(promotion.adopt(name=self.name, actor=self.actor))


def _describe_plan(plan: Plan) -> list[Text]:
    """Describe the new address and the messages that would be lost."""
    sentences: list[Text] = [
        _("The address of the node will be %s, with a new epoch.") % plan.target
    ]
    # Without that state, a lagging replica looks like a complete replica.
    if plan.copies is None:
        sentences.append(
            _(
                "The replication state of the new primary is unknown, because its account "
                "lacks the "
                "right PROCESS."
            )
        )
    if plan.delayed:
        sentences.append(
            _("Up to %d delayed messages and retries would be lost.") % plan.delayed
        )
    if not plan.gaps:
        return [*sentences, _("At present, no messages would be lost.")]
    figures = {"gaps": plan.gaps, "queues": plan.queues, "messages": plan.messages}
    loss = _(
        "At present, %(gaps)d of %(queues)d queues would get a gap, and at least %(messages)d "
        "messages would be lost. Consumers are notified when they reach a gap."
    )
    return [*sentences, loss % figures]


def _describe_fence(plan: Plan, fields: dict[str, Any]) -> list[Text]:
    """Describe how the old primary is kept from accepting writes."""
    # A primary that answers can be closed, so nothing it stored is lost.
    if plan.primary_answers:
        return [
            _(
                "The old primary answers. It is closed first, and its last messages are copied."
            )
        ]
    if fields["known_dead"]:
        return [
            _(
                "The old primary does not answer. Brokers are not asked whether they still "
                "write to it."
            )
        ]
    sentence = _(
        "The old primary does not answer. First %d broker processes must confirm that they "
        "no longer use it."
    )
    return [sentence % plan.brokers]


def _lost_messages_table(plan: Plan) -> Table | None:
    """Return a table of the missing messages that groups have not read, None if nothing is
    missing.
    """
    if not plan.lost:
        return None
    columns: Columns[Lost] = [
        Column(_("Group"), lambda row: code(row.group)),
        Column(_("Topic"), lambda row: code(row.topic)),
        Column(_("Queue"), lambda row: number(row.queue), right=True),
        Column(_("Messages"), lambda row: number(row.messages), right=True),
        Column(_("As of"), lambda row: timestamp(row.as_of_ms)),
    ]
    return simple_table(columns, plan.lost, EmptyHint(_("Nothing.")))


def _describe_outcome(outcome: Outcome) -> Text:
    """Describe what happened to a node and its messages."""
    values = {
        "node": outcome.node,
        "epoch": outcome.epoch,
        "gaps": outcome.gaps,
        "messages": outcome.messages,
    }
    if not outcome.gaps:
        return (
            _("Node %(node)s is in service with epoch %(epoch)d. No messages were lost.")
            % values
        )
    sentence = _(
        "Node %(node)s is in service with epoch %(epoch)d. %(gaps)d queues have a gap, and at "
        "least %(messages)d messages are lost."
    )
    return sentence % values
