"""A member of a share group that speaks plain HTTP, with JSON."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.broker import Broker


class ShareMember:
    """A member of a share group and its calls."""

    def __init__(self, broker: Broker, path: str, group: str) -> None:
        self.broker, self.path, self.group = broker, path, group

    @classmethod
    def join(
        cls, broker: Broker, group: str = "mails", *, name: str = "s1", **more: Any
    ) -> ShareMember:
        """Register and create the group if necessary. The default topic is `single`."""
        body = {
            "name": name,
            "incarnation": str(uuid.uuid4()),
            "sdk": "test",
            "mode": "share",
        }
        body |= {"topics": ["single"], **more}
        answer = broker.ok("POST", f"/groups/{group}/consumers", body)
        return cls(broker, f"/consumers/{answer['consumer_id']}", group)

    def share(self, **request: Any) -> Any:
        """Call for runs and return the whole answer."""
        return self.broker.ok("POST", f"{self.path}/share", request)

    def lease(self, **request: Any) -> list[Any]:
        """Call for runs and return those it gets."""
        runs: list[Any] = self.share(**request)["runs"]
        return runs

    def report(self, *reports: dict[str, Any]) -> list[str]:
        """Report on runs and return the states in order."""
        answer = self.broker.ok("POST", f"{self.path}/share/done", {"done": list(reports)})
        return [result["state"] for result in answer["done"]]

    def heartbeat(self) -> Any:
        """Send a heartbeat."""
        return self.broker.ok(
            "POST", f"{self.path}/heartbeat", {"generation": 0, "owned": []}
        )


def about(run: dict[str, Any], **report: Any) -> dict[str, Any]:
    """Return a report on a run."""
    return {"queue": run["queue"], "first": run["first"], "grant": run["grant"], **report}


def bodies(runs: list[Any]) -> list[str]:
    """Return the bodies of the messages of runs."""
    return [message["body"] for run in runs for message in run["messages"]]
