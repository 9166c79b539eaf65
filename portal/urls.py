"""Every page. All but the login are only for those who logged in (access.login_required_page)."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, path
from django.views.i18n import set_language

from portal.auth.access import View, login_required_page
from portal.auth.logins import LoginForm
from portal.views.failures import failures, redriving
from portal.views.groups import consumers, group_actions, groups, resetting, subscribing
from portal.views.jobs import operations, pipeline, reports
from portal.views.messages import messages, sending
from portal.views.nodes import node_actions, node_places, nodes
from portal.views.system import alarms, brokers, consistency, installation, overview, preferences
from portal.views.topics import delayed, topic_actions, topics
from portal.views.users import keys, own_password, users


def page(route: str, view: View, name: str) -> URLPattern:
    """Return the route of a page for users who logged in."""
    return path(route, login_required_page(view), name=name)


urlpatterns = [
    path(
        "login",
        LoginView.as_view(
            template_name="portal/login.html", redirect_authenticated_user=True, authentication_form=LoginForm
        ),
        name="login",
    ),
    path("logout", LogoutView.as_view(), name="logout"),
    path("language", set_language, name="set_language"),
    path("theme", preferences.theme, name="theme"),
    page("help", preferences.keys, "help"),
    page("password", own_password.ChangePassword.as_view(), "password"),
    page("", overview.overview, "overview"),
    page("topics", topics.topics_list, "topics"),
    page("create/topic", topic_actions.CreateTopic.as_view(), "topic-create"),
    page("topics/<str:name>", topics.topic, "topic"),
    page("topics/<str:name>/settings", topic_actions.ChangeTopic.as_view(), "topic-settings"),
    page("topics/<str:name>/expand", topic_actions.ExpandTopic.as_view(), "topic-expand"),
    page("topics/<str:name>/shrink", topic_actions.ShrinkTopic.as_view(), "topic-shrink"),
    page("topics/<str:name>/clean", topic_actions.CleanTopic.as_view(), "topic-clean"),
    page("topics/<str:name>/delete", topic_actions.DeleteTopic.as_view(), "topic-delete"),
    page("topics/<str:name>/queues/<int:queue>", topic_actions.SetQueueState.as_view(), "queue-state"),
    page("topics/<str:name>/delayed", delayed.delayed, "delayed"),
    page("topics/<str:name>/delayed/<str:message_id>", delayed.Recall.as_view(), "recall"),
    page("topics/<str:topic>/send", sending.Send.as_view(), "send"),
    page("groups", groups.groups_list, "groups"),
    page("create/group", group_actions.CreateGroup.as_view(), "group-create"),
    page("groups/<str:name>", groups.group, "group"),
    page("groups/<str:name>/settings", group_actions.ChangeGroup.as_view(), "group-settings"),
    page("groups/<str:name>/stop", group_actions.StopGroup.as_view(), "group-stop"),
    page("groups/<str:name>/start", group_actions.StartGroup.as_view(), "group-start"),
    page("groups/<str:name>/reset", resetting.ResetGroup.as_view(), "group-reset"),
    page("groups/<str:name>/moves", resetting.moves_of, "moves"),
    page("groups/<str:name>/moves/<str:reset>/undo", resetting.UndoReset.as_view(), "group-undo"),
    page("groups/<str:name>/rebalance", group_actions.RebalanceGroup.as_view(), "group-rebalance"),
    page("groups/<str:name>/delete", group_actions.DeleteGroup.as_view(), "group-delete"),
    page("groups/<str:name>/subscribe", subscribing.Subscribe.as_view(), "subscribe"),
    page(
        "groups/<str:name>/of/<str:topic>",
        subscribing.ChangeSubscription.as_view(),
        "subscription-settings",
    ),
    page("groups/<str:name>/of/<str:topic>/end", subscribing.Unsubscribe.as_view(), "unsubscribe"),
    page("groups/<str:name>/failures", failures.failures, "failures"),
    page("groups/<str:name>/dead/redrive", redriving.Redrive.as_view(), "redrive"),
    page("groups/<str:name>/dead/drop", redriving.DropDead.as_view(), "dead-drop"),
    page("groups/<str:name>/dead/seen", redriving.SawDead.as_view(), "dead-seen"),
    page("groups/<str:name>/dead/of/<str:message_id>", failures.dead_message, "dead"),
    page("subscriptions", consumers.subscriptions, "subscriptions"),
    page("consumers", consumers.consumers, "consumers"),
    page("rebalances", consumers.rebalances, "rebalances"),
    page("messages", messages.messages, "messages"),
    page("messages/<str:topic>/<str:message_id>", messages.message, "message"),
    page("messages/<str:topic>/<str:message_id>/body", messages.message_body, "message-body"),
    page("messages/<str:topic>/<str:message_id>/resend", sending.Resend.as_view(), "message-resend"),
    page("nodes", nodes.nodes_list, "nodes"),
    page("create/node", node_actions.RegisterNode.as_view(), "node-register"),
    page("nodes/<str:name>", nodes.node, "node"),
    page("nodes/<str:name>/test", node_actions.TryNode.as_view(), "node-test"),
    page("nodes/<str:name>/settings", node_actions.ChangeNode.as_view(), "node-settings"),
    page("nodes/<str:name>/account", node_places.SetAccount.as_view(), "node-account"),
    page("nodes/<str:name>/reader", node_places.SetReader.as_view(), "node-reader"),
    page("nodes/<str:name>/promote", node_places.PromoteNode.as_view(), "node-promote"),
    page("nodes/<str:name>/adopt", node_places.AdoptNode.as_view(), "node-adopt"),
    page("nodes/<str:name>/delete", node_actions.DeleteNode.as_view(), "node-delete"),
    page("brokers", brokers.brokers_list, "brokers"),
    page("brokers/<str:name>/state", brokers.SetBrokerState.as_view(), "broker-state"),
    page("brokers/<str:name>/forget", brokers.ForgetBroker.as_view(), "broker-forget"),
    page("alarms", alarms.alarms_list, "alarms"),
    page("alarms/<str:kind>/<path:name>", alarms.Acknowledge.as_view(), "alarm-acknowledge"),
    page("jobs", operations.jobs, "jobs"),
    page("jobs/<str:name>/run", operations.RunJob.as_view(), "job-run"),
    page("pipeline", pipeline.overview, "pipeline"),
    page("create/archive", pipeline.StartArchive.as_view(), "archive-start"),
    page("create/purge", pipeline.StartPurge.as_view(), "purge-start"),
    page("create/replay", pipeline.StartReplay.as_view(), "replay-start"),
    page("runs/<int:run>", pipeline.run, "run"),
    page("runs/<int:run>/cancel", operations.CancelRun.as_view(), "run-cancel"),
    page("reports", reports.reports_list, "reports"),
    page("create/report", reports.MakeReport.as_view(), "report-make"),
    page("reports/<int:number_>", reports.report, "report"),
    page("reports/<int:number_>/csv", reports.report_csv, "report-csv"),
    page("reports/<int:number_>/parquet", reports.report_parquet, "report-parquet"),
    page("audit", operations.audit, "audit"),
    page("keys", keys.keys_list, "keys"),
    page("create/key", keys.CreateKey.as_view(), "key-create"),
    page("keys/<str:name>/limits", keys.LimitKey.as_view(), "key-limits"),
    page("keys/<str:name>/delete", keys.DeleteKey.as_view(), "key-delete"),
    page("users", users.users_list, "users"),
    page("create/user", users.CreateUser.as_view(), "user-create"),
    page("users/<str:name>", users.ChangeUser.as_view(), "user"),
    page("users/<str:name>/delete", users.DeleteUser.as_view(), "user-delete"),
    page("settings", installation.settings, "settings"),
    page("consistency", consistency.findings, "consistency"),
    page("consistency/<str:key>", consistency.Repair.as_view(), "repair"),
    page("checks", installation.Check.as_view(), "checks"),
]
