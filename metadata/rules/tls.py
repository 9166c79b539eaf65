"""TLS to databases: the modes of a connection, and the meaning of driver errors.

A mode and a CA file are part of a database URL (`?tls=verify&ca=/path`) or of the row
of a node. mysqlclient is compiled against one of two libraries. With MariaDB's,
REQUIRED continues in plain text if the server offers no TLS, and PREFERRED never
encrypts. So the caller checks `is_plain` after connecting. MariaDB's library from 3.4
on verifies less than VERIFY_IDENTITY promises. So the caller calls `check_driver`
before connecting.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Container, Mapping
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl


class TlsMode(StrEnum):
    OFF = "off"
    ON = "on"
    VERIFY = "verify"


MODES: Mapping[str, str] = {
    TlsMode.OFF: "off: do not ask for encryption",
    TlsMode.ON: "on: encrypt, accept any certificate",
    TlsMode.VERIFY: "verify: encrypt, verify the certificate and the host name",
}
MAX_PATH = 1000  # characters
CLIENT_SSL = 0x800  # capability bit in the greeting of a server that offers TLS
FAILURES = {
    "tls_required": "The server requires TLS. Set tls to verify, or to on.",
    "tls_not_offered": (
        "The server does not offer TLS. Give the server a certificate (ssl_cert and "
        "ssl_key), or set tls to "
        "off."
    ),
    "tls_wrong_name": (
        "The certificate of the server is not for %(host)s. Use a host name of the "
        "certificate, or give the "
        "server a certificate for this name."
    ),
    "tls_not_compared": (
        "The database driver of this machine does not compare the certificate with "
        "%(host)s. Use another "
        "name or address that the certificate has. Or set tls to off, if the server is on "
        "this machine."
    ),
    "tls_unverified_here": (
        "The environment variable MARIADB_TLS_DISABLE_PEER_VERIFICATION keeps the database "
        "driver from "
        "verifying certificates. Remove it, or set tls to on."
    ),
    "tls_expired": "The certificate of the server has expired. Renew it, then reload it on "
    "the server.",
    "tls_early": "The certificate of the server is not valid yet. Check the clocks of both "
    "machines.",
    "tls_unknown_ca": (
        "The certificate of the server was not signed by a CA of %(ca)s. Set tls_ca to the "
        "file of the CA "
        "that signed it."
    ),
    "tls_system_ca": (
        "The certificate of the server was not signed by a CA that this machine trusts. "
        "Set tls_ca to the "
        "file of the CA that signed it."
    ),
    "tls_no_ca": (
        "The CA file %(ca)s cannot be used on this machine. It must have the same path on "
        "every machine that "
        "connects, and be readable."
    ),
    "tls_no_handshake": (
        "The server and this machine do not agree on TLS (%(said)s). Check tls_version and "
        "ssl_cipher of the "
        "server."
    ),
}
# Parts of messages of OpenSSL and of both libraries, each with its key in FAILURES; the
# first match counts.
_ERROR_SIGNS = (
    ("insecure transport", "tls_required"),
    ("does not support it", "tls_not_offered"),
    ("does not offer TLS", "tls_not_offered"),
    ("doesn't support SSL", "tls_not_offered"),
    ("Validation of SSL server certificate failed", "tls_wrong_name"),
    ("Failed to verify the server certificate", "tls_wrong_name"),
    ("Hostname verification failed", "tls_wrong_name"),
    ("does not compare host names", "tls_not_compared"),
    ("TLS_DISABLE_PEER_VERIFICATION", "tls_unverified_here"),
    ("certificate has expired", "tls_expired"),
    ("not yet valid", "tls_early"),
    ("self-signed certificate", "tls_unknown_ca"),
    ("self signed certificate", "tls_unknown_ca"),
    ("issuer certificate", "tls_unknown_ca"),
    ("signature failure", "tls_unknown_ca"),  # a CA of the same name, with another key
    ("certificate verify failed", "tls_unknown_ca"),
    ("o such file", "tls_no_ca"),
    ("ermission denied", "tls_no_ca"),
    ("system lib", "tls_no_ca"),
    ("CA certificate is required", "tls_no_ca"),
)
# Hosts that MariaDB's library treats as local; it also uses a socket file for localhost.
_NOT_COMPARED = ("127.0.0.1", "::1", "localhost")
# MariaDB's library reacts to this variable whatever its value is.
_NO_VERIFY_VARIABLE = "MARIADB_TLS_DISABLE_PEER_VERIFICATION"
# For a Python whose OpenSSL looks in another place.
_DEBIAN_CAS = "/etc/ssl/certs/ca-certificates.crt"
_TLS_ERROR_NUMBERS = (2026, 3159)  # TLS failed; the server requires it


class Tls(NamedTuple):
    """TLS settings of a URL; `mode` is "" if the URL has none."""

    mode: str = ""
    ca: str = ""


class Refused(Exception):
    """The connection would be less secure than its mode. Has the arguments of a TLS error
    of the driver.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(2026, reason)


class PlainText(Refused):
    """The server does not offer TLS, so no password or query was sent."""

    def __init__(self) -> None:
        super().__init__("the server does not offer TLS")


