"""Kinds of argument: each turns text into a value, or says which text would do."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

MAX_QUEUES = 256  # of a topic
UNITS_MS = {"ms": 1, "": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS = tuple(UNITS_MS)
SPAN = re.compile(r"(\d{1,12})(ms|[smhd]?)", re.ASCII)
SIZES = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,6})?)(|[KMGT]B)", re.ASCII | re.IGNORECASE)
AGO = re.compile(r"-(\d{1,10})([smhd])", re.ASCII)
# a value that looks like an option; -h is one
DASHED = re.compile(r"-(?!h$)[^-].*", re.DOTALL)
POSITIONS = (
    "earliest, latest, an OFFSET, a TIME like 2026-03-01T12:00, or a time ago like "
    "-15m (s, m, h, d)"
)
OF_GROUP = "group:"
RESET_POSITIONS = f"{POSITIONS}, or group:NAME for the offsets of another group"


def wrong(text: str) -> argparse.ArgumentTypeError:
    """Return the error that argparse prints with the argument's name before it; exit code
    2.
    """
    return argparse.ArgumentTypeError(text)


def is_text(word: str) -> bool:
    r"""Tell whether an argument was UTF-8; Python keeps other bytes as surrogates, which
    nothing can send.

    >>> is_text("né"), is_text("\udcff")
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in word)


def shown_bytes(word: str) -> str:
    r"""Return an argument with its bytes that are not UTF-8 as `\xff`.

    >>> print(shown_bytes("caf\udce9"))
    caf\xe9
    """
    return word.encode(errors="backslashreplace").decode().replace("\\udc", "\\x")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in a range."""
    wanted = f"a whole number from {least}" + (f" to {most}" if most is not None else "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) < least:
            raise wrong(f"{text!r}: give {wanted}")
        if most is not None and int(text) > most:
            raise wrong(f"{text!r}: give {wanted}")
        return int(text)

    return parse


def or_none(kind: Callable[[str], int]) -> Callable[[str], int | None]:
    """The same, or `none`."""

    def parse(text: str) -> int | None:
        if text == "none":
            return None
        try:
            return kind(text)
        except argparse.ArgumentTypeError as error:
            raise wrong(f"{error}, or none") from None

    return parse


def size(least: int, most: int) -> Callable[[str], int]:
    """A number of bytes, or of KB, MB, GB or TB, which are powers of 1,024.

    >>> size(1, 1 << 40)("512"), size(1, 1 << 40)("1.5GB"), size(1, 1 << 40)("20mb")
    (512, 1610612736, 20971520)
    """
    wanted = f"bytes or a size like 500MB or 1.5GB, from {shown(least)} to {shown(most)}"

    def parse(text: str) -> int:
        found = SIZE.fullmatch(text)
        value = int(float(found[1]) * SIZES[found[2].upper()]) if found else -1
        if not least <= value <= most:
            raise wrong(f"{text!r}: give {wanted}")
        return value

    return parse


def shown(count: int) -> str:
    """A number of bytes in the largest unit that it is a whole number of.

    >>> shown(1 << 20), shown(1536), shown(0)
    ('1MB', '1536', '0')
    """
    for unit, weight in reversed(SIZES.items()):
        if count and count % weight == 0:
            return f"{count // weight}{unit}"
    return str(count)


def seconds(text: str) -> float:
    """A span in seconds, above 0."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII) or float(text) == 0:
        raise wrong(f"{text!r}: give seconds above 0, for example 5 or 0.5")
    return float(text)


def url(text: str) -> str:
    for part in urls(text):
        if not is_url(part):
            raise wrong(
                f"{part!r} is not a broker URL: give http://HOST:PORT, several with commas"
            )
    if not urls(text):
        raise wrong("no broker URL in it: give http://HOST:PORT, several with commas")
    return text


def is_url(text: str) -> bool:
    """Return True for a URL of a broker.

    >>> is_url("http://[::1]:8000"), is_url("http://[::1"), is_url("ftp://x"), is_url("http://x:port")
    (True, False, False, False)
    """
    try:
        split = urlsplit(text)
        return (
            split.scheme in {"http", "https"} and bool(split.hostname) and split.port != 0
        )
    except ValueError:  # a bracket without its other one, a port that is no number
        return False


