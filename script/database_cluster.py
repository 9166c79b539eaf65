"""Clusters of database servers on this machine: MariaDB Galera, MySQL Group Replication.

script/cluster is the command line of this module. A cluster is a directory:

    cluster.json        kind, version, members, network
    password            of user catmq, who has all rights
    1/, 2/, 3/          a server each: data, error.log, server.pid, server.sock

All members begin with copies of one data directory, so a new cluster needs no state transfer.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster_links import Loopback, Namespaces, can_make_namespaces, free_subnet
from private_server import (
    Programs,
    Refused,
    init_statements,
    keep,
    pid_of,
    places,
    socket_path,
    wait_until,
)
from server_packages import (
    DEBIAN,
    SUITES,
    Unavailable,
    cached,
    fetch,
    programs,
)

PORT = 3306  # each member has addresses of its own, so all have the usual ports
LAUNCH_S, JOIN_S, QUERY_S = 60, 90, 5
STOP_S = 180  # a group's server that became primary by a one-way cut needed more than 60 s
MAX_MEMBERS = 9
NETWORKS = {network.name: network for network in (Loopback, Namespaces)}
# Three servers share the memory of a developer's machine.
SMALL = ("--innodb-buffer-pool-size=64M", "--max-connections=300")
LINES_OF_LOG = 6


@dataclass
class Member:
    """State of a member. `state` is the server's own word; `cut` says which links are cut."""

    member: int
    host: str
    port: int
    group_host: str
    url: str
    directory: str
    pid: int | None
    frozen: bool
    cut: str
    state: str
    size: int  # members that it sees
    primary: bool  # it is in the part of the cluster that has a majority
    writer: bool  # it takes writes


