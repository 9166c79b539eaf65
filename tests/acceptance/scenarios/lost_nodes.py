"""A message node of its own is killed: again and again, or for good, so that its replica
takes over.

Killed, it comes back with all that was acknowledged. Lost for good while its replica lacks
the tail, it leaves a declared gap: no offset is given twice, and each consumer is told
before it goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from catmq_client import HttpTransport
from tests.acceptance.scenarios.crowd import Crowd, Member, Sender
from tests.acceptance.scenarios.stage import Stage
from tests.support import judge, mariadb, replication
from tests.support.environment import free_port
from tests.support.logs import Place
from tests.support.mariadb import MariaDB
from tests.support.pair import Pair
from tests.support.slowsync import SlowSync, slow_disk
from tests.support.waiting import until

NAME = "moving"  # of nodes
QUEUES = 4
EVERY_MS = 20
SESSION_MS = 15_000
SYNC_MS = 150  # by so much syncs of a node that is killed take longer
LEAST_S = 0.25  # differences below it are the machine's
# Usually a tenth of a second: nobody who asks other nodes, too, waits longer for the frozen
# one.
FOUND_OUT_S = 1.0
# from the node's return until messages are handled again: the longest pause between two
# probes
BACK_S = 20.0


@contextmanager
def own_server(
    stage: Stage, disk: SlowSync | None = None, *, binlog: bool = True
) -> Iterator[MariaDB]:
    """A database server for one node; `binlog`: with a synced binary log."""
    options = replication.options(1) if binlog else mariadb.NO_BINLOG
    if disk is None:
        server = mariadb.start(
            stage.directory / "own-node", port=free_port(), options=options
        )
    else:
        server = mariadb.start(
            disk.home, port=free_port(), options=options, environ=disk.environ
        )
    try:
        yield server
    finally:
        if disk is not None:
            disk.forget()
        retire_nodes(stage)
        server.stop()


def restart_database(stage: Stage, name: str, database: MariaDB) -> None:
    """Restart a database, by SIGTERM or by kill -9; it is away for up to 2 s more."""
    if stage.rng.random() < 0.5:
        stage.say(f"restart of the database of the {name}")
        database.stop()
    else:
        stage.say(f"kill -9 of the database of the {name}")
        os.kill(database.pid, signal.SIGKILL)
        until(lambda: not mariadb.is_alive(database), limit_s=10)
    time.sleep(stage.rng.uniform(0.0, 2.0))
    database.start()


def retire_nodes(stage: Stage) -> None:
    """Takes the nodes of own servers offline, or whoever asks all nodes later meets a dead
    one.
    """
    with closing(HttpTransport(stage.urls, api_key=stage.server.api_key)) as transport:
        for node in stage.terminal.admin.nodes():
            if node["name"].startswith(NAME) and node["state"] != "offline":
                transport.request(
                    "PATCH", f"/api/v1/nodes/{node['name']}", body={"state": "offline"}
                )


def node_on(stage: Stage, pair: Pair, server: MariaDB) -> str:
    """Registers a node on the server; its name."""
    name = stage.fresh(NAME)
    server.execute("CREATE DATABASE moving CHARACTER SET utf8mb4")
    pair.first.manage(
        "register_node", name, server.url.rpartition("/")[0] + "/moving", "--dedicated"
    )
    return name


@dataclass
class Played:
    """A crowd that works on the node."""

    stage: Stage
    crowd: Crowd
    members: list[Member] = field(default_factory=list)

    def begin(self, *, senders: int = 1) -> Sender:
        """Three members share the queues, and senders send; the last of these."""
        self.members = [self.crowd.join() for _ in range(3)]
        self.crowd.await_shared(self.members)
        for _ in range(senders):
            sender = self.crowd.send(EVERY_MS * senders)
        self.more(3 * QUEUES)
        return sender

    def more(self, count: int, *, limit_s: float = 60.0) -> None:
        """Waits until so many more messages have been handled."""
        goal = self.crowd.handled() + count
        until(lambda: self.crowd.handled() >= goal, limit_s=limit_s)


def run_killed(stage: Stage, pair: Pair, *, kills: int, binlog: bool = False) -> None:
    """The node is killed with -9 under sends and immediate reads: what was acknowledged is
    handled.

    Without a binary log it shows messages before they are on disk, and its disk is slow, so
    that they are shown for long: each kill comes while a log is being synced. Several
    senders share each queue, so that who sends again after a kill is another one than whose
    message had the place before. The kills leave the node little time, so a sender may meet
    none of it for delivery_timeout_ms, and is told so.
    """
    with slow_disk() as disk, own_server(stage, disk, binlog=binlog) as server:
        node = node_on(stage, pair, server)
        play = Played(stage, Crowd(stage, QUEUES, SESSION_MS, name="killed", node=node))
        play.begin(senders=3)
        took: list[float] = []
        for number in range(1, kills + 1):
            disk.set(SYNC_MS)
            play.more(stage.rng.randrange(QUEUES, 50))
            until(disk.inside, limit_s=10, every_s=0.001)
            due = time.monotonic() + stage.rng.uniform(0, SYNC_MS / 1000)
            until(lambda due=due: time.monotonic() >= due, every_s=0.001)  # type: ignore[misc]
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: not mariadb.is_alive(server), limit_s=10)
            disk.forget()
            server.start()
            back = time.monotonic()
            play.more(2 * QUEUES, limit_s=BACK_S + 40)
            took.append(time.monotonic() - back)
            if number % 10 == 0:
                stage.say(f"{number} kills, {play.crowd.handled()} messages handled")
        told = play.crowd.finish(stall_s=60)
        given_up = judge.no_errors(told, starved=True)
        judge.one_owner(told)
        count = judge.all_handled(told)
        judge.kept_ids(told, [one.name for one in play.members])
        assert max(took) <= BACK_S, (
            f"{max(took):.1f} s after its return, the limit is {BACK_S} s"
        )
        stage.say(
            f"{count} acknowledged messages were handled through {kills} kills; work went "
            "on at most "
            f"{max(took):.2f} s after the node was back; {given_up} sends were given up "
            "after their time"
        )


def run_frozen(stage: Stage, pair: Pair, *, frozen_s: float) -> None:
    """The node is frozen while another one works: that one is not disturbed, and both go on
    afterwards.
    """
    with own_server(stage) as server:
        ill = Played(
            stage,
            Crowd(stage, QUEUES, SESSION_MS, name="ill", node=node_on(stage, pair, server)),
        )
        well = Played(stage, Crowd(stage, QUEUES, SESSION_MS, name="well"))
        for play in (ill, well):
            play.begin()
        calm = time.monotonic()
        until(lambda: time.monotonic() >= calm + frozen_s, limit_s=frozen_s + 60)
        os.kill(server.pid, signal.SIGSTOP)
        frozen = time.monotonic()
        try:
            until(lambda: time.monotonic() >= frozen + frozen_s, limit_s=frozen_s + 60)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        over = time.monotonic()
        ill.more(2 * QUEUES, limit_s=BACK_S)
        took_s = time.monotonic() - over
        stories = [play.crowd.finish(stall_s=60) for play in (ill, well)]
        for told in stories:
            judge.no_errors(told)
            judge.one_owner(told)
            judge.all_handled(told)
        still = judge.no_standstill(
            judge.standstills(stories[1], calm, frozen),
            judge.standstills(stories[1], frozen, over),
            FOUND_OUT_S,
        )
        stage.say(
            "the other node: "
            f"{judge.undisturbed(stories[1], (calm, frozen), (frozen, over), LEAST_S)}; "
            f"no queue of it stood still for {still:.2f} s; the frozen one went on after "
            f"{took_s:.2f} s"
        )


def run_failover(stage: Stage, pair: Pair, *, tail_s: float) -> None:
    """The node is lost for good and its replica lacks the last `tail_s` seconds: consumers
    are told.

    With `tail_s` 0 the replica is semi-synchronous, and nothing that was acknowledged is lost.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(own_server(stage))
        home = stage.directory / "replica"
        replica = mariadb.start(
            home,
            port=free_port(),
            password=primary.password,
            options=replication.options(2),
        )
        stack.callback(replica.stop)
        if not tail_s:
            replica.execute("SET GLOBAL rpl_semi_sync_slave_enabled = 1")
            primary.execute("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'")
            primary.execute("SET GLOBAL rpl_semi_sync_master_enabled = 1")
        replication.follow(replica, primary)
        node = node_on(stage, pair, primary)
        crowd = Crowd(stage, QUEUES, SESSION_MS, name="failover", node=node)
        Failover(stage, pair, node, primary, replica, Played(stage, crowd)).run(tail_s)


