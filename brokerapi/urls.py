"""The index of the HTTP API: every URL and its endpoint."""

from __future__ import annotations

from django.urls import include, path, re_path

from brokerapi.definitions.endpoints import Export, Import
from brokerapi.shares import endpoints
from brokerapi.views import (
    about,
    brokers,
    consumers,
    dead,
    doctor,
    groups,
    health,
    keys,
    messages,
    nodes,
    queues,
    rebalances,
    subscriptions,
    topics,
)

urlpatterns = [
    # Producing and looking
    path("api/v1/topics/<str:topic>/messages", messages.Messages.as_view()),
    path("api/v1/topics/<str:topic>/delayed", messages.Delayed.as_view()),
    path("api/v1/topics/<str:topic>/traces", messages.Traces.as_view()),
    path("api/v1/messages/<str:message_id>", messages.Message.as_view()),
    # Consuming
    path("api/v1/groups/<str:group>/consumers", consumers.Consumers.as_view()),
    path("api/v1/consumers/<str:consumer>", consumers.Consumer.as_view()),
    path("api/v1/consumers/<str:consumer>/heartbeat", consumers.Heartbeat.as_view()),
    path("api/v1/consumers/<str:consumer>/acquire", consumers.Acquire.as_view()),
    path("api/v1/consumers/<str:consumer>/pull", consumers.Pull.as_view()),
    path("api/v1/consumers/<str:consumer>/commit", consumers.Commit.as_view()),
    path("api/v1/consumers/<str:consumer>/failures", consumers.Failures.as_view()),
    path("api/v1/consumers/<str:consumer>/traces", consumers.Traces.as_view()),
    path("api/v1/consumers/<str:consumer>/share", endpoints.Share.as_view()),
    path("api/v1/consumers/<str:consumer>/share/done", endpoints.ShareDone.as_view()),
    # Managing
    path("api/v1/topics", topics.Topics.as_view()),
    path("api/v1/topics/<str:topic>", topics.Topic.as_view()),
    path("api/v1/topics/<str:topic>/expand", queues.Expand.as_view()),
    path("api/v1/topics/<str:topic>/shrink", queues.Shrink.as_view()),
    path("api/v1/topics/<str:topic>/queues", queues.Queues.as_view()),
    path("api/v1/topics/<str:topic>/queues/<int:queue>", queues.Queue.as_view()),
    path("api/v1/topics/<str:topic>/tag-matches", subscriptions.TagMatches.as_view()),
    path("api/v1/topics/<str:topic>/key-index", topics.KeyIndex.as_view()),
    path("api/v1/topics/<str:topic>/producers", topics.Producers.as_view()),
    path("api/v1/topics/<str:topic>/read-plan", topics.ReadPlan.as_view()),
    path("api/v1/topics/<str:topic>/send-tokens", topics.SendTokens.as_view()),
    path("api/v1/topics/<str:topic>/send-tokens/<str:token>", topics.SendToken.as_view()),
    path("api/v1/groups", groups.Groups.as_view()),
    path("api/v1/groups/<str:group>", groups.Group.as_view()),
    path("api/v1/groups/<str:group>/offsets", groups.Offsets.as_view()),
    path("api/v1/groups/<str:group>/offsets/moves", groups.OffsetMoves.as_view()),
    path("api/v1/groups/<str:group>/offsets/undo", groups.UndoOffsets.as_view()),
    path("api/v1/groups/<str:group>/rebalance", rebalances.Rebalance.as_view()),
    path("api/v1/groups/<str:group>/rebalances", rebalances.Rebalances.as_view()),
    path("api/v1/groups/<str:group>/subscriptions", subscriptions.Subscriptions.as_view()),
    path(
        "api/v1/groups/<str:group>/subscriptions/<str:topic>",
        subscriptions.Subscription.as_view(),
    ),
    path("api/v1/groups/<str:group>/share/runs", endpoints.Runs.as_view()),
    path("api/v1/groups/<str:group>/share/runs/release", endpoints.ReleaseRuns.as_view()),
    path("api/v1/groups/<str:group>/failed", dead.Failed.as_view()),
    path("api/v1/groups/<str:group>/dead", dead.DeadMessages.as_view()),
    path("api/v1/groups/<str:group>/dead/summary", dead.DeadSummary.as_view()),
    path("api/v1/groups/<str:group>/dead/redrive", dead.RedriveDead.as_view()),
    path("api/v1/groups/<str:group>/dead/<str:message>", dead.DeadMessage.as_view()),
    path("api/v1/groups/<str:group>/redrives", dead.Redrives.as_view()),
    path("api/v1/groups/<str:group>/redrives/<int:redrive>", dead.Redrive.as_view()),
    path("api/v1/export", Export.as_view()),
    path("api/v1/import", Import.as_view()),
    path("api/v1/nodes", nodes.Nodes.as_view()),
    path("api/v1/nodes/<str:node>", nodes.Node.as_view()),
    path("api/v1/nodes/<str:node>/examine", nodes.Examine.as_view()),
    path("api/v1/nodes/<str:node>/account", nodes.Account.as_view()),
    path("api/v1/nodes/<str:node>/reader", nodes.Reader.as_view()),
    path("api/v1/nodes/<str:node>/promote", nodes.Promote.as_view()),
    path("api/v1/nodes/<str:node>/adopt", nodes.Adopt.as_view()),
    path("api/v1/brokers", brokers.Brokers.as_view()),
    path("api/v1/brokers/<str:broker>", brokers.Broker.as_view()),
    path("api/v1/keys", keys.Keys.as_view()),
    path("api/v1/keys/<str:key>", keys.Key.as_view()),
    path("api/v1/doctor", doctor.Doctor.as_view()),
    path("api/v1/doctor/connection", doctor.Connection.as_view()),
    # About
    path("api/v1", about.About.as_view()),
    path("api/v1/schema", about.Schema.as_view()),
    path("api/v1/docs", about.Docs.as_view()),
    path("api/v1/docs.js", about.Script.as_view()),
    # Health
    path("livez", health.Live.as_view()),
    path("readyz", health.Ready.as_view()),
    path("metrics", health.Metrics.as_view()),
    # Java clients
    path("", include("brokerapi.java.routes")),
    # Everything else under /api: a problem, also in debug mode
    re_path(r"^api(/.*)?$", about.Unknown.as_view()),
]
