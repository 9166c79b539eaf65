"""Networks of a cluster of database servers, whose links can be cut.

As root each member runs in a network namespace of its own. It has two interfaces: one to
clients, one to the other members. Both end in bridges of a further namespace, the hub. To
cut a link, its port leaves the bridge: packets vanish silently, as on a broken switch, and
both ends still believe in the link. So nothing passes by: not the addresses that members
learn from each other, not connections that are open already.

Without root all members listen on loopback addresses, and links cannot be cut.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from private_server import Refused

# 198.18.0.0/15 is reserved for tests of networks (RFC 2544), so no real host is hidden.
CLIENTS, GROUP = "198.18.{}.{}", "198.19.{}.{}"
LOOPBACK = "127.77.{}.{}"
LINKS = ("peers", "clients")  # of a member, named as their bridges
FROM_PEERS = "from peers"  # what the other members send; what it sends itself arrives
HOST = 254  # the last part of this machine's address in the clients' network
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def can_make_namespaces() -> bool:
    """Return True if this process may make network namespaces."""
    if os.geteuid() or not shutil.which("ip", path=PATH):
        return False
    probe = f"catmq-probe-{os.getpid()}"
    if run_ip("netns", "add", probe, check=False):
        return False
    run_ip("netns", "del", probe)
    return True


def run_ip(*arguments: str, check: bool = True) -> int:
    """Run iproute2's `ip`, and return its exit code. Raises Refused if it fails."""
    environ = {**os.environ, "PATH": PATH}
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=False, env=environ
    )
    if check and done.returncode:
        raise Refused(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.returncode


def free_subnet(first: int, *, pattern: str) -> int:
    """Return a number from 1 to 250 whose subnet of `pattern` no interface has."""
    addresses = Path("/proc/net/fib_trie").read_text()
    for step in range(250):
        number = (first + step) % 250 + 1
        if pattern.format(number, "") not in addresses:
            return number
    raise Refused("All subnets of clusters are in use: stop some with script/cluster stop.")


class Loopback:
    """Members on loopback addresses: for users without root. Links cannot be cut."""

    name = "loopback"
    pattern = LOOPBACK

    def __init__(self, identity: str, subnet: int) -> None:
        self._subnet = subnet

    def client_host(self, member: int) -> str:
        return LOOPBACK.format(self._subnet, member)

    group_host = client_host

    def create(self, members: Sequence[int]) -> None:
        """Do nothing: loopback addresses need no setup."""

    def remove(self) -> None:
        """Do nothing."""

    def command(self, member: int) -> list[str]:
        """Return the command that the member's server is started through."""
        return []

    def cut(self, member: int, links: Sequence[str]) -> None:
        raise Refused(
            "Links can be cut only between network namespaces: run script/cluster as root, "
            "with the package iproute2."
        )

    def heal(self, member: int) -> None:
        """Do nothing, since no link can be cut."""

    def is_cut(self, member: int) -> str:
        """Return which links of a member are cut: "", since none can be."""
        return ""


class Namespaces:
    """Members in network namespaces, named `catmq-IDENTITY-N`, around a hub."""

    name = "namespaces"
    pattern = CLIENTS

    def __init__(self, identity: str, subnet: int) -> None:
        self._prefix, self._subnet = f"catmq-{identity}", subnet
        self._hub = f"{self._prefix}-hub"
        self._host_end = f"cq{identity}"  # the kernel allows 15 characters

    def client_host(self, member: int) -> str:
        """Return the address that clients connect to."""
        return CLIENTS.format(self._subnet, member)

    def group_host(self, member: int) -> str:
        """Return the address that the other members connect to."""
        return GROUP.format(self._subnet, member)

    def create(self, members: Sequence[int]) -> None:
        """Make all namespaces and links, if they are not there."""
        namespaces = [self._namespace(member) for member in members]
        if all(Path("/run/netns", name).exists() for name in (self._hub, *namespaces)):
            return
        self.remove()  # a start that failed halfway
        try:
            self._create(members)
        except BaseException:
            self.remove()
            raise

    def _create(self, members: Sequence[int]) -> None:
        run_ip("netns", "add", self._hub)
        for bridge in ("clients", "peers"):
            run_ip("-n", self._hub, "link", "add", bridge, "type", "bridge")
            run_ip("-n", self._hub, "link", "set", bridge, "up")
        # The host's end: clients of all members come through it.
        self._add_link(self._host_end, "host", bridge="clients")
        self._set_up(self._host_end, CLIENTS.format(self._subnet, HOST))
        for member in members:
            namespace = self._namespace(member)
            run_ip("netns", "add", namespace)
            run_ip("-n", namespace, "link", "set", "lo", "up")
            for network, host in (
                ("clients", self.client_host(member)),
                ("peers", self.group_host(member)),
            ):
                self._add_link(network, f"{network}{member}", network, namespace)
                self._set_up(network, host, namespace)

    def _add_link(self, end: str, port: str, bridge: str, namespace: str = "") -> None:
        """Connect an interface `end` to a bridge of the hub, through `port`."""
        inside = ["netns", namespace] if namespace else []
        run_ip(
            *("link", "add", "name", f"{self._host_end}-new", "type", "veth"),
            *("peer", "name", port, "netns", self._hub),
        )
        run_ip("link", "set", f"{self._host_end}-new", "name", end, *inside)
        run_ip("-n", self._hub, "link", "set", port, "master", bridge, "up")

    def _set_up(self, interface: str, host: str, namespace: str = "") -> None:
        inside = ["-n", namespace] if namespace else []
        run_ip(*inside, "address", "add", f"{host}/24", "dev", interface)
        run_ip(*inside, "link", "set", interface, "up")

    def _namespace(self, member: int) -> str:
        return f"{self._prefix}-{member}"

    def remove(self) -> None:
        """Delete all namespaces of this cluster. The kernel deletes their interfaces."""
        for file in Path("/run/netns").glob(f"{self._prefix}-*"):
            run_ip("netns", "del", file.name)
        # The kernel deletes a namespace later than its name, and the host's end with it.
        run_ip("link", "del", self._host_end, check=False)

    def command(self, member: int) -> list[str]:
        """Return the command that the member's server is started through."""
        return ["ip", "netns", "exec", self._namespace(member)]

    def cut(self, member: int, links: Sequence[str]) -> None:
        """Cut these of a member's LINKS, or FROM_PEERS."""
        for link in links:
            if link == FROM_PEERS:
                # The bridge does not know where the member is, and may not try this port.
                self._set_bridging(member, "off", "fdb_flush")
            else:
                run_ip("-n", self._hub, "link", "set", f"{link}{member}", "nomaster")

    def heal(self, member: int) -> None:
        """Connect all links of a member."""
        for link in LINKS:
            run_ip("-n", self._hub, "link", "set", f"{link}{member}", "master", link)
        self._set_bridging(member, "on")

    def _set_bridging(self, member: int, state: str, *more: str) -> None:
        options = [
            word
            for option in ("learning", "flood", "mcast_flood", "bcast_flood")
            for word in (option, state)
        ]
        port = ("dev", f"peers{member}", "type", "bridge_slave")
        run_ip("-n", self._hub, "link", "set", *port, *options, *more)

    def is_cut(self, member: int) -> str:
        """Return which links of a member are cut: "", "peers", "clients", "all" or
        "from peers".
        """
        environ = {**os.environ, "PATH": PATH}
        shown = subprocess.run(
            ["ip", "-n", self._hub, "-j", "-d", "link"],
            capture_output=True,
            check=False,
            env=environ,
        )
        ports = {port["ifname"]: port for port in json.loads(shown.stdout or b"[]")}
        cut = [link for link in LINKS if "master" not in ports.get(f"{link}{member}", {})]
        peers = ports.get(f"peers{member}", {}).get("linkinfo", {})
        if not cut and not peers.get("info_slave_data", {}).get("flood", True):
            return FROM_PEERS
        return "all" if len(cut) == len(LINKS) else "".join(cut)
