"""The systems that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.servers import Server
from benchmarks.peers.servers.catmq import CatmqServer
from benchmarks.peers.servers.kafka import KafkaServer
from benchmarks.peers.servers.nats_jetstream import NatsServer
from benchmarks.peers.servers.pgmq import PgmqServer
from benchmarks.peers.servers.redis_streams import RedisServer

CATMQ = ("mariadb", "mysql", "sqlite")
# Makes a server in a directory of its own, without starting it.
Maker = Callable[[Path], Server]


def makers(pgmq_sql: Path | None) -> dict[str, Maker]:
    """Return a maker of each system, by name. `pgmq_sql` is the SQL file of a PGMQ release."""
    return {
        "sqlite": lambda home: CatmqServer(home, "sqlite"),
        "mariadb": lambda home: CatmqServer(home, "mariadb"),
        "mysql": lambda home: CatmqServer(home, "mysql"),
        "redis": RedisServer,
        "pgmq": lambda home: PgmqServer(home, pgmq_sql),
        "nats": lambda home: NatsServer(home, is_synced=False),
        "nats-sync": lambda home: NatsServer(home, is_synced=True),
        "kafka": lambda home: KafkaServer(home, is_synced=False),
        "kafka-fsync": lambda home: KafkaServer(home, is_synced=True),
    }
