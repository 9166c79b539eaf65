"""Types of settings: the valid values, the unit, and the meaning of null.

A setting is declared once, as a field of a dataclass that is made with `setting`: its
name, type, default, label and help. Checks, shapes of the API, forms and pages of the
portal, the reference page and the options of the client are derived from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import Any

Check = Callable[[str], object]  # raises ValueError with the problem
# Not possible in name=value,value on a line: spaces at an end, commas, line ends.
_UNWRITABLE = re.compile(r"^\s|\s$|[,\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WRITABLE = "no comma or control character, and no blank at its ends"


@dataclass(frozen=True)
class Kind:
    """Base of types. `null`: the meaning of null or of an empty text; "" if a value is
    required.
    """

    null: str = field(default="", kw_only=True)

    def problem(self, value: Any) -> str | None:
        """Return the problem with a value, None if it is valid."""
        raise NotImplementedError

    def range(self) -> str:
        """Return a description of the valid values."""
        raise NotImplementedError

    def written(self, value: Any) -> Any:
        """Return a value as requests and answers have it."""
        return value


@dataclass(frozen=True)
class Text(Kind):
    """A text of at most `maximum` characters; `check` raises ValueError for other
    restrictions.
    """

    maximum: int
    check: Check | None = None
    lines: bool = False  # may have several lines

    def problem(self, value: Any) -> str | None:
        if not isinstance(value, str) or len(value) > self.maximum:
            return f"must be a text of at most {self.maximum} characters"
        try:
            if self.check is not None:
                self.check(value)
        except ValueError as error:
            return str(error)
        return None

    def range(self) -> str:
        return f"at most {self.maximum} characters"


@dataclass(frozen=True)
class Tags(Text):
    """A tag filter: a tuple of tags, written with a separator between them."""

    separator: str = " || "

    def written(self, value: Iterable[str]) -> str:
        return self.separator.join(value)


@dataclass(frozen=True)
class Headers(Kind):
    """A header filter: pairs of a name and its values, written as an object of lists.

    `maximum`: bytes of all names and values together.
    """

    maximum: int
    names: int
    values: int

    def problem(self, value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return "must be an object of names, each with a list of values"
        if len(value) > self.names:
            return f"has {len(value)} names; at most {self.names} are allowed"
        problems = (self._header_problem(name, values) for name, values in value.items())
        if problem := next(filter(None, problems), None):
            return problem
        texts = [text for name, values in value.items() for text in (name, *values)]
        # JSON may contain lone surrogates, which UTF-8 cannot encode.
        size = sum(len(text.encode(errors="replace")) for text in texts)
        return (
            None
            if size <= self.maximum
            else f"has {size} bytes; at most {self.maximum} are allowed"
        )

    def _header_problem(self, name: Any, values: Any) -> str | None:
        if not isinstance(name, str) or not name or "=" in name or _UNWRITABLE.search(name):
            return (
                f"{str(name)[:50]!r} is no name of a header: it has no equals sign, and "
                f"{_WRITABLE}"
            )
        if not isinstance(values, list) or not all(
            isinstance(value, str) for value in values
        ):
            return f"{name[:50]!r} must have a list of texts"
        if not 0 < len(values) <= self.values:
            return f"{name[:50]!r} has {len(values)} values; 1 to {self.values} are allowed"
        if not all(values):
            return f"a value of {name[:50]!r} is missing beside = or a comma"
        invalid_value = next((value for value in values if _UNWRITABLE.search(value)), None)
        return (
            None
            if invalid_value is None
            else f"{invalid_value[:50]!r} is no value of {name[:50]!r}: it has {_WRITABLE}"
        )

    def range(self) -> str:
        return (
            f"at most {self.names} names with 1 to {self.values} values each, "
            f"{self.maximum} bytes in all"
        )

    def written(self, value: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
        return {name: list(values) for name, values in value}


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `minimum` to `maximum`, or null if `null` is set."""

    minimum: int
    maximum: int
    unit: str = ""

    def problem(self, value: Any) -> str | None:
        if value is None and self.null:
            return None
        # bool is a subclass of int, but `true` is no number.
        is_valid = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.minimum <= value <= self.maximum
        )
        return None if is_valid else f"must be a whole number from {self.range()}"

    def range(self) -> str:
        return f"{self.minimum} to {self.maximum}{' or null' if self.null else ''}"


@dataclass(frozen=True)
class Choice(Kind):
    """One of several words, mapped to their meanings."""

    meanings: Mapping[str, str]

    def problem(self, value: Any) -> str | None:
        # A list, because a value from a document may be unhashable.
        return (
            None
            if value in [*self.meanings]
            else f"must be one of {', '.join(self.meanings)}"
        )

    def range(self) -> str:
        return "; ".join(
            f"`{word}`: {meaning}" if meaning else word
            for word, meaning in self.meanings.items()
        )


@dataclass(frozen=True)
class Flag(Kind):
    def problem(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else "must be true or false"

    def range(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Numbers(Kind):
    """A list of whole numbers: different ones if they are `ids`, otherwise 1 to 100 of
    them.
    """

    maximum: int
    unit: str = ""
    ids: bool = False

    def problem(self, value: Any) -> str | None:
        is_valid = isinstance(value, list) and all(
            isinstance(number, int)
            and not isinstance(number, bool)
            and 0 <= number <= self.maximum
            for number in value
        )
        if self.ids:
            return (
                None
                if is_valid and len(set(value)) == len(value)
                else "must be a list of different ids"
            )
        return (
            None
            if is_valid and 0 < len(value) <= 100
            else f"must be a list of {self.range()}"
        )

    def range(self) -> str:
        if self.ids:
            return "different ids"
        of_unit = f" of {self.unit}" if self.unit else ""
        return f"1 to 100 whole numbers{of_unit}, each up to {self.maximum}"

    def written(self, value: Iterable[int]) -> list[int]:
        return list(value)


@dataclass(frozen=True)
class Setting:
    """A declared setting. `label` is the heading in forms and pages; `help` ends with a
    full stop.
    """

    name: str
    kind: Kind
    default: Any
    label: str
    help: str


def setting(default: Any, kind: Kind, label: str, help: str = "") -> Any:
    return field(default=default, metadata={"kind": kind, "label": label, "help": help})


def declared_settings(owner: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares, by name, its own before those of its
    bases.
    """
    fields = {field_info.name: field_info for field_info in dataclasses.fields(owner)}
    # dataclasses.fields() would have the settings of the bases first.
    names = [name for base in owner.__mro__ for name in get_annotations(base)]
    return {
        name: Setting(name, default=fields[name].default, **fields[name].metadata)
        for name in names
    }


def read_settings(settings: Iterable[str], row: object) -> dict[str, Any]:
    return {name: getattr(row, name) for name in settings}
