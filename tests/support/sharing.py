"""A member of a share group that speaks raw HTTP, or MessagePack."""

from __future__ import annotations

import uuid
from typing import Any

from tests.support.broker import Broker


class ShareMember:
    """A member of a share group: its calls, and what it was told last."""

    def __init__(self, broker: Broker, path: str, group: str) -> None:
        self.broker, self.path, self.group = broker, path, group

    @classmethod
    def join(
        cls, broker: Broker, group: str = "mails", *, name: str = "s1", **more: Any
    ) -> ShareMember:
        """Registers, and makes the group if it has to; reads topic `single` unless told
        otherwise.
        """
        body = {
            "name": name,
            "incarnation": str(uuid.uuid4()),
            "sdk": "test",
            "mode": "share",
        }
        body |= {"topics": ["single"], **more}
        told = broker.ok("POST", f"/groups/{group}/consumers", body)
        return cls(broker, f"/consumers/{told['consumer_id']}", group)

    def share(self, **asked: Any) -> Any:
        """The whole answer to a call for runs."""
        return self.broker.ok("POST", f"{self.path}/share", asked)

    def lease(self, **asked: Any) -> list[Any]:
        """The runs that it gets."""
        runs: list[Any] = self.share(**asked)["runs"]
        return runs

    def report(self, *reports: dict[str, Any]) -> list[str]:
        """The states of its reports, in order."""
        told = self.broker.ok("POST", f"{self.path}/share/done", {"done": list(reports)})
        return [one["state"] for one in told["done"]]

    def heartbeat(self) -> Any:
        """Says that it lives."""
        return self.broker.ok(
            "POST", f"{self.path}/heartbeat", {"generation": 0, "owned": []}
        )


def about(run: dict[str, Any], **report: Any) -> dict[str, Any]:
    """A report on a run."""
    return {"queue": run["queue"], "first": run["first"], "grant": run["grant"], **report}


def bodies(runs: list[Any]) -> list[str]:
    """The bodies of the messages of some runs."""
    return [message["body"] for run in runs for message in run["messages"]]