class Cluster(ABC):
    """A cluster in a directory. All methods raise Refused with a sentence for users."""

    kind: str
    title: str
    default_version: str
    client_program: str
    # One row: state, number of members, 1 if it has a majority, 1 if it takes writes.
    state_query: str
    healthy_state: str

    def __init__(self, directory: Path, cache: Path) -> None:
        self.directory = directory.resolve()
        self._cache = cache
        self._file = self.directory / "cluster.json"
        self._settings: dict[str, Any] = {}
        if self._file.exists():
            self._settings = json.loads(self._file.read_text())
            if self._settings["kind"] != self.kind:
                raise Refused(
                    f"{self.directory} has a cluster of kind {self._settings['kind']}. "
                    "Give another directory with --dir."
                )

    # -- settings -----------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return bool(self._settings)

    @property
    def members(self) -> list[int]:
        self._require()
        return list(range(1, self._settings["members"] + 1))

    @property
    def identity(self) -> str:
        """Return a short name of the directory, for names that the whole machine shares."""
        return f"{zlib.crc32(str(self.directory).encode()):08x}"

    @property
    def network(self) -> Loopback | Namespaces:
        self._require()
        return NETWORKS[self._settings["network"]](self.identity, self._settings["subnet"])

    @property
    def root(self) -> Path:
        """Return the directory of the unpacked packages."""
        return self._cache / self._settings["version"]

    @property
    def password(self) -> str:
        return (self.directory / "password").read_text()

    def place(self, member: int) -> Path:
        """Return the directory of a member. Raises Refused if there is no such member."""
        if member not in self.members:
            raise Refused(f"There is no member {member}; there are {self.members}.")
        return self.directory / str(member)

    def find_member(self, name: str) -> int:
        """Return the number of a member from its number or address. Raises Refused."""
        host = name.rpartition(":")[0] or name
        for number in self.members:
            if name == str(number) or host == self.network.client_host(number):
                return number
        raise Refused(
            f"There is no member {name}; there are {', '.join(map(str, self.members))}, and "
            f"their addresses: {', '.join(map(self.network.client_host, self.members))}."
        )

    def url(self, database: str) -> str:
        """Return the URL of a database with the addresses of all members."""
        hosts = ",".join(f"{self.network.client_host(n)}:{PORT}" for n in self.members)
        return f"mysql://catmq:{self.password}@{hosts}/{database}"

    def _require(self) -> None:
        if not self.exists:
            raise Refused(
                f"There is no cluster in {self.directory}: run script/cluster {self.kind} start."
            )

    # -- verbs --------------------------------------------------------------------------

    def start(
        self,
        member: int | None = None,
        *,
        version: str | None = None,
        members: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Start all members that do not run, or a single member, and wait until they joined."""
        if not self.exists:
            self._create(version or self.default_version, members or 3, options)
        for name, value in (("version", version), ("members", members)):
            if value not in (None, self._settings[name]):
                raise Refused(
                    f"The cluster in {self.directory} was made with {name} "
                    f"{self._settings[name]}. Give another directory with --dir."
                )
        if options:
            self._settings["options"] = list(options)
            self._file.write_text(json.dumps(self._settings))
        self._obtain()
        self.network.create(self.members)
        running = [number for number in self.members if pid_of(self.place(number))]
        wanted = self.members if member is None else [member]
        starting = [number for number in wanted if not pid_of(self.place(number))]
        if not starting:
            return
        if running:
            for number in starting:
                self._launch(number, self.join_options(number))
        else:
            self._bootstrap(starting)
        self._await(starting)

    def stop(self, member: int | None = None, *, keep_data: bool = False) -> None:
        """Stop a member cleanly, or everything. Without `keep_data` delete the cluster."""
        if member is not None:
            self._stop(member)
            return
        if not self.exists:
            return
        for number in reversed(self.members):
            if keep_data:
                self._stop(number)
            else:
                self._end(number, signal.SIGKILL)
        self.network.remove()
        if not keep_data:
            shutil.rmtree(self.directory)
            self._settings = {}

    def kill(self, member: int) -> None:
        """Kill a member's server with SIGKILL."""
        self._end(member, signal.SIGKILL)

    def freeze(self, member: int) -> None:
        """Stop a member's server with SIGSTOP: it accepts connections and never answers."""
        os.kill(self._running(member), signal.SIGSTOP)

    def cut(self, member: int, links: Sequence[str] = ("peers",)) -> None:
        """Cut a member off from the other members (peers), from clients, or from both."""
        self.place(member)
        self.network.cut(member, links)

    def heal(self, member: int | None = None) -> None:
        """Connect all links and continue frozen servers; of one member if it is given."""
        for number in self.members if member is None else [member]:
            self.network.heal(number)
            if pid := pid_of(self.place(number)):
                os.kill(pid, signal.SIGCONT)

    def status(self) -> list[Member]:
        """Return the state of each member, as the servers themselves say it."""
        return [self._member(number) for number in self.members]

    def sql(self, member: int, statements: str) -> list[list[str]]:
        """Run SQL on a member through its socket file, which works while its links are cut.

        Raises Refused with the server's error, or after QUERY_S.
        """
        command = [
            f"{self.root}/usr/bin/{self.client_program}",
            "--no-defaults",
            f"--socket={socket_path(self.place(member))}",
            "--user=catmq",
            "--batch",
            "--skip-column-names",
            f"--execute={statements}",
        ]
        # The environment, because other users can read the arguments of a process.
        environ = {**os.environ, "MYSQL_PWD": self.password}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=JOIN_S if "START GROUP" in statements else QUERY_S,
                env=environ,
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"Member {member} did not answer within {QUERY_S} s.") from None
        if done.returncode:
            raise Refused(f"Member {member}: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    # -- what differs -------------------------------------------------------------------

    @abstractmethod
    def packages(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return further packages, and those that are unpacked without dependencies."""

    def adapt_packages(self) -> None:  # noqa: B027
        """Change the unpacked packages where they need it. Does so only once."""

    @abstractmethod
    def options(self, member: int) -> list[str]:
        """Return the server's options for replication."""

    @abstractmethod
    def seed_options(self) -> list[str]:
        """Return the options of the server that makes the first data directory."""

    @abstractmethod
    def seed_statements(self) -> str:
        """Return statements for the first data directory."""

    def prepare_seed(self) -> None:  # noqa: B027
        """Run the first data directory once as a cluster of its own, if it has to."""

    @abstractmethod
    def prepare_data(self, member: int) -> None:
        """Adapt a copy of the first data directory to its member."""

    @abstractmethod
    def join_options(self, member: int) -> list[str]:
        """Return the options of a server that joins members that run."""

    @abstractmethod
    def _bootstrap(self, starting: Sequence[int]) -> None:
        """Start members while no other member runs."""

    # -- parts --------------------------------------------------------------------------

    def _create(self, version: str, members: int, options: Sequence[str]) -> None:
        """Make the directory with the data of all members."""
        if not 1 <= members <= MAX_MEMBERS:
            raise Refused(f"--members is 1 to {MAX_MEMBERS}, not {members}.")
        if self.directory.exists() and any(self.directory.iterdir()):
            raise Refused(f"{self.directory} is not empty. Give another one with --dir.")
        network = Namespaces if can_make_namespaces() else Loopback
        subnet = free_subnet(int(self.identity, 16) % 250, pattern=network.pattern)
        self._settings = {
            "kind": self.kind,
            "version": version,
            "members": members,
            "network": network.name,
            "subnet": subnet,
            "group": str(uuid.uuid4()),
            "options": list(options),
        }
        self._obtain()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep(self.directory / "password", secrets.token_hex(16))
        try:
            self.network.create(self.members)
            self._make_data()
        except BaseException:
            for number in self.members:
                self._end(number, signal.SIGKILL)
            self.network.remove()
            shutil.rmtree(self.directory)
            raise
        # Last: a directory without it is unfinished, and the next start refuses it.
        self._file.write_text(json.dumps(self._settings))

    def _make_data(self) -> None:
        seed = self.place(1)
        seed.mkdir()
        installed = programs(self.root, self._settings["version"])
        self._run(
            [installed.install[0], "--no-defaults", *places(seed), *installed.install[1:]]
        )
        statements = init_statements(installed, self.password).replace("127.0.0.1", "%")
        init = self.directory / "init.sql"
        keep(init, f"{statements}\n{self.seed_statements()}\n")
        server = self._spawn(
            1, [*self.seed_options(), f"--init-file={init}", "--skip-networking"]
        )
        self._await_socket(1, server)
        self._end(1, signal.SIGTERM)
        init.unlink()
        self.prepare_seed()
        for number in self.members[1:]:
            shutil.copytree(seed / "data", self.place(number) / "data")
        for number in self.members:
            self.prepare_data(number)

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            output = done.stderr.strip() or done.stdout.strip()
            raise Refused(f"{Path(command[0]).name} failed: {output}")
        return done.stderr + done.stdout

    def _obtain(self) -> None:
        """Download the packages if they are not in the cache. Raises Unavailable."""
        version = self._settings["version"]
        if cached(self.root):
            self.adapt_packages()
            return
        if version not in SUITES:
            raise Unavailable(f"{self.title} {version} CANNOT BE HAD here: not in Debian.")
        more, alone = self.packages()
        try:
            fetch(
                self.root,
                version,
                [DEBIAN.format(SUITES[version])],
                more=more,
                alone=alone,
            )
        except Unavailable as unavailable:
            raise Unavailable(
                f"!!! {self.title} {version} CANNOT BE HAD here: {unavailable}."
            ) from None
        self.adapt_packages()

    def _launch(self, member: int, options: Iterable[str]) -> None:
        """Start a server in its network and wait until its socket file answers."""
        process = self._spawn(
            member, [*self.options(member), *options, *self._settings["options"]]
        )
        self._await_socket(member, process)

    def _spawn(self, member: int, options: Iterable[str]) -> subprocess.Popen[bytes]:
        place = self.place(member)
        server: Programs = programs(self.root, self._settings["version"])
        unix_socket = socket_path(place)
        # MySQL takes a server that was killed for a running one while its process is a zombie.
        Path(f"{unix_socket}.lock").unlink(missing_ok=True)
        # A frozen or killed server leaves its socket file, which would look like an answer.
        Path(unix_socket).unlink(missing_ok=True)
        command = [
            *self.network.command(member),
            server.server,
            "--no-defaults",
            *places(place),
            f"--socket={unix_socket}",
            f"--pid-file={place}/server.pid",
            f"--log-error={place}/error.log",
            f"--port={PORT}",
            *server.options,
            *SMALL,
            *options,
        ]
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        return subprocess.Popen(
            command,
            start_new_session=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PATH": path},
        )

    def _await_socket(self, member: int, process: subprocess.Popen[bytes]) -> None:
        def has_started() -> bool:
            return process.poll() is not None or self._answers(member)

        if not wait_until(has_started, LAUNCH_S) or process.poll() is not None:
            # The programs of a state transfer, too. Without server.pid no later stop finds them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise Refused(f"Member {member} did not start:\n{self._log_tail(member)}")

    def _answers(self, member: int) -> bool:
        # A probe of a server that is not listening yet costs a process; so look first.
        if not Path(socket_path(self.place(member))).exists():
            return False
        try:
            return self.sql(member, "SELECT 1") == [["1"]]
        except Refused:
            return False

    def _log_tail(self, member: int) -> str:
        log = self.place(member) / "error.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(f"  {line}" for line in lines[-LINES_OF_LOG:])

    def _await(self, starting: Sequence[int]) -> None:
        """Wait until these members have joined. Raises Refused with the end of a log."""

        def late_members() -> list[int]:
            return [
                number
                for number in starting
                if self._member(number).state != self.healthy_state
            ]

        def has_ended() -> bool:
            late = late_members()
            return not late or not all(pid_of(self.place(number)) for number in late)

        wait_until(has_ended, JOIN_S)
        if late := late_members():
            for number in late:
                raise Refused(
                    f"Member {number} did not join, or not within {JOIN_S} s:\n"
                    f"{self._log_tail(number)}"
                )

    def _member(self, number: int) -> Member:
        place = self.place(number)
        pid = pid_of(place)
        frozen = pid is not None and is_stopped(pid)
        state, size, primary, writer = "stopped" if pid is None else "frozen", "0", "0", "0"
        if pid is not None and not frozen:
            try:
                ((state, size, primary, writer),) = self.sql(number, self.state_query)
            except (Refused, ValueError):
                state = "not answering"
        host = self.network.client_host(number)
        return Member(
            member=number,
            host=host,
            port=PORT,
            group_host=self.network.group_host(number),
            url=f"mysql://catmq:{self.password}@{host}:{PORT}/catmq",
            directory=str(place),
            pid=pid,
            frozen=frozen,
            cut=self.network.is_cut(number),
            state=state,
            size=int(size),
            primary=primary == "1",
            writer=writer == primary == "1",
        )

    def _running(self, member: int) -> int:
        pid = pid_of(self.place(member))
        if pid is None:
            raise Refused(f"Member {member} does not run.")
        return pid

    def _stop(self, member: int) -> None:
        """Stop a server cleanly; it continues first if it is frozen."""
        if pid := pid_of(self.place(member)):
            os.kill(pid, signal.SIGCONT)
            self._end(member, signal.SIGTERM)

    def _end(self, member: int, number: signal.Signals) -> None:
        """Send a signal to a server, if it runs, and wait for its end."""
        place = self.place(member)
        pid = pid_of(place)
        if pid is None:
            return
        os.kill(pid, number)
        if not wait_until(lambda: pid_of(place) is None, STOP_S):
            raise Refused(
                f"Member {member} (pid {pid}) did not end within {STOP_S} s:\n"
                f"{self._log_tail(member)}"
            )


def is_stopped(pid: int) -> bool:
    """Return True if a process was stopped by SIGSTOP."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


class Galera(Cluster):
    """MariaDB servers with Galera's library: every member takes writes."""

    kind, title, default_version = "galera", "MariaDB Galera", "10.11"
    client_program = "mariadb"
    state_query = (
        "SELECT MAX(IF(VARIABLE_NAME='wsrep_local_state_comment', VARIABLE_VALUE, '')),"
        " MAX(IF(VARIABLE_NAME='wsrep_cluster_size', VARIABLE_VALUE + 0, 0)),"
        " MAX(VARIABLE_NAME='wsrep_cluster_status' AND VARIABLE_VALUE='Primary'),"
        " MAX(VARIABLE_NAME='wsrep_ready' AND VARIABLE_VALUE='ON')"
        " FROM information_schema.global_status"
    )
    healthy_state = "Synced"

    @property
    def root(self) -> Path:
        return self._cache / "galera" / str(self._settings["version"])

    def packages(self) -> tuple[Sequence[str], Sequence[str]]:
        # mariadb-server has the scripts of state transfers. What it depends on is for a
        # service of the system.
        return ("galera-4", "rsync", "lsof"), ("mariadb-server",)

    def options(self, member: int) -> list[str]:
        host = self.network.group_host(member)
        addresses = ",".join(self.network.group_host(number) for number in self.members)
        provider_options = (
            f"base_host={host}",
            f"gmcast.listen_addr=tcp://{host}:4567",
            f"ist.recv_addr={host}:4568",
            "gcache.size=64M",
        )
        return [
            "--bind-address=" + ("0.0.0.0" if host.startswith("198.") else host),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--innodb-log-file-size=64M",
            "--wsrep-on=ON",
            f"--wsrep-provider={self.root}/usr/lib/galera/libgalera_smm.so",
            f"--wsrep-provider-options={';'.join(provider_options)}",
            f"--wsrep-cluster-name=catmq-{self.identity}",
            f"--wsrep-cluster-address=gcomm://{addresses}",
            f"--wsrep-node-address={host}",
            f"--wsrep-node-incoming-address={self.network.client_host(member)}:{PORT}",
            f"--wsrep-node-name=member{member}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={host}:4444",
        ]

    def seed_options(self) -> list[str]:
        return ["--wsrep-on=OFF", "--innodb-log-file-size=64M"]

    def seed_statements(self) -> str:
        return ""

    def prepare_seed(self) -> None:
        # With the same position in all copies, nobody needs a state transfer. A file says
        # it, and InnoDB says it after a transaction of a cluster.
        self._write_position(1, 0, bootstrap=True)
        self._launch(1, ["--wsrep-new-cluster"])
        self._await([1])
        self.sql(1, "CREATE DATABASE seed; DROP DATABASE seed")
        self._end(1, signal.SIGTERM)

    def prepare_data(self, member: int) -> None:
        position = self._position(member)
        for name in ("gvwstate.dat", "galera.cache"):
            (self.place(member) / "data" / name).unlink(missing_ok=True)
        self._write_position(member, position, bootstrap=member == 1)

    def adapt_packages(self) -> None:
        """Make rsync usable for state transfers, whose scripts find it beside the server."""
        wrapper = self.root / "usr/bin/rsync"
        text = wrapper.read_text()
        named_loader = self.root / "usr/lib/catmq/rsync"
        if named_loader.exists():
            return
        # The scripts look for a process named rsync. Unpacked programs have the name of the
        # loader that runs them, so a copy of the loader gets that name.
        (loader,) = re.findall(r'exec "\$root/(\S+)"', text)
        # A daemon of rsync that root starts becomes nobody, who may not write into data
        # directories.
        as_root = 'case "$(id -u) $*" in "0 "*--daemon*) set -- "$@" -M uid=root -M gid=root; esac'
        text = text.replace(f"$root/{loader}", "$root/usr/lib/catmq/rsync")
        wrapper.write_text(text.replace("\nexec ", f"\n{as_root}\nexec "))
        named_loader.parent.mkdir(exist_ok=True)
        shutil.copy(self.root / loader, named_loader)

    def _write_position(self, member: int, seqno: int, *, bootstrap: bool) -> None:
        (self.place(member) / "data/grastate.dat").write_text(
            "# GALERA saved state\nversion: 2.1\n"
            f"uuid:    {self._settings['group']}\nseqno:   {seqno}\n"
            f"safe_to_bootstrap: {int(bootstrap)}\n"
        )

    def _position(self, member: int) -> int:
        """Return the last transaction that a stopped member has, -1 if it is unknown."""
        state = (self.place(member) / "data/grastate.dat").read_text()
        seqno = int(re.findall(r"seqno:\s*(-?\d+)", state)[0])
        if seqno >= 0:
            return seqno
        # A server that was killed did not write it. InnoDB has it.
        place = self.place(member)
        server = programs(self.root, self._settings["version"])
        output = self._run(
            [
                server.server,
                "--no-defaults",
                *places(place),
                f"--socket={place}/recover.sock",
                f"--pid-file={place}/recover.pid",
                "--skip-networking",
                *SMALL,
                "--innodb-log-file-size=64M",
                "--wsrep-recover",
            ]
        )
        recovered = re.findall(r"Recovered position:? [0-9a-f-]{36}:(\d+)", output)
        return int(recovered[-1]) if recovered else -1

    def join_options(self, member: int) -> list[str]:
        # As the service of the system does; without a position it copies a whole member.
        position = self._position(member)
        if position < 0:
            return []
        return [f"--wsrep-start-position={self._settings['group']}:{position}"]

    def _bootstrap(self, starting: Sequence[int]) -> None:
        positions = {number: self._position(number) for number in starting}
        first = max(positions, key=lambda number: (positions[number], -number))
        for number in starting:
            # A view from before a kill: the server would wait for its members instead.
            (self.place(number) / "data/gvwstate.dat").unlink(missing_ok=True)
        self._write_position(first, positions[first], bootstrap=True)
        self._launch(first, ["--wsrep-new-cluster"])
        self._await([first])
        for number in starting:
            if number != first:
                self._launch(number, self.join_options(number))


class GroupReplication(Cluster):
    """MySQL servers in single-primary mode: the primary takes writes."""

    kind, title, default_version = "group", "MySQL Group Replication", "9.7"
    client_program = "mysql"
    state_query = (
        "SELECT MAX(IF(MEMBER_ID = @@server_uuid, MEMBER_STATE, '')), COUNT(*),"
        " SUM(MEMBER_STATE IN ('ONLINE', 'RECOVERING')) * 2 > COUNT(*),"
        " MAX(MEMBER_ID = @@server_uuid AND MEMBER_ROLE = 'PRIMARY')"
        " AND NOT @@super_read_only"
        " FROM performance_schema.replication_group_members"
    )
    healthy_state = "ONLINE"

    def packages(self) -> tuple[Sequence[str], Sequence[str]]:
        return (), ()

    def options(self, member: int) -> list[str]:
        host, client_host = (
            self.network.group_host(member),
            self.network.client_host(member),
        )
        seeds = ",".join(
            f"{self.network.group_host(number)}:33061" for number in self.members
        )
        network = host.rpartition(".")[0]
        return [
            "--bind-address=" + ("0.0.0.0" if host.startswith("198.") else host),
            *self.seed_options(),
            f"--server-id={member}",
            "--max-binlog-size=64M",
            "--innodb-redo-log-capacity=128M",
            f"--report-host={client_host}",
            f"--report-port={PORT}",
            "--plugin-load-add=group_replication.so",
            f"--group-replication-group-name={self._settings['group']}",
            f"--group-replication-local-address={host}:33061",
            f"--group-replication-group-seeds={seeds}",
            f"--group-replication-ip-allowlist={network}.0/24",
            f"--group-replication-advertise-recovery-endpoints={host}:{PORT}",
            "--group-replication-recovery-get-public-key=ON",
            "--group-replication-message-cache-size=134217728",
        ]

    def seed_options(self) -> list[str]:
        return [
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--log-bin=binlog",
            "--server-id=1",
        ]

    def seed_statements(self) -> str:
        # The account for members that catch up from another member.
        return (
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER='catmq',"
            f" SOURCE_PASSWORD='{self.password}' FOR CHANNEL 'group_replication_recovery';"
        )

    def prepare_data(self, member: int) -> None:
        # The server makes an identity of its own.
        (self.place(member) / "data/auto.cnf").unlink(missing_ok=True)

    def join_options(self, member: int) -> list[str]:
        return ["--group-replication-start-on-boot=ON"]

    def _bootstrap(self, starting: Sequence[int]) -> None:
        for number in starting:
            self._launch(number, ["--group-replication-start-on-boot=OFF"])
        first = starting[0]
        for number in starting[1:]:
            (executed,) = self.sql(number, "SELECT REPLACE(@@gtid_executed, '\\n', '')")[0]
            subset = f"SELECT GTID_SUBSET('{executed}', @@gtid_executed)"
            if self.sql(first, subset) == [["0"]]:
                first = number
        self.sql(
            first,
            "SET GLOBAL group_replication_bootstrap_group=ON; START GROUP_REPLICATION;"
            " SET GLOBAL group_replication_bootstrap_group=OFF",
        )
        self._await([first])
        for number in starting:
            if number != first:
                self.sql(number, "START GROUP_REPLICATION")


KINDS: dict[str, type[Cluster]] = {kind.kind: kind for kind in (Galera, GroupReplication)}


def as_json(members: Sequence[Member]) -> str:
    """Return the state of members as JSON, for programs."""
    return json.dumps([asdict(member) for member in members])


def as_text(members: Sequence[Member]) -> str:
    """Return the state of members as a table."""
    lines = [f"{'member':8}{'address':22}{'state':16}{'links':10}{'sees':6}writes"]
    for member in members:
        links = f"cut: {member.cut}" if member.cut else "up"
        writes = "yes" if member.writer else "no"
        majority = "" if member.primary or not member.size else "  (no majority)"
        lines.append(
            f"{member.member:<8}{f'{member.host}:{member.port}':22}{member.state:16}"
            f"{links:10}{member.size:<6}{writes}{majority}"
        )
    return "\n".join(lines)