@dataclass
class Failover:
    """One loss of a primary."""

    stage: Stage
    pair: Pair
    node: str
    primary: MariaDB
    replica: MariaDB
    play: Played

    def run(self, tail_s: float) -> None:
        """Plays and judges."""
        sender = self.play.begin()
        brokers = [server.broker_pid for server in self.pair.servers]
        workers = [server.workers() for server in self.pair.servers]
        if tail_s:
            replication.await_caught_up(self.replica, self.primary)
            self.replica.execute("STOP REPLICA IO_THREAD")
        else:
            active = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_status'"
            until(lambda: self.primary.execute(active)[0][1] == "ON")
        cut = time.monotonic()
        until(lambda: time.monotonic() >= cut + tail_s, limit_s=tail_s + 60)
        self.play.more(2 * QUEUES)
        os.kill(self.primary.pid, signal.SIGKILL)
        self.killed_at = time.monotonic()
        before = len(sender.told("sent"))
        if not tail_s:  # it has received more than it has applied
            self.await_applied()
        kept = self.heads()
        said = self.pair.first.manage(
            "promote_node", self.node, "--to", f"127.0.0.1:{self.replica.port}", "--yes"
        )
        self.stage.say(said.strip().replace("\n", " | "))
        gaps = {queue: (first, end) for queue, first, end in self.gaps()}
        assert {queue: first for queue, (first, _) in gaps.items()} == kept
        until(
            lambda: len(sender.told("sent")) > before + max(self.lost(gaps, sender)),
            limit_s=90,
        )
        self.finish(sender, gaps, loses=tail_s > 0)
        assert [server.broker_pid for server in self.pair.servers] == brokers
        assert [server.workers() for server in self.pair.servers] == workers, (
            "nobody was restarted"
        )

    def heads(self) -> dict[int, int]:
        """Queue → head, as the replica has it."""
        rows = self.replica.execute("SELECT queue_id, head FROM moving.queue_head")
        return {queue: head for queue, head in rows if queue in self.play.crowd.ids}

    def gaps(self) -> list[tuple[int, int, int]]:
        """(queue, first, end) of every declared gap."""
        return [
            (row[0], row[1], row[2])
            for row in self.replica.execute(
                "SELECT queue_id, from_offset, to_offset FROM moving.queue_gap"
            )
        ]

    def lost(self, gaps: dict[int, tuple[int, int]], sender: Sender) -> list[int]:
        """How many acknowledged messages of each queue are gone."""
        counts = dict.fromkeys(gaps, 0)
        for line in sender.told("sent"):
            first, end = gaps[int(str(line["queue"]))]
            counts[int(str(line["queue"]))] += first <= int(str(line["offset"])) < end
        return list(counts.values())

    def await_applied(self) -> None:
        """Wait until the replica has applied everything that it has received."""
        status = "SHOW ALL SLAVES STATUS"

        def has_applied() -> bool:
            connection = self.replica.connect()
            with closing(connection), closing(connection.cursor()) as cursor:
                cursor.execute(status)
                names = [column[0] for column in cursor.description]
                row = dict(zip(names, cursor.fetchone(), strict=True))
            received = row["Master_Log_File"], row["Read_Master_Log_Pos"]
            return received == (row["Relay_Master_Log_File"], row["Exec_Master_Log_Pos"])

        until(has_applied, limit_s=30, every_s=0.1)

    def finish(
        self, sender: Sender, gaps: dict[int, tuple[int, int]], *, loses: bool
    ) -> None:
        """End the play and judge: all messages outside of gaps were handled, none twice, and
        consumers were notified of the gaps. `loses`: some acknowledged ones are in gaps.
        """
        sender.process.end()
        receipts = [Place(line["queue"], line["offset"]) for line in sender.told("sent")]  # type: ignore[arg-type]
        assert len(set(receipts)) == len(receipts), "an offset was given twice"
        kept = {
            one
            for one in receipts
            if not gaps[one.queue][0] <= one.offset < gaps[one.queue][1]
        }
        behind = {one for one in kept if one.offset >= gaps[one.queue][1]}
        assert {one.queue for one in behind} == set(gaps), (
            "each queue went on behind its gap"
        )
        until(lambda: self.handled(kept), limit_s=90, every_s=0.2)
        told = self.play.crowd.disband()
        judge.no_errors(told)
        judge.one_owner(told)
        logs = "".join(
            one.journal.path.with_suffix(".err").read_text()
            for one in self.play.crowd.members.values()
        )
        untold = [
            queue
            for queue, (_, end) in gaps.items()
            if f"queue {queue}: its node was replaced" not in logs
        ]
        assert not untold, f"nobody was told of the gap in queues {untold}"
        gone = len(receipts) - len(kept)
        if loses:
            assert gone > 0, "the replica lacked nothing, which proves nothing"
        else:
            assert gone == 0, f"{gone} messages were lost that a replica had acknowledged"
        resumed_at = min(
            float(str(line["at"]))
            for line in sender.told("sent")
            if float(str(line["asked"])) > self.killed_at
        )
        self.stage.say(
            f"sends resumed {resumed_at - self.killed_at:.1f} s after the kill, by promote_node"
        )
        self.stage.say(
            f"{gone} acknowledged messages were lost with the primary, all in declared "
            f"gaps; {len(kept)} "
            f"others were handled, {len(behind)} of them behind the gaps; no offset was given twice"
        )

    def handled(self, wanted: set[Place]) -> bool:
        """Whether all of them were."""
        return wanted <= self.play.crowd.places()