def check_driver(mode: str, host: str, library: str, environ: Container[str]) -> None:
    """Raise Refused if the driver would not verify the certificate although `mode` is
    "verify".

    `library` is the version of mysqlclient's library, `environ` the names of the
    environment variables. MariaDB's library from 3.4 on compares no host name if it
    takes the server for local, which may be the near end of a tunnel. Versions of
    Oracle's library begin at 8.

    >>> check_driver("verify", "::1", "3.4.10", {})
    Traceback (most recent call last):
    metadata.rules.tls.Refused: (2026, 'version 3.4.10 of the driver does not compare ...')
    >>> check_driver("verify", "db1", "3.4.10", {}), check_driver("verify", "::1", "3.3.14", {})
    (None, None)
    """
    if mode != TlsMode.VERIFY:
        return
    if _NO_VERIFY_VARIABLE in environ:
        raise Refused(f"{_NO_VERIFY_VARIABLE} is set")
    # An unknown version counts as one that does not compare host names.
    numbers = re.match(r"(\d+)\.(\d+)", library)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (3, 4)
    if host in _NOT_COMPARED and (3, 4) <= version < (8, 0):
        raise Refused(
            f"version {library} of the driver does not compare host names for {host}"
        )


def connect_arguments(mode: str, ca: str) -> dict[str, Any]:
    """Return the arguments with which mysqlclient connects. Check `is_plain` after
    connecting.

    >>> connect_arguments("verify", "/etc/ca.pem")
    {'ssl_mode': 'VERIFY_IDENTITY', 'ssl': {'ca': '/etc/ca.pem'}}
    """
    if mode == TlsMode.VERIFY:
        return {"ssl_mode": "VERIFY_IDENTITY", "ssl": {"ca": ca} if ca else system_cas()}
    return {"ssl_mode": "REQUIRED"} if mode == TlsMode.ON else {}


def system_cas() -> dict[str, str]:
    """Return the CAs that the machine trusts, as arguments of mysqlclient.

    Without any CA, MariaDB's library from 3.4 on accepts a self-signed certificate if
    the server proves that it knows the password, and compares no host name. So CAs are
    always given.
    """
    paths = ssl.get_default_verify_paths()
    file = next(
        (file for file in (paths.cafile, _DEBIAN_CAS) if file and Path(file).exists()), None
    )
    return {"ca": file} if file else {"capath": paths.capath or paths.openssl_capath}


def is_plain(mode: str, capabilities: int) -> bool:
    """Return True if a connection is not encrypted although its mode requires it."""
    return mode in (TlsMode.ON, TlsMode.VERIFY) and not capabilities & CLIENT_SSL


def find_problem(mode: str, ca: str) -> str:
    """Return the problem with a mode and CA file, '' if there is none.

    >>> find_problem("on", "/etc/ca.pem")
    'is used by tls verify only: leave it out, or set tls to verify'
    """
    if mode not in MODES:
        return f"must be one of {', '.join(MODES)}, not {mode!r}"
    if ca and mode != TlsMode.VERIFY:
        return "is used by tls verify only: leave it out, or set tls to verify"
    return "must be an absolute path" if ca and not ca.startswith("/") else ""


def parse_query(query: str) -> Tls:
    """Return the TLS settings in the query of a URL. Raises ValueError.

    >>> parse_query("tls=verify&ca=/etc/ca.pem")
    Tls(mode='verify', ca='/etc/ca.pem')
    """
    if not query:
        return Tls()
    # Repeated names would be lost in the dictionary, so the pairs are counted as well.
    pairs = parse_qsl(query, keep_blank_values=True)
    values = dict(pairs)
    mode, ca = values.pop("tls", ""), values.pop("ca", "")
    if values or len(pairs) > 2 or find_problem(mode, ca):
        raise ValueError(
            "must end with ?tls=off, ?tls=on, ?tls=verify or ?tls=verify&ca=/path, or without it"
        )
    return Tls(mode, ca)


def is_local(host: str) -> bool:
    """Return True if connections to a host do not leave the machine.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("10.0.0.1"), is_local("db1")
    (True, True, False, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("/")


def classify_error(number: object, message: str, *, ca: str) -> str:
    """Return the key in FAILURES of a driver error, '' if it is no TLS error.

    >>> classify_error(2026, "TLS/SSL error: certificate has expired", ca="")
    'tls_expired'
    >>> classify_error(1045, "Access denied", ca="")
    ''
    """
    if number not in _TLS_ERROR_NUMBERS:
        return ""
    key = next((key for sign, key in _ERROR_SIGNS if sign in message), "tls_no_handshake")
    # Without a CA file the CAs of the machine were used, so another remedy applies.
    return "tls_system_ca" if not ca and key in ("tls_unknown_ca", "tls_no_ca") else key


def find_remedy(error: BaseException | None, *, host: str, ca: str) -> str:
    """Return the remedy for a driver error, '' if it is no TLS error."""
    if error is None or len(error.args) < 2:
        return ""
    key = classify_error(error.args[0], str(error.args[-1]), ca=ca)
    return FAILURES[key] % text_values(host, ca, str(error.args[-1])) if key else ""


def text_values(host: str, ca: str, message: str) -> Mapping[str, str]:
    """Return the values of the placeholders in FAILURES."""
    return {"host": host, "ca": ca, "said": message}
