"""TLS to nodes, as a read plan or a URL asks for it. Matches metadata/rules/tls.py, which
jobs cannot import.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Any
from urllib.parse import parse_qsl

CLIENT_SSL = 0x800  # the server's greeting has this bit if it offers TLS
# Hosts that MariaDB's library treats as local, without comparing the certificate's name.
# It connects to localhost by a socket file.
_UNVERIFIED_HOSTS = ("127.0.0.1", "::1", "localhost")
# MariaDB's library checks only whether this variable exists, not its value.
_DISABLE_VARIABLE = "MARIADB_TLS_DISABLE_PEER_VERIFICATION"
# Used if Python's OpenSSL was built with another default path.
_DEBIAN_CAS = "/etc/ssl/certs/ca-certificates.crt"


def parse_query(query: str, default: tuple[str, str]) -> tuple[str, str]:
    """Return TLS mode and CA file of a URL's query, or `default` if it is empty.

    Raises ValueError.
    """
    if not query:
        return default
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    mode, ca = options.pop("tls", ""), options.pop("ca", "")
    is_path = ca.startswith("/") and mode == "verify"
    if (
        options
        or len(pairs) > 2
        or mode not in ("off", "on", "verify")
        or (ca and not is_path)
    ):
        raise ValueError(
            "must end with ?tls=off, ?tls=on, ?tls=verify or ?tls=verify&ca=/path, or without it"
        )
    return mode, ca


def connect_arguments(mode: str, ca: str) -> dict[str, Any]:
    """Return the arguments of mysqlclient for a TLS mode.

    The caller checks `is_plain` after connecting.
    """
    if mode == "verify":
        return {"ssl_mode": "VERIFY_IDENTITY", "ssl": {"ca": ca} if ca else system_cas()}
    return {"ssl_mode": "REQUIRED"} if mode == "on" else {}


def system_cas() -> dict[str, str]:
    """Return the machine's CA certificates as mysqlclient takes them. Never empty."""
    paths = ssl.get_default_verify_paths()
    file = next(
        (file for file in (paths.cafile, _DEBIAN_CAS) if file and os.path.exists(file)),
        None,
    )
    return {"ca": file} if file else {"capath": paths.capath or paths.openssl_capath}


def find_driver_problem(mode: str, host: str, library: str) -> str:
    """Return why mysqlclient's library would not verify as `mode` asks; '' if it would.

    `library` is its version, such as 3.4.1.
    """
    if mode != "verify":
        return ""
    if _DISABLE_VARIABLE in os.environ:
        return (
            f"{_DISABLE_VARIABLE} keeps the driver from verifying certificates: remove it from the "
            "environment"
        )
    # An unknown version counts as 3.4, which has the fault.
    numbers = re.match(r"(\d+)\.(\d+)", library)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (3, 4)
    if host in _UNVERIFIED_HOSTS and (3, 4) <= version < (8, 0):
        return (
            f"version {library} of the driver does not compare host names for {host}: use "
            "another name or "
            "address that the certificate has, or set tls to off if the server is on this machine"
        )
    return ""


def is_plain(mode: str, capabilities: int) -> bool:
    """Return True if a connection is not encrypted although its mode requires it."""
    return mode in ("on", "verify") and not capabilities & CLIENT_SSL
