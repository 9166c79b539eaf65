"""Actions on nodes: register, change, check, remove."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.nodes import preflight, registry
from metadata.nodes import node_rows
from metadata.rules.nodes import Engine, NodeKind, NodeState
from metadata.rules.rights import Right
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import NODE
from metadata.rules.tls import MODES
from portal.actions.action import Action, Delete, NoFields, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import password_field
from portal.kit import findings
from portal.kit.setting_fields import form_field, with_settings
from portal.kit.tables import Text

# Topics named in a sentence.
MAX_TOPICS_NAMED = 20


def tls_field(unset: Text) -> forms.ChoiceField:
    """Return a field for the TLS mode. `unset` is the label of the empty choice."""
    modes = [(mode, lazy(meaning)) for mode, meaning in MODES.items()]
    return forms.ChoiceField(
        label=lazy(NODE["tls"].label), required=False, choices=[("", unset), *modes]
    )


class NewNodeForm(forms.Form):
    name = forms.CharField(label=lazy("Name"), max_length=100)
    engine = forms.ChoiceField(
        label=lazy("Engine"),
        choices=(
            (Engine.MYSQL, "MySQL / MariaDB"),
            (Engine.SQLITE, lazy("SQLite (embedded)")),
        ),
    )
    kind = forms.ChoiceField(
        label=lazy("Kind"),
        choices=(
            (NodeKind.NORMAL, lazy("normal")),
            (NodeKind.FAILURE, lazy("retries: only retries and dead letters")),
        ),
    )
    host = forms.CharField(label=lazy("Host"), required=False, max_length=255)
    port = forms.IntegerField(
        label=lazy("Port"),
        required=False,
        min_value=1,
        max_value=65_535,
        help_text=lazy("Empty: 3306."),
    )
    database = forms.CharField(
        label=lazy("Database"),
        max_length=1000,
        help_text=lazy("The schema, or the file of an embedded node."),
    )
    username = forms.CharField(label=lazy("Account"), required=False, max_length=200)
    password = password_field(lazy("Password"), required=False)
    # Left empty, the registration chooses the mode by the server's address.
    tls = tls_field(
        lazy("on, if the server is on another machine and offers TLS; else off")
    )
    tls_ca = form_field(NODE["tls_ca"])
    capacity_gb = form_field(NODE["capacity_gb"])
    dedicated = form_field(NODE["dedicated"])
    unsafe = forms.BooleanField(
        label=lazy("Accept a server that loses messages in a crash"), required=False
    )


class RegisterNode(Action):
    """Registers a node.

    The preview examines the database and shows the findings. A database that cannot serve
    as a node cannot be confirmed.
    """

    form_class = NewNodeForm
    right = Right.ADMIN
    object_kind = "node"
    section = "nodes"
    preview_title = lazy("Findings; nothing was changed")
    title = lazy("Register a node")
    needs_right_on_all = True
    back_to = ("nodes",)

    def preview(self, fields: dict[str, Any]) -> Preview:
        preflight_result = preflight.examine(actor=self.actor, **_node_settings(fields))
        if preflight_result.passed:
            sentence = _(
                "The node can be registered. Its tables are created when you confirm."
            )
        else:
            sentence = _(
                "The node cannot be registered. Fix the problems below, enter the password "
                "again, and repeat the test."
            )
        return Preview(
            effects=[sentence],
            table=findings.findings_table(preflight_result),
            blocked=not preflight_result.passed,
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Register the node. The database is examined again."""
        registry.register(**_node_settings(fields), actor=self.actor)
        return _("Node %s was tested and registered.") % str(fields["name"])


def _node_settings(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a new node, without `tls` if no mode was chosen."""
    return {name: value for name, value in fields.items() if name != "tls" or value}


class NodeAction(Action):
    right = Right.ADMIN
    object_kind = "node"
    section = "nodes"
    back_to = ("node", "name")


@with_settings(NODE)
class EditNodeForm(EditFields):
    """Settings of an existing node."""


class ChangeNode(Edit, NodeAction):
    form_class = EditNodeForm
    title = lazy("Settings of %(name)s")

    def stored_settings(self) -> dict[str, Any]:
        return read_settings(NODE, node_rows.find_node(name=self.name, actor=self.actor))

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the changes, and the sends that a closed node refuses."""
        changed = self._merge(fields).changed
        # Raises an error for a change that the node cannot take, so that no preview is shown.
        registry.check_update(name=self.name, settings=changed, actor=self.actor)
        preview = super().preview(fields)
        return Preview(
            effects=[*preview.effects, *self._describe_closing(changed)],
            table=preview.table,
        )

    def _describe_closing(self, changed: dict[str, Any]) -> list[Text]:
        state = changed.get("state")
        if state not in (NodeState.READ_ONLY, NodeState.OFFLINE):
            return []
        sentences = [_("The queues of the node will be closed. Sends go to other nodes.")]
        if state == NodeState.OFFLINE:
            sentences.append(
                _("The node will not be read. Its queues keep their owners and wait.")
            )
        # These topics have no other node to send to.
        topics = node_rows.topics_only_there(name=self.name, actor=self.actor)
        if topics:
            sentence = _(
                "%(count)d topics have no open queues on other nodes. Sends to them will be "
                "refused: %(names)s"
            )
            sentences.append(
                sentence
                % {"count": len(topics), "names": ", ".join(topics[:MAX_TOPICS_NAMED])}
            )
        return list(sentences)

    def save(self, changed: dict[str, Any]) -> None:
        registry.update(name=self.name, settings=changed, actor=self.actor)


class CheckNode(NodeAction):
    """Runs the registration checks on a registered node again."""

    form_class = NoFields
    button = lazy("Test again, with account rights")
    preview_title = lazy("Findings; nothing was changed")
    title = lazy("Test of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Show the findings."""
        # Rights are tested on a table created for that, so not by merely opening a link.
        tests_rights = self.request.method == "POST"
        preflight_result = preflight.reexamine(
            name=self.name, actor=self.actor, rights=tests_rights
        )
        return Preview(table=findings.findings_table(preflight_result))

    def post(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        return self._show_preview(NoFields({}))


class DeleteNode(Delete, NodeAction):
    title = lazy("Remove node %(name)s")
    page_after = "nodes"
    effect = lazy(
        "The node will be removed from the registry. Its database is not changed."
    )

    def run(self, fields: dict[str, Any]) -> Text:
        node_rows.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return _("Node %s was removed.") % self.name
