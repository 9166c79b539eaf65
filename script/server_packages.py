"""Debian packages of database servers, downloaded and unpacked without an installation.

The packages of a server and of all libraries below it are unpacked into one directory. Each
program there is replaced by a script that runs it with the loader and the libraries of that
directory, so it runs on an older system, too.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from private_server import COMMON, MARIADB_INSTALL, Programs, Refused

SUITES = {"9.7": "sid", "10.11": "bookworm", "11.8": "trixie"}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEBIAN = f"deb [signed-by={KEYRING} target=Packages] http://deb.debian.org/debian {{}} main"
# {product: (its packages, tried in this order; further packages)}; Ubuntu has the version
# in names.
PACKAGES = {
    "MySQL": (
        ("mysql-server-core", "mysql-server-core-{0}", "mysql-community-server-core"),
        ("mysql-client-core{1}",),
    ),
    "MariaDB": (
        ("mariadb-server-core", "mariadb-server-core-{0}"),
        ("mariadb-client-core{1}",),
    ),
}
MYSQL_OPTIONS = (
    *COMMON,
    "--innodb-redo-log-capacity=1G",
    "--mysqlx=OFF",
    "--secure-file-priv=NULL",
)
MYSQL_CLOSED = (
    # or each server of a pair has transactions that the other one lacks
    "SET sql_log_bin=0;",
    "ALTER USER root@localhost ACCOUNT LOCK;",
)
APT_CONF = """
#clear APT::Update;
#clear DPkg;
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{0}";
Dir::State::status "{0}/status";
Dir::Cache "{0}";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
"""
WRAPPER = """#!/bin/sh
# Runs {program} with the loader and the libraries of this directory.
root="$(readlink -f "$0")" && root="${{root%/usr/*/*}}"
exec "$root/{loader}" --library-path "{libraries}" "$root/{program}.elf" "$@" {more}
"""
SERVERS = ("mysqld", "mariadbd")


class Unavailable(Refused):
    """The version cannot be had here."""

    code = 3


def product(version: str) -> str:
    """Return MySQL or MariaDB, whose versions begin at 10."""
    return "MariaDB" if int(version.partition(".")[0]) >= 10 else "MySQL"


def cached(root: Path) -> str:
    """Return the whole version of what is in the cache, "" if nothing is."""
    file = root / "version"
    return file.read_text().strip() if file.exists() else ""


def fetch(
    root: Path,
    version: str,
    sources: Sequence[str],
    *,
    more: Sequence[str] = (),
    alone: Sequence[str] = (),
) -> None:
    """Unpack a version and all it needs into `root`, whole or not at all.

    `more` are further packages, with what they depend on; `alone` are packages of the same
    version whose dependencies are left out.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with (
        (root.parent / "lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=root.parent) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if cached(root):
            return
        print(f"Downloading {product(version)} {version} …", file=sys.stderr)
        whole_version = download(Path(scratch), version, sources, more=more, alone=alone)
        unpacked = Path(scratch) / "root"
        for package in sorted(Path(scratch).glob("archives/*.deb")):
            tool("dpkg-deb", "-x", package, unpacked)
        wrap(unpacked)
        (unpacked / "version").write_text(whole_version)
        unpacked.rename(root)


def download(
    place: Path,
    version: str,
    sources: Sequence[str],
    *,
    more: Sequence[str],
    alone: Sequence[str],
) -> str:
    """Download the packages into `place`/archives; return the whole version."""
    archives = place / "archives"
    for directory in (place / "lists/partial", archives / "partial"):
        directory.mkdir(parents=True)
    (place / "apt.conf").write_text(APT_CONF.format(place))
    (place / "sources.list").write_text("".join(f"{line}\n" for line in sources))
    (place / "status").touch()
    conf = ("-qq", "-c", place / "apt.conf")
    tool("apt-get", *conf, "update")
    servers, others = PACKAGES[product(version)]
    listed = tool(
        "apt-cache", *conf, "madison", *(name.format(version) for name in servers)
    )
    rows = [[part.strip() for part in line.split("|")] for line in listed.splitlines()]
    fitting = [row for row in rows if re.match(rf"(\d+:)?{re.escape(version)}\.", row[1])]
    if not fitting:
        offered = ", ".join(row[1] for row in rows) or "no server"
        raise Unavailable(f"the apt source has {offered}")
    name, whole_version = fitting[0][:2]
    suffix = f"-{version}" if name.endswith(version) else ""
    names = [
        f"{name}={whole_version}",
        *(other.format(version, suffix) for other in others),
    ]
    tool("apt-get", *conf, "install", "-y", "--download-only", *names, *more)
    for name in alone:
        tool("apt-get", *conf, "download", f"{name}={whole_version}", cwd=archives)
    return whole_version


def tool(*command: str | Path, cwd: Path | None = None) -> str:
    """Return the output of a command of apt. Raises Unavailable with its own reason."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
        )
    except FileNotFoundError:
        raise Unavailable(
            f"{command[0]} is missing, which Debian and Ubuntu have"
        ) from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise Unavailable(
            " ".join([str(command[0]), "failed:", *(errors or [done.stderr.strip()])[:1]])
        )
    return done.stdout


def wrap(root: Path) -> None:
    """Put a script in the place of each program, which runs it with its own loader and
    libraries.
    """
    loader = next(
        iter([*root.glob("usr/lib/*/ld-linux*"), *root.glob("lib/*/ld-linux*")])
    ).relative_to(root)
    folders = [root / "lib" / loader.parent.name, root / "usr/lib" / loader.parent.name]
    libraries = [
        f"$root/{folder.relative_to(root)}" for folder in folders if folder.is_dir()
    ]
    for path in [*root.glob("usr/bin/*"), *root.glob("usr/sbin/*")]:
        if path.is_symlink() or path.open("rb").read(4) != b"\x7fELF":
            continue
        values = {
            "program": path.relative_to(root),
            "loader": loader,
            "libraries": ":".join(libraries),
        }
        path.rename(f"{path}.elf")
        more = '"--basedir=$root/usr"' if path.name in SERVERS else ""
        path.write_text(WRAPPER.format(more=more, **values))
        path.chmod(0o755)


def programs(root: Path, version: str) -> Programs:
    """Return the programs of a version that is in the cache."""
    if product(version) == "MariaDB":
        install = (
            f"{root}/usr/bin/mariadb-install-db",
            *MARIADB_INSTALL,
            f"--basedir={root}/usr",
        )
        return Programs(f"{root}/usr/sbin/mariadbd", install)
    server = f"{root}/usr/sbin/mysqld"
    return Programs(server, (server, "--initialize-insecure"), MYSQL_OPTIONS, MYSQL_CLOSED)
