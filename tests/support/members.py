"""A consumer that speaks raw HTTP."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Broker


@dataclass
class Member:
    """A member of a group: what it was told, and its calls."""

    broker: Broker
    path: str
    generation: int = 0
    owned: dict[int, int] = field(default_factory=dict)  # queue → epoch

    @classmethod
    def join(
        cls, broker: Broker, group: str = "readers", *, name: str = "c1", **more: Any
    ) -> Member:
        """Registers; `topics` are subscribed to."""
        body = {"name": name, "incarnation": str(uuid.uuid4()), "sdk": "test", **more}
        return cls(
            broker,
            "/consumers/"
            + broker.ok("POST", f"/groups/{group}/consumers", body)["consumer_id"],
        )

    def heartbeat(self) -> Any:
        """Says what it holds and takes over what it is told."""
        owned = [{"queue": queue, "epoch": epoch} for queue, epoch in self.owned.items()]
        body = {"generation": self.generation, "owned": owned}
        told = self.broker.ok("POST", f"{self.path}/heartbeat", body)
        self.generation = told["generation"]
        self.owned = {one["queue"]: one["epoch"] for one in told["assigned"]}
        return told

    def acquire(self) -> Any:
        """Acquires all it was told to own."""
        queues = [{"queue": queue, "epoch": epoch} for queue, epoch in self.owned.items()]
        return self.broker.ok("POST", f"{self.path}/acquire", {"queues": queues})["queues"]

    def position(self, queue: int, offset: int) -> dict[str, int]:
        """A queue with its epoch and an offset, as pull and commit want it."""
        return {"queue": queue, "epoch": self.owned[queue], "offset": offset}

    def pull(self, *positions: dict[str, int], **more: Any) -> Any:
        """Pulls."""
        body = {"generation": self.generation, "queues": list(positions), **more}
        return self.broker.ok("POST", f"{self.path}/pull", body)

    def commit(self, *positions: dict[str, int]) -> Any:
        """Commits; the states in order."""
        results = self.broker.ok(
            "POST", f"{self.path}/commit", {"offsets": list(positions)}
        )["results"]
        return [result["state"] for result in results]


def reader(broker: Broker, **more: Any) -> Member:
    """A member that has acquired every queue of topic `single`."""
    member = Member.join(broker, topics=["single"], **more)
    member.heartbeat()
    member.acquire()
    return member
