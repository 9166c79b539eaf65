"""Kafka on one node that is broker and controller (KRaft), with and without fsync."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import programs
from benchmarks.peers.clients import QUEUES
from benchmarks.peers.servers import Server, await_start, end, launch, run_tool
from tests.support.environment import free_port

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions={queues}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
# Kafka leaves the sync to the operating system by default.
FSYNC = "log.flush.interval.messages=1\n"
# Run by the environment of the clients, which has the library.
TOPIC = """\
import json, sys
from confluent_kafka.admin import AdminClient, NewTopic
address, topic, queues = json.loads(sys.argv[1])
client = AdminClient({"bootstrap.servers": address})
client.create_topics([NewTopic(topic, queues, 1)])[topic].result(60)
"""


class KafkaServer(Server):
    client = "kafka"

    def __init__(self, home: Path, *, is_synced: bool) -> None:
        super().__init__(home)
        self.title = "Kafka, " + ("fsync always" if is_synced else "no fsync")
        self._is_synced, self._port = is_synced, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.python = programs.python()
        command = programs.kafka_command()
        settings = SETTINGS.format(
            port=self._port,
            controller=free_port(),
            data=self.home / "data",
            queues=QUEUES,
        )
        file = self.home / "server.properties"
        file.write_text(settings + (FSYNC if self._is_synced else ""))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run_tool([*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", file])
        log = self.home / "server.log"
        self._process = launch([*command, "kafka.Kafka", str(file)], log=log)
        await_start(self._process, self._listens, log)
        self.version = f"Kafka {programs.KAFKA}"

    def stop(self) -> None:
        end(self._process)

    def connection(self) -> Mapping[str, Any]:
        return {"address": f"127.0.0.1:{self._port}"}

    def sides(self) -> Mapping[str, Sequence[int]]:
        assert self._process is not None
        return {"server": [self._process.pid]}

    def make_topic(self, topic: str) -> None:
        arguments = json.dumps([self.connection()["address"], topic, QUEUES])
        run_tool([self.python, "-I", "-c", TOPIC, arguments])

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
