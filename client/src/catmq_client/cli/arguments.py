"""Types of arguments: functions that convert text, or state which text is accepted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

# Most queues of a topic.
MAX_QUEUES = 256
UNITS_MS = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS = tuple(UNITS_MS)
SPAN = re.compile(r"(\d{1,12})(ms|[smhd]?)", re.ASCII)
SIZES = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,6})?)(|[KMGT]B)", re.ASCII | re.IGNORECASE)
TIME_AGO = re.compile(r"-(\d{1,10})([smhd])", re.ASCII)
# A value that looks like an option. -h is the option for help.
DASHED = re.compile(r"-(?!h$)[^-].*", re.DOTALL)
POSITIONS = (
    "earliest, latest, an OFFSET, a TIME like 2026-03-01T12:00, or a time ago like "
    "-15m (s, m, h, d)"
)
GROUP_PREFIX = "group:"
RESET_POSITIONS = f"{POSITIONS}, or group:NAME for the offsets of another group"


def argument_error(text: str) -> argparse.ArgumentTypeError:
    """Return the error that argparse prints after the argument's name, with exit code 2."""
    return argparse.ArgumentTypeError(text)


def is_text(argument: str) -> bool:
    r"""Return True if an argument was UTF-8.

    Python keeps other bytes as surrogates, which cannot be sent.

    >>> is_text("né"), is_text("\udcff")
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def escape_bytes(argument: str) -> str:
    r"""Return an argument with its bytes that are not UTF-8 as `\xff`.

    >>> print(escape_bytes("caf\udce9"))
    caf\xe9
    """
    return argument.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a type for whole numbers in a range."""
    expected = f"a whole number from {minimum}" + (
        f" to {maximum}" if maximum is not None else ""
    )

    def parse(text: str) -> int:
        # int() also accepts signs, underscores and digits of other scripts.
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) < minimum:
            raise argument_error(f"{text!r}: give {expected}")
        if maximum is not None and int(text) > maximum:
            raise argument_error(f"{text!r}: give {expected}")
        return int(text)

    return parse


def or_none(parse_value: Callable[[str], int]) -> Callable[[str], int | None]:
    """Return a type that also accepts `none`, as None."""

    def parse(text: str) -> int | None:
        if text == "none":
            return None
        try:
            return parse_value(text)
        except argparse.ArgumentTypeError as error:
            raise argument_error(f"{error}, or none") from None

    return parse


