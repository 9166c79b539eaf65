"""TLS to nodes, as a plan or a URL gives it; as in metadata/rules/tls.py, which jobs do not
have.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Any
from urllib.parse import parse_qsl

CLIENT_SSL = 0x800  # the server's greeting has this bit if it offers TLS
# What MariaDB's library takes for local: these addresses, and a socket file, which it uses
# for localhost.
_NOT_COMPARED = ("127.0.0.1", "::1", "localhost")
# its value does not matter to MariaDB's library
_SKIPS = "MARIADB_TLS_DISABLE_PEER_VERIFICATION"
# for a Python whose OpenSSL looks elsewhere
_DEBIAN_CAS = "/etc/ssl/certs/ca-certificates.crt"


def of_query(query: str, default: tuple[str, str]) -> tuple[str, str]:
    """Return mode and CA file of a URL, those of the plan if it has none. Raises
    ValueError.
    """
    if not query:
        return default
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    mode, ca = given.pop("tls", ""), given.pop("ca", "")
    is_path = ca.startswith("/") and mode == "verify"
    if (
        given
        or len(pairs) > 2
        or mode not in ("off", "on", "verify")
        or (ca and not is_path)
    ):
        raise ValueError(
            "must end with ?tls=off, ?tls=on, ?tls=verify or ?tls=verify&ca=/path, or without it"
        )
    return mode, ca


def arguments(mode: str, ca: str) -> dict[str, Any]:
    """Return the arguments with which mysqlclient connects so; ask `is_plain` afterwards."""
    if mode == "verify":
        return {"ssl_mode": "VERIFY_IDENTITY", "ssl": {"ca": ca} if ca else system_cas()}
    return {"ssl_mode": "REQUIRED"} if mode == "on" else {}


def system_cas() -> dict[str, str]:
    """Return the CAs that the machine trusts, as mysqlclient takes them; never none."""
    paths = ssl.get_default_verify_paths()
    file = next(
        (file for file in (paths.cafile, _DEBIAN_CAS) if file and os.path.exists(file)),
        None,
    )
    return {"ca": file} if file else {"capath": paths.capath or paths.openssl_capath}


def driver_problem(mode: str, host: str, library: str) -> str:
    """Return why mysqlclient's library, of this version, would not verify as `mode` asks;
    '' if it would.
    """
    if mode != "verify":
        return ""
    if _SKIPS in os.environ:
        return (
            f"{_SKIPS} keeps the driver from verifying certificates: remove it from the "
            "environment"
        )
    numbers = re.match(r"(\d+)\.(\d+)", library)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (3, 4)
    if host in _NOT_COMPARED and (3, 4) <= version < (8, 0):
        return (
            f"version {library} of the driver does not compare host names for {host}: use "
            "another name or "
            "address that the certificate has, or set tls to off if the server is on this machine"
        )
    return ""


def is_plain(mode: str, capabilities: int) -> bool:
    """Return True if a connection is not encrypted although its mode asks for it."""
    return mode in ("on", "verify") and not capabilities & CLIENT_SSL
