"""State of this process, for load balancers and for monitoring. None of it needs an API
key.
"""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, PublicEndpoint
from brokerapi.http import health, metrics
from brokerapi.schema import operation


class Live(PublicEndpoint):
    @operation("live", tag="health", answer=health.Health)
    def get(self, call: Call) -> HttpResponse:
        """Liveness of the process. No database is accessed."""
        return call.answer(health.Health(status="ok", because=[]))


class Ready(PublicEndpoint):
    @operation("ready", tag="health", answer=health.Health)
    def get(self, call: Call) -> HttpResponse:
        """The broker's readiness: 200 ok or degraded, 503 if it serves neither sends nor
        pulls. Before the first node is registered it is 200 degraded."""
        state = health.readiness()
        response = call.answer(state)
        response.status_code = 503 if state.status == "unready" else 200
        return response


class Metrics(PublicEndpoint):
    @operation("metrics", tag="health")
    def get(self, call: Call) -> HttpResponse:
        """Counters and gauges of all worker processes, for Prometheus."""
        text, content_type = metrics.exposition()
        return HttpResponse(text, content_type)
