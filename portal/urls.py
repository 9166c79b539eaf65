"""Routes of all pages. All require a logged-in user (access.login_required_page), except the
login, the logout, and the forms that choose a language or a theme.
"""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, path

from portal.actions.action import Action
from portal.auth.access import View, login_required_page
from portal.auth.logins import LoginForm
from portal.views.failures import failures, redriving
from portal.views.groups import (
    consumers,
    group_actions,
    groups,
    leases,
    resetting,
    subscribing,
)
from portal.views.jobs import operations, pipeline, reports
from portal.views.messages import exporting, messages, sending
from portal.views.nodes import node_actions, node_addresses, nodes
from portal.views.system import (
    alarms,
    brokers,
    consistency,
    definitions,
    doctor,
    installation,
    overview,
    parts,
    preferences,
    saved_filters,
    search,
)
from portal.views.topics import delayed, tokens, topic_actions, topics
from portal.views.users import keys, own_password, users


def page(route: str, target: View | type[Action], name: str) -> URLPattern:
    """Return the route of a page or an action for logged-in users."""
    view: View = target.as_view() if hasattr(target, "as_view") else target
    return path(route, login_required_page(view), name=name)


urlpatterns = [
    path(
        "login",
        LoginView.as_view(
            template_name="portal/frame/login.html",
            redirect_authenticated_user=True,
            authentication_form=LoginForm,
        ),
        name="login",
    ),
    path("logout", LogoutView.as_view(), name="logout"),
    path("language", preferences.language, name="set_language"),
    path("theme", preferences.theme, name="theme"),
    page("help", preferences.keys, "help"),
    page("filters/save", saved_filters.save, "filter-save"),
    page("filters/delete", saved_filters.delete, "filter-delete"),
    page("parts", parts.parts, "parts"),
    page("search", search.search, "search"),
    page("names/<str:kind>", search.names, "names"),
    page("password", own_password.ChangePassword, "password"),
    page("", overview.overview, "overview"),
    page("topics", topics.topics_list, "topics"),
    page("create/topic", topic_actions.CreateTopic, "topic-create"),
    page("topics/<str:name>", topics.topic, "topic"),
    page("topics/<str:name>/settings", topic_actions.ChangeTopic, "topic-settings"),
    page("topics/<str:name>/expand", topic_actions.ExpandTopic, "topic-expand"),
    page("topics/<str:name>/shrink", topic_actions.ShrinkTopic, "topic-shrink"),
    page("topics/<str:name>/clean", topic_actions.CleanTopic, "topic-clean"),
    page("topics/<str:name>/delete", topic_actions.DeleteTopic, "topic-delete"),
    page(
        "topics/<str:name>/queues/<int:queue>", topic_actions.SetQueueState, "queue-state"
    ),
    page("topics/<str:name>/tokens", tokens.tokens, "topic-tokens"),
    page("topics/<str:name>/tokens/create", tokens.CreateToken, "token-create"),
    page("topics/<str:name>/tokens/<str:token>/delete", tokens.DeleteToken, "token-delete"),
    page("topics/<str:name>/delayed", delayed.delayed, "delayed"),
    page("topics/<str:name>/delayed/<str:message_id>", delayed.Recall, "recall"),
    page("topics/<str:topic>/send", sending.Send, "send"),
    page("export", definitions.download, "export"),
    page("create/import", definitions.Import, "import"),
    page("groups", groups.groups_list, "groups"),
    page("create/group", group_actions.CreateGroup, "group-create"),
    page("groups/<str:name>", groups.group, "group"),
    page("groups/<str:name>/settings", group_actions.ChangeGroup, "group-settings"),
    page("groups/<str:name>/stop", group_actions.StopGroup, "group-stop"),
    page("groups/<str:name>/start", group_actions.StartGroup, "group-start"),
    page("groups/<str:name>/reset", resetting.ResetGroup, "group-reset"),
    page("groups/<str:name>/moves", resetting.show_moves, "moves"),
    page("groups/<str:name>/moves/<str:reset>/undo", resetting.UndoReset, "group-undo"),
    page("groups/<str:name>/rebalance", group_actions.RebalanceGroup, "group-rebalance"),
    page(
        "groups/<str:name>/runs/<int:queue>/<int:first>/release",
        leases.ReleaseRun,
        "run-release",
    ),
    page("groups/<str:name>/delete", group_actions.DeleteGroup, "group-delete"),
    page("groups/<str:name>/subscribe", subscribing.Subscribe, "subscribe"),
    page(
        "groups/<str:name>/of/<str:topic>",
        subscribing.ChangeSubscription,
        "subscription-settings",
    ),
    page("groups/<str:name>/of/<str:topic>/end", subscribing.Unsubscribe, "unsubscribe"),
    page("groups/<str:name>/failures", failures.failures, "failures"),
    page("groups/<str:name>/dead/redrive", redriving.Redrive, "redrive"),
    page("groups/<str:name>/dead/drop", redriving.DeleteDeadLetters, "dead-drop"),
    page("groups/<str:name>/dead/seen", redriving.MarkDeadLettersSeen, "dead-seen"),
    page("groups/<str:name>/dead/of/<str:message_id>", failures.dead_message, "dead"),
    page("subscriptions", consumers.subscriptions, "subscriptions"),
    page("consumers", consumers.consumers, "consumers"),
    page("rebalances", consumers.rebalances, "rebalances"),
    page("messages", messages.messages, "messages"),
    page("export/messages", exporting.download, "messages-download"),
    page("messages/<str:topic>/<str:message_id>", messages.message, "message"),
    page(
        "messages/<str:topic>/<str:message_id>/body", messages.message_body, "message-body"
    ),
    page("messages/<str:topic>/<str:message_id>/resend", sending.Resend, "message-resend"),
    page("nodes", nodes.nodes_list, "nodes"),
    page("create/node", node_actions.RegisterNode, "node-register"),
    page("nodes/<str:name>", nodes.node, "node"),
    page("nodes/<str:name>/test", node_actions.CheckNode, "node-test"),
    page("nodes/<str:name>/settings", node_actions.ChangeNode, "node-settings"),
    page("nodes/<str:name>/account", node_addresses.SetAccount, "node-account"),
    page("nodes/<str:name>/reader", node_addresses.SetReader, "node-reader"),
    page("nodes/<str:name>/promote", node_addresses.PromoteNode, "node-promote"),
    page("nodes/<str:name>/adopt", node_addresses.AdoptNode, "node-adopt"),
    page("nodes/<str:name>/delete", node_actions.DeleteNode, "node-delete"),
    page("brokers", brokers.brokers_list, "brokers"),
    page("java-clients", brokers.java_clients, "java-clients"),
    page("brokers/<str:name>/state", brokers.SetBrokerState, "broker-state"),
    page("brokers/<str:name>/forget", brokers.ForgetBroker, "broker-forget"),
    page("alarms", alarms.alarms_list, "alarms"),
    page("acknowledge/alarms", alarms.AcknowledgeAll, "alarms-acknowledge"),
    page("alarms/<str:kind>/<path:name>", alarms.Acknowledge, "alarm-acknowledge"),
    page("jobs", operations.jobs, "jobs"),
    page("jobs/<str:name>/run", operations.RunJob, "job-run"),
    page("pipeline", pipeline.overview, "pipeline"),
    page("create/archive", pipeline.StartArchive, "archive-start"),
    page("create/purge", pipeline.StartPurge, "purge-start"),
    page("create/replay", pipeline.StartReplay, "replay-start"),
    page("runs/<int:run>", pipeline.run, "run"),
    page("runs/<int:run>/cancel", operations.CancelRun, "run-cancel"),
    page("reports", reports.reports_list, "reports"),
    page("create/report", reports.MakeReport, "report-make"),
    page("reports/<int:number_>", reports.report, "report"),
    page("reports/<int:number_>/csv", reports.report_csv, "report-csv"),
    page("reports/<int:number_>/parquet", reports.report_parquet, "report-parquet"),
    page("audit", operations.audit, "audit"),
    page("keys", keys.keys_list, "keys"),
    page("create/key", keys.CreateKey, "key-create"),
    page("keys/<str:name>/limits", keys.LimitKey, "key-limits"),
    page("keys/<str:name>/delete", keys.DeleteKey, "key-delete"),
    page("users", users.users_list, "users"),
    page("create/user", users.CreateUser, "user-create"),
    page("users/<str:name>", users.ChangeUser, "user"),
    page("users/<str:name>/delete", users.DeleteUser, "user-delete"),
    page("settings", installation.settings, "settings"),
    page("doctor", doctor.doctor, "doctor"),
    page("consistency", consistency.findings, "consistency"),
    page("consistency/<str:key>", consistency.Repair, "repair"),
    page("checks", installation.Check, "checks"),
]