def byte_size(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a type for a number of bytes, or of KB, MB, GB or TB (powers of 1,024).

    >>> byte_size(1, 1 << 40)("512"), byte_size(1, 1 << 40)("1.5GB")
    (512, 1610612736)
    """
    expected = (
        f"bytes or a size like 500MB or 1.5GB, from {format_size(minimum)} "
        f"to {format_size(maximum)}"
    )

    def parse(text: str) -> int:
        match = SIZE.fullmatch(text)
        value = int(float(match[1]) * SIZES[match[2].upper()]) if match else -1
        if not minimum <= value <= maximum:
            raise argument_error(f"{text!r}: give {expected}")
        return value

    return parse


def format_size(count: int) -> str:
    """Return a number of bytes in the largest unit in which it is whole.

    >>> format_size(1 << 20), format_size(1536), format_size(0)
    ('1MB', '1536', '0')
    """
    for unit, weight in reversed(SIZES.items()):
        if count and count % weight == 0:
            return f"{count // weight}{unit}"
    return str(count)


def positive_seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII) or float(text) == 0:
        raise argument_error(f"{text!r}: give seconds above 0, for example 5 or 0.5")
    return float(text)


def broker_urls(text: str) -> str:
    """Check the URLs of `--url` and return the text."""
    for url in split_urls(text):
        if not is_url(url):
            raise argument_error(
                f"{url!r} is not a broker URL: give http://HOST:PORT, several with commas"
            )
    if not split_urls(text):
        raise argument_error(
            "no broker URL in it: give http://HOST:PORT, several with commas"
        )
    return text


def is_url(text: str) -> bool:
    """Return True for a URL of a broker.

    >>> is_url("http://[::1]:8000"), is_url("http://[::1"), is_url("ftp://x"), is_url("http://x:port")
    (True, False, False, False)
    """
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        )
    except ValueError:
        # an unbalanced bracket, or a port that is no number
        return False


def split_urls(text: str) -> list[str]:
    return [url.strip() for url in text.split(",") if url.strip()]


def parse_header(text: str) -> tuple[str, str]:
    """Return the name and value of a NAME=VALUE option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argument_error(f"{text!r}: give NAME=VALUE")
    return name, value


def parse_header_filter(text: str) -> tuple[str, list[str]]:
    """Return a header's name and its accepted values; nothing for an empty text.

    >>> parse_header_filter("region=eu,us"), parse_header_filter("")
    (('region', ['eu', 'us']), ('', []))
    """
    if not text:
        return "", []
    name, equals, values = text.partition("=")
    if not equals or not name:
        raise argument_error(f"{text!r}: give NAME=VALUE or NAME=VALUE,VALUE")
    return name, values.split(",")


class HeaderFilterAction(argparse.Action):
    """Collects repeated options of `parse_header_filter` in a dict of names and values.

    An empty option alone gives an empty dict, which removes the filter.
    """

    def __call__(
        self,
        parser: object,
        namespace: argparse.Namespace,
        values: Any,
        option: object = None,
    ) -> None:
        name, header_values = values
        filters = getattr(namespace, self.dest, {})
        if name:
            filters = {**filters, name: [*filters.get(name, ()), *header_values]}
        setattr(namespace, self.dest, filters)


def time_span(
    minimum: int,
    maximum: int,
    expected: str,
    *,
    units: Collection[str] = UNITS,
    unit_ms: int = 1,
) -> Callable[[str], int]:
    """Return a type for a span of time, in ms or in units of `unit_ms`.

    `units` are the accepted units, with "" for seconds without a unit.

    >>> time_span(1, 10_000, "a span")("500ms"), time_span(0, 300, "a span", unit_ms=1000)("5m")
    (500, 300)
    """

    def parse(text: str) -> int:
        match = SPAN.fullmatch(text.strip())
        unit_accepted = match is not None and match[2] in units
        value = (
            int(match[1]) * UNITS_MS[match[2]] // unit_ms if match and unit_accepted else -1
        )
        if not minimum <= value <= maximum:
            raise argument_error(f"{text!r}: give {expected}")
        return value

    return parse


@dataclass(frozen=True)
class Target:
    """Target of a reset of offsets. `to` determines which of the other fields is set."""

    to: Literal["earliest", "latest", "offset", "time", "group"]
    offset: int | None = None
    # since 1970 UTC
    at_ms: int | None = None
    # back from now by the clock of the server
    ago_ms: int | None = None
    source_group: str | None = None


def parse_target(text: str) -> Target:
    """Return the position that an option like `--to` names.

    >>> parse_target("-15m").ago_ms, parse_target("1970-01-01T00:01Z").at_ms
    (900000, 60000)
    >>> parse_target("42").offset
    42
    """
    named_targets = {"earliest": Target("earliest"), "latest": Target("latest")}
    if text in named_targets:
        return named_targets[text]
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return Target("offset", offset=int(text))
    ago = TIME_AGO.fullmatch(text)
    if ago:
        return Target("time", ago_ms=int(ago[1]) * UNITS_MS[ago[2]])
    # A time without a zone is local time of this machine.
    try:
        return Target("time", at_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise argument_error(f"{text!r}: give {POSITIONS}") from None


def parse_reset_target(text: str) -> Target:
    """Return a position, or the offsets of another group.

    >>> parse_reset_target("group:shipping").source_group, parse_reset_target("latest").to
    ('shipping', 'latest')
    """
    if text.startswith(GROUP_PREFIX):
        name = text.removeprefix(GROUP_PREFIX)
        if not name:
            raise argument_error(f"{text!r}: give group:NAME")
        return Target("group", source_group=name)
    try:
        return parse_target(text)
    except argparse.ArgumentTypeError:
        raise argument_error(f"{text!r}: give {RESET_POSITIONS}") from None


def join_dashed_values(argv: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the arguments with `--from -2h` as `--from=-2h`.

    argparse would take -2h for an option. `options` are the options with a value. An
    argument with two dashes is left alone: it is a misspelt option.

    >>> join_dashed_values(["find", "t", "--from", "-2h", "--key", "-7", "--max", "--tag"],
    ...     {"--from", "--key", "--max"})
    ['find', 't', '--from=-2h', '--key=-7', '--max', '--tag']
    """
    arguments: list[str] = []
    for argument in argv:
        if arguments and arguments[-1] in options and DASHED.fullmatch(argument):
            arguments[-1] = f"{arguments[-1]}={argument}"
        else:
            arguments.append(argument)
    return arguments


def options_with_value(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a parser and its subcommands that take a value."""
    options: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options = options.union(
                *(options_with_value(subparser) for subparser in action.choices.values())
            )
        # nargs is None for options with exactly 1 value; flags have 0.
        elif action.nargs is None:
            options.update(action.option_strings)
    return options
