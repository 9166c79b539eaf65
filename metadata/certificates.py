"""Checks of certificate files that an operator configures."""

from __future__ import annotations

import ssl


def check_ca(path: str) -> None:
    """Raise ValueError with a remedy unless a file holds CA certificates in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        pass  # malformed: no certificate was loaded, which is refused below
    except OSError as error:
        why = error.strerror or "it cannot be opened"
        raise ValueError(
            f"the CA file {path} cannot be read ({why}): choose another"
        ) from None
    if not context.cert_store_stats()["x509"]:
        raise ValueError(
            f"{path} holds no certificate: give a file in PEM (-----BEGIN CERTIFICATE-----)"
        )
