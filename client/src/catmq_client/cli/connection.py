"""The connection of a command: brokers and API key, from its arguments or the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from catmq_client import Producer
from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import broker_urls, split_urls
from catmq_client.errors import (
    CatmqError,
    ConnectFailed,
    OptionError,
    Refused,
    Unauthenticated,
)
from catmq_client.http.connections import checked_verify
from catmq_client.http.failure_log import broker_hint
from catmq_client.http.transport import HttpTransport, Transport

URLS_FROM = "CATMQ_URL or --url"
NO_URL = (
    "no broker URL: set CATMQ_URL or give --url http://HOST:PORT; "
    "script/server writes both variables to var/credentials.env"
)


@dataclass(frozen=True)
class Brokers:
    """The brokers that a command uses. `transport` replaces the network, for tests."""

    listed: list[str]
    api_key: str | None
    verify: bool | str = True
    transport: Transport | None = None

    def network(self) -> Transport:
        """Return the transport of a long-running command: it discovers other brokers."""
        return self.transport or self._http_transport()

    def admin(self) -> Admin:
        # A short command needs no list of brokers, which would cost another request.
        return Admin(self.transport or self._http_transport(discover=False))

    def _http_transport(self, **options: Any) -> Transport:
        transport = HttpTransport(
            self.listed, api_key=self.api_key, verify=self.verify, **options
        )
        # Errors name the option, which programs that use the library do not have.
        transport.urls_from = URLS_FROM
        return transport

    def producer(self, **options: Any) -> Producer:
        """Return a producer, which the caller closes."""
        return Producer(transport=self.network(), **options)

    def explain(self, error: CatmqError) -> str:
        """Return the error's text, with the remedy that depends on this command line."""
        if "CERTIFICATE_VERIFY_FAILED" in error.detail:
            return f"{error}\n  If its CA is one of your own, set CATMQ_CA_FILE or give --ca-file"
        if isinstance(error, ConnectFailed):
            return f"{error}\n  {broker_hint(URLS_FROM, self.listed)}"
        if isinstance(error, Unauthenticated):
            return f"{error}\n  " + (
                "Is this a key of these brokers? It comes from CATMQ_API_KEY or --api-key"
                if self.api_key
                else "Set CATMQ_API_KEY or give --api-key"
            )
        # An answer without a problem document comes from another kind of server.
        if isinstance(error, Refused) and error.detail == f"HTTP {error.status}":
            return (
                f"{error.detail} without an explanation: is {', '.join(self.listed)} a "
                "CatMQ broker?"
            )
        field_lines = [
            f"  {field.field}: {field.message}"
            for field in error.errors
            if field.message not in error.detail
        ]
        return "\n".join([error.detail, *field_lines])


def resolve_brokers(args: argparse.Namespace, transport: Transport | None) -> Brokers:
    """Return the brokers named by arguments or environment. Raises OptionError if none is."""
    text = args.url or os.environ.get("CATMQ_URL") or ("http://test" if transport else "")
    if not text:
        raise OptionError(NO_URL)
    try:
        # argparse has checked --url, so an error here concerns the variable.
        broker_urls(text)
    except argparse.ArgumentTypeError as error:
        raise OptionError(f"CATMQ_URL: {error}") from None
    if args.ca_file:
        checked_verify(args.ca_file, name="--ca-file")
    key = args.api_key or os.environ.get("CATMQ_API_KEY") or None
    return Brokers(split_urls(text), key, args.ca_file or True, transport)


# A command gets its arguments and its brokers, and returns the exit code.
Command = Callable[[argparse.Namespace, Brokers], int]