def urls(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise wrong(f"{text!r}: give NAME=VALUE")
    return name, value


def accepted(text: str) -> tuple[str, list[str]]:
    """A header with the values that a filter takes; nothing for an empty text.

    >>> accepted("region=eu,us"), accepted("")
    (('region', ['eu', 'us']), ('', []))
    """
    if not text:
        return "", []
    name, equals, values = text.partition("=")
    if not equals or not name:
        raise wrong(f"{text!r}: give NAME=VALUE or NAME=VALUE,VALUE")
    return name, values.split(",")


class Collected(argparse.Action):
    """Options of `accepted` as one object of names and values; an empty one alone makes it
    empty.
    """

    def __call__(
        self,
        parser: object,
        namespace: argparse.Namespace,
        values: Any,
        option: object = None,
    ) -> None:
        name, some = values
        found = getattr(namespace, self.dest, {})
        if name:
            found = {**found, name: [*found.get(name, ()), *some]}
        setattr(namespace, self.dest, found)


def span(
    least: int, most: int, wanted: str, *, units: Collection[str] = UNITS, unit_ms: int = 1
) -> Callable[[str], int]:
    """A span of time with one of the units, "" for seconds without one, in ms or another
    unit.

    >>> span(1, 10_000, "a span")("500ms"), span(0, 300, "a span", unit_ms=1000)("5m")
    (500, 300)
    """

    def parse(text: str) -> int:
        found = SPAN.fullmatch(text.strip())
        known = found is not None and found[2] in units
        value = int(found[1]) * UNITS_MS[found[2]] // unit_ms if found and known else -1
        if not least <= value <= most:
            raise wrong(f"{text!r}: give {wanted}")
        return value

    return parse


@dataclass(frozen=True)
class Target:
    """Target of a reset of a group's position; `to` says which of the other fields is
    given.
    """

    to: Literal["earliest", "latest", "offset", "time", "group"]
    offset: int | None = None
    at_ms: int | None = None  # since 1970 UTC
    ago_ms: int | None = None  # counted back by the server's clock
    source_group: str | None = None


def target(text: str) -> Target:
    """A position as `--to` writes it.

    >>> target("-15m").ago_ms, target("1970-01-01T00:01Z").at_ms, target("42").offset
    (900000, 60000, 42)
    """
    words = {"earliest": Target("earliest"), "latest": Target("latest")}
    if text in words:
        return words[text]
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return Target("offset", offset=int(text))
    ago = AGO.fullmatch(text)
    if ago:
        return Target("time", ago_ms=int(ago[1]) * UNITS_MS[ago[2]])
    try:
        return Target("time", at_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise wrong(f"{text!r}: give {POSITIONS}") from None


def reset_target(text: str) -> Target:
    """A position, or the offsets of another group.

    >>> reset_target("group:shipping").source_group, reset_target("latest").to
    ('shipping', 'latest')
    """
    if text.startswith(OF_GROUP):
        name = text.removeprefix(OF_GROUP)
        if not name:
            raise wrong(f"{text!r}: give group:NAME")
        return Target("group", source_group=name)
    try:
        return target(text)
    except argparse.ArgumentTypeError:
        raise wrong(f"{text!r}: give {RESET_POSITIONS}") from None


def joined(argv: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the arguments with `--from -2h` as `--from=-2h`: argparse would take -2h for
    an option.

    `options` are those that take a value. What begins with two dashes stays: it is a
    misspelt option.

    >>> joined(["find", "t", "--from", "-2h", "--key", "-7", "--max", "--tag"],
    ...     {"--from", "--key", "--max"})
    ['find', 't', '--from=-2h', '--key=-7', '--max', '--tag']
    """
    kept: list[str] = []
    for text in argv:
        if kept and kept[-1] in options and DASHED.fullmatch(text):
            kept[-1] = f"{kept[-1]}={text}"
        else:
            kept.append(text)
    return kept


def with_value(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options that take a value, of a parser and the commands below it."""
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*(with_value(below) for below in action.choices.values()))
        elif action.nargs is None:
            found.update(action.option_strings)
    return found
