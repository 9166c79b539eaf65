"""The URLs of Java clients."""

from __future__ import annotations

from django.urls import path, re_path

from brokerapi.java import catalog, failing, joining, polling, reading, sending, tools
from brokerapi.java.endpoint import Elsewhere

CONSUMER, META, TOOL = "api/client/consumer", "api/server/meta", "api/client/tool"

urlpatterns = [
    path(f"{META}/getMetaGroup", catalog.GetMetaGroup.as_view()),
    path(f"{META}/getTopic", catalog.GetTopic.as_view()),
    path(f"{META}/getGroupTopic", catalog.GetGroupTopic.as_view()),
    path(f"{META}/getTopicQueueIds", catalog.GetTopicQueueIds.as_view()),
    path(f"{CONSUMER}/register", joining.Register.as_view()),
    path(f"{CONSUMER}/registerConsumerGroup", joining.RegisterConsumerGroup.as_view()),
    path(f"{CONSUMER}/heartbeat", joining.Heartbeat.as_view()),
    path(f"{CONSUMER}/deRegister", joining.DeRegister.as_view()),
    path(f"{CONSUMER}/getConsumerGroupPolling", polling.Poll.as_view()),
    path(f"{CONSUMER}/pullData", reading.PullData.as_view()),
    path(f"{CONSUMER}/commitOffset", reading.CommitOffsets.as_view()),
    path(f"{CONSUMER}/publish", sending.Publish.as_view()),
    path(f"{CONSUMER}/publishAndUpdateResultFailMsg", failing.Failures.as_view()),
    path(f"{CONSUMER}/getMessageCount", catalog.GetMessageCount.as_view()),
    path(f"{TOOL}/addLog", tools.AddLog.as_view()),
    path(f"{TOOL}/addOpLog", tools.AddOpLog.as_view()),
    path(f"{TOOL}/addCat", tools.AddCat.as_view()),
    path(f"{TOOL}/sendMail", tools.SendMail.as_view()),
    path(f"{TOOL}/getIp", tools.GetIp.as_view()),
    re_path(r"^api/+(?:client|server)/.*$", Elsewhere.as_view()),
]
