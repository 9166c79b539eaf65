"""Actions on nodes: register, change, test, remove."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes import preflight, registry
from metadata.nodes import node_rows
from portal.actions.action import Action, Confirm, NoFields, Preview
from portal.actions.edit import Edit, EditFields
from portal.kit import findings
from portal.kit.tables import Text

SETTINGS = ("state", "dedicated", "capacity_gb", "replica_host", "replica_port")
MOST_NAMED = 20  # topics in a sentence
NEW_PASSWORD = {"autocomplete": "new-password"}


class NewNode(forms.Form):
    name = forms.CharField(label=lazy("Name"), max_length=100)
    engine = forms.ChoiceField(
        label=lazy("Engine"), choices=(("mysql", "MySQL / MariaDB"), ("sqlite", lazy("SQLite (embedded)")))
    )
    kind = forms.ChoiceField(
        label=lazy("Kind"),
        choices=(("normal", lazy("normal")), ("failure", lazy("retries: only messages that failed"))),
    )
    host = forms.CharField(label=lazy("Host"), required=False, max_length=255)
    port = forms.IntegerField(
        label=lazy("Port"), required=False, min_value=1, max_value=65_535, help_text=lazy("Empty: 3306.")
    )
    database = forms.CharField(
        label=lazy("Database"),
        max_length=1000,
        help_text=lazy("The schema, or the file of an embedded node."),
    )
    username = forms.CharField(label=lazy("Account"), required=False, max_length=200)
    password = forms.CharField(
        label=lazy("Password"),
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs=NEW_PASSWORD),
    )
    capacity_gb = forms.IntegerField(
        label=lazy("Capacity, GB"), required=False, min_value=1, max_value=10_000_000,
        help_text=lazy("Without one nobody can say when it runs full."),
    )  # fmt: skip
    dedicated = forms.BooleanField(label=lazy("Never chosen by itself for new queues"), required=False)
    unsafe = forms.BooleanField(label=lazy("Accept a server that loses messages in a crash"), required=False)


class RegisterNode(Action):
    """Registers a node: the database is examined, the findings are shown, then it is confirmed."""

    form_class = NewNode
    right = "admin"
    what = "node"
    section = "nodes"
    says = lazy("What was found there; nothing was changed")
    title = lazy("Register a node")
    everywhere = True
    back_to = ("nodes",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        found = preflight.examine(actor=self.actor, **fields)
        if found.passed:
            said = _("It can be registered. Its tables are made when you confirm.")
        else:
            said = _("It cannot be registered so. Mend it, type the password again, and test again.")
        return Preview(effects=[said], table=findings.table(found), blocked=not found.passed)

    def run(self, fields: dict[str, Any]) -> Text:
        """Registers it; what was found is asked again."""
        registry.register(**fields, actor=self.actor)
        return _("Node %s was tried and registered.") % str(fields["name"])


class NodeAction(Action):
    right = "admin"
    what = "node"
    section = "nodes"
    back_to = ("node", "name")


class NodeSettings(EditFields):
    state = forms.ChoiceField(
        label=lazy("State"),
        choices=(
            ("read_write", lazy("open")),
            ("read_only", lazy("read-only: sends go to other nodes")),
            ("offline", lazy("offline: nothing goes there")),
        ),
    )
    dedicated = forms.BooleanField(label=lazy("Never chosen by itself for new queues"), required=False)
    capacity_gb = forms.IntegerField(
        label=lazy("Capacity, GB"), required=False, min_value=1, max_value=10_000_000
    )
    replica_host = forms.CharField(
        label=lazy("Host of its replica"),
        required=False,
        max_length=255,
        help_text=lazy("Pulls go on from it while the node is away; the same database and account."),
    )
    replica_port = forms.IntegerField(
        label=lazy("Port of its replica"), required=False, min_value=1, max_value=65_535
    )


class ChangeNode(Edit, NodeAction):
    form_class = NodeSettings
    title = lazy("Settings of %(name)s")

    def now(self) -> dict[str, Any]:
        view = node_rows.named(name=self.name, actor=self.actor)
        return {name: getattr(view, name) for name in SETTINGS}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what changes, and what a node that is closed keeps from being sent."""
        changed = self._merge(fields).changed
        node_rows.check_update(name=self.name, settings=changed, actor=self.actor)
        found = super().preview(fields)
        return Preview(effects=[*found.effects, *self._closing(changed)], table=found.table)

    def _closing(self, changed: dict[str, Any]) -> list[Text]:
        state = changed.get("state")
        if state not in ("read_only", "offline"):
            return []
        said = [_("Its queues are closed: what is sent goes to other nodes.")]
        if state == "offline":
            said.append(_("Nothing is read from it, and what consumers hold of it waits."))
        alone = node_rows.topics_only_there(name=self.name, actor=self.actor)
        if alone:
            what = _("%(count)d topics have open queues nowhere else, and cannot be sent to then: %(names)s")
            said.append(what % {"count": len(alone), "names": ", ".join(alone[:MOST_NAMED])})
        return list(said)

    def save(self, changed: dict[str, Any]) -> None:
        registry.update(name=self.name, settings=changed, actor=self.actor)


class TryNode(NodeAction):
    """Asks a node what a new one is asked."""

    form_class = NoFields
    button = lazy("Test again, with the rights of its account")
    says = lazy("What was found there; nothing was changed")
    title = lazy("Test of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Show the node's answers; rights are tried on a table made for it, so not by a mere link."""
        tried = self.request.method == "POST"
        found = preflight.reexamine(name=self.name, actor=self.actor, rights=tried)
        return Preview(table=findings.table(found))

    def post(self, request: HttpRequest, **words: Any) -> HttpResponse:
        return self._ask(NoFields({}))


class DeleteNode(NodeAction):
    """Takes a node out of the registry."""

    form_class = Confirm
    danger = True
    title = lazy("Remove node %(name)s")
    gone_to = "nodes"
    would = lazy("The node is removed from the registry; its database stays as it is.")

    def run(self, fields: dict[str, Any]) -> Text:
        node_rows.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Node %s was removed.") % self.name
