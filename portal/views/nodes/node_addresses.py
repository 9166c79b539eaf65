"""Address and accounts of a node, and what follows when its database is lost."""

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

PROMOTION_PATIENCE_S = 15.0  # a browser waits meanwhile


class AccountForm(forms.Form):
    username = forms.CharField(label=lazy("Account"), max_length=200)
    password = password_field(lazy("Password"))


class SetAccount(NodeAction):
    form_class = AccountForm
    title = lazy("Account of %(name)s")

    def initial(self) -> dict[str, Any]:
        return {
            "username": node_rows.named(name=self.name, actor=self.actor).username,
            **super().initial(),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        registry.set_account(name=self.name, **fields, actor=self.actor, dry_run=True)
        before = node_rows.named(name=self.name, actor=self.actor).username
        words = {"before": before, "after": fields["username"]}
        tried = _("The account was tested. It can connect and has all necessary rights.")
        said = _("Within a second, brokers use %(after)s instead of %(before)s.")
        return Preview(effects=[tried, said % words])

    def run(self, fields: dict[str, Any]) -> Text:
        registry.set_account(name=self.name, **fields, actor=self.actor)
        return _("Brokers now connect to node %(node)s as %(account)s.") % {
            "node": self.name,
            "account": fields["username"],
        }


class ReaderForm(forms.Form):
    """An account that can only read; empty: there is none."""

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
        view = node_rows.named(name=self.name, actor=self.actor)
        return {"username": view.reader_username, **super().initial()}

    def preview(self, fields: dict[str, Any]) -> Preview:
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
    """Address that a node moves to."""

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
        view = node_rows.named(name=self.name, actor=self.actor)
        return {"host": view.replica_host, "port": view.replica_port, **super().initial()}

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = promotion_plans.promote(name=self.name, actor=self.actor, **_place(fields))
        waits = _(
            "This request may take a minute. If it fails, the node stays offline. Then repeat it."
        )
        return Preview(
            effects=[*_foretold(plan), *_fence(plan, fields), waits], table=_lost(plan)
        )

    def run(self, fields: dict[str, Any]) -> Text:
        given = {
            **_place(fields),
            "known_dead": fields["known_dead"],
            "patience_s": PROMOTION_PATIENCE_S,
        }
        return _told(promotion.promote(name=self.name, **given, actor=self.actor))


def _place(fields: dict[str, Any]) -> dict[str, Any]:
    """The address and the encryption there; None: as now."""
    encryption = {name: fields[name] or None for name in ("tls", "tls_ca")}
    return {"host": fields["host"], "port": fields["port"], **encryption}


class AdoptNode(NodeAction):
    """Goes on with what is at a node's address now."""

    form_class = NoFields
    danger = True
    button = lazy("Adopt this database")
    title = lazy("Adopt restored data at %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        plan = promotion_plans.adopt(name=self.name, actor=self.actor)
        why = _(
            "For a restored backup, a replica that took over the address, or an empty database."
        )
        return Preview(effects=[why, *_foretold(plan)], table=_lost(plan))

    def run(self, fields: dict[str, Any]) -> Text:
        return _told(promotion.adopt(name=self.name, actor=self.actor))


def _foretold(plan: Plan) -> list[Text]:
    """Describe what would become of the messages."""
    said: list[Text] = [
        _("The address of the node will be %s, with a new epoch.") % plan.target
    ]
    if plan.copies is None:
        said.append(
            _(
                "The replication state of the new primary is unknown, because its account "
                "lacks the "
                "right PROCESS."
            )
        )
    if plan.delayed:
        said.append(
            _("Up to %d delayed messages and retries would be lost.") % plan.delayed
        )
    if not plan.gaps:
        return [*said, _("At present, no messages would be lost.")]
    words = {"gaps": plan.gaps, "queues": plan.queues, "messages": plan.messages}
    lost = _(
        "At present, %(gaps)d of %(queues)d queues would get a gap, and at least %(messages)d "
        "messages would be lost. Consumers are notified when they reach a gap."
    )
    return [*said, lost % words]


def _fence(plan: Plan, fields: dict[str, Any]) -> list[Text]:
    """Describe what becomes of the old primary."""
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
    asked = _(
        "The old primary does not answer. First %d broker processes must confirm that they "
        "no longer use it."
    )
    return [asked % plan.brokers]


def _lost(of: Plan) -> Table | None:
    """List the missing messages that groups did not read."""
    if not of.lost:
        return None
    columns: Columns[Lost] = [
        Column(_("Group"), lambda row: code(row.group)),
        Column(_("Topic"), lambda row: code(row.topic)),
        Column(_("Queue"), lambda row: number(row.queue), right=True),
        Column(_("Messages"), lambda row: number(row.messages), right=True),
        Column(_("As of"), lambda row: timestamp(row.as_of_ms)),
    ]
    return simple_table(columns, of.lost, EmptyHint(_("Nothing.")))


def _told(done: Outcome) -> Text:
    """Describe what became of a node."""
    words = {
        "node": done.node,
        "epoch": done.epoch,
        "gaps": done.gaps,
        "messages": done.messages,
    }
    if not done.gaps:
        return (
            _("Node %(node)s is in service with epoch %(epoch)d. No messages were lost.")
            % words
        )
    said = _(
        "Node %(node)s is in service with epoch %(epoch)d. %(gaps)d queues have a gap, and at "
        "least %(messages)d messages are lost."
    )
    return said % words
