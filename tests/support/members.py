"""A consumer that speaks plain HTTP."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Broker


@dataclass
class Member:
    """A member of a group: its assignment, and its calls."""

    broker: Broker
    path: str
    generation: int = 0
    owned: dict[int, int] = field(default_factory=dict)  # queue → epoch

    @classmethod
    def join(
        cls, broker: Broker, group: str = "readers", *, name: str = "c1", **more: Any
    ) -> Member:
        """Register. `topics` are subscribed."""
        body = {"name": name, "incarnation": str(uuid.uuid4()), "sdk": "test", **more}
        return cls(
            broker,
            "/consumers/"
            + broker.ok("POST", f"/groups/{group}/consumers", body)["consumer_id"],
        )

    def heartbeat(self) -> Any:
        """Report the owned queues and apply the assignment."""
        owned = [{"queue": queue, "epoch": epoch} for queue, epoch in self.owned.items()]
        body = {"generation": self.generation, "owned": owned}
        answer = self.broker.ok("POST", f"{self.path}/heartbeat", body)
        self.generation = answer["generation"]
        self.owned = {
            assigned["queue"]: assigned["epoch"] for assigned in answer["assigned"]
        }
        return answer

    def acquire(self) -> Any:
        """Acquire all assigned queues."""
        queues = [{"queue": queue, "epoch": epoch} for queue, epoch in self.owned.items()]
        return self.broker.ok("POST", f"{self.path}/acquire", {"queues": queues})["queues"]

    def position(self, queue: int, offset: int) -> dict[str, int]:
        """Return a queue with its epoch and an offset, as pull and commit take it."""
        return {"queue": queue, "epoch": self.owned[queue], "offset": offset}

    def pull(self, *positions: dict[str, int], **more: Any) -> Any:
        """Pull messages."""
        body = {"generation": self.generation, "queues": list(positions), **more}
        return self.broker.ok("POST", f"{self.path}/pull", body)

    def commit(self, *positions: dict[str, int]) -> Any:
        """Commit offsets and return the states in order."""
        results = self.broker.ok(
            "POST", f"{self.path}/commit", {"offsets": list(positions)}
        )["results"]
        return [result["state"] for result in results]


def reader(broker: Broker, **more: Any) -> Member:
    """Join as a member that has acquired every queue of topic `single`."""
    member = Member.join(broker, topics=["single"], **more)
    member.heartbeat()
    member.acquire()
    return member
