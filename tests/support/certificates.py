"""Certificates of a private CA for a test server, which can switch certificates while it
runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import MySQLdb
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from metadata.rules import tls
from tests.support.mariadb import MariaDB

YEAR = timedelta(days=365)


def is_compared(host: str) -> bool:
    """Return False if the driver treats the address as local and does not compare it with
    certificates.
    """
    try:
        tls.check_driver("verify", host, MySQLdb.get_client_info(), os.environ)
    except tls.Refused:
        return False
    return True


# The address at which tests verify a database server's certificate. MariaDB 10.6 listens at
# a single address.
VERIFIED_HOST = "127.0.0.1" if is_compared("127.0.0.1") else "127.0.0.2"
HERE = tuple(
    x509.IPAddress(ip_address(host)) for host in sorted({"127.0.0.1", VERIFIED_HOST})
)


@dataclass(frozen=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def sign(
    name: str,
    ca: Signed | None,
    *,
    lasts: timedelta = YEAR,
    valid_for: Sequence[x509.GeneralName] = HERE,
) -> Signed:
    """Return a certificate that is valid since yesterday, signed by a CA; without `ca`, a
    CA itself.

    It has the extensions that VERIFY_X509_STRICT requires, the default since Python 3.13.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    draft = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + lasts)
        .add_extension(
            x509.BasicConstraints(ca=ca is None, path_length=None), critical=True
        )
    )
    issuer_key = (ca.key if ca else key).public_key()
    draft = draft.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    draft = draft.add_extension(authority_key, critical=False)
    draft = draft.add_extension(_key_usage(is_ca=ca is None), critical=True)
    if ca is not None:
        draft = draft.add_extension(x509.SubjectAlternativeName(valid_for), critical=False)
    return Signed(draft.sign(ca.key if ca else key, hashes.SHA256()), key)


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    unused = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
    )
    return x509.KeyUsage(
        digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, encipher_only=False,
        decipher_only=False, **dict.fromkeys(unused, False),
    )  # fmt: skip


class Authority:
    """A CA, and the files that a test server reads: CA certificate, server certificate and
    key.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ca = sign("CatMQ tests", None)
        self._certificate, self._key = directory / "cert.pem", directory / "key.pem"
        self._servers_ca = directory / "servers-ca.pem"
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(self._ca.certificate.public_bytes(Encoding.PEM))
        self.install(self.issue(), self._ca)

    @property
    def options(self) -> tuple[str, ...]:
        """Server options that offer TLS, also at VERIFIED_HOST."""
        bind_options = (
            ()
            if VERIFIED_HOST == "127.0.0.1"
            else (f"--bind-address=127.0.0.1,{VERIFIED_HOST}",)
        )
        return (
            *bind_options,
            f"--ssl-ca={self._servers_ca}",
            f"--ssl-cert={self._certificate}",
            f"--ssl-key={self._key}",
        )

    def issue(
        self, *, lasts: timedelta = YEAR, valid_for: Sequence[x509.GeneralName] = HERE
    ) -> Signed:
        """Return a server certificate."""
        return sign("server", self._ca, lasts=lasts, valid_for=valid_for)

    def install(self, signed: Signed, ca: Signed | None = None) -> None:
        """Write a certificate to the files that the server reads at its start or on reload."""
        self._servers_ca.write_bytes(
            (ca or self._ca).certificate.public_bytes(Encoding.PEM)
        )
        self._certificate.write_bytes(signed.certificate.public_bytes(Encoding.PEM))
        text = signed.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(
            os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        ) as file:
            file.write(text)

    @contextmanager
    def presented(
        self, server: MariaDB, signed: Signed, ca: Signed | None = None
    ) -> Iterator[None]:
        """Make a server present another certificate during the block."""
        self.install(signed, ca)
        reload(server)
        try:
            yield
        finally:
            self.install(self.issue())
            reload(server)


def reload(server: MariaDB) -> None:
    """Make a server read its certificate files again."""
    is_mariadb = "MariaDB" in server.execute("SELECT VERSION()")[0][0]
    server.execute("FLUSH SSL" if is_mariadb else "ALTER INSTANCE RELOAD TLS")
