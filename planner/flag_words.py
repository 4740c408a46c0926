"""Flags out of a command line or a shell script, which is read and never run.

Understood are quotes, comments, continued lines, `NAME=value`, `NAME=(...)`, `NAME+=(...)`, and
`$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME[@]}` of names that the script sets. What else a
shell would put in stays as it is written, and is an error only where its value is needed.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import shown

_COMMENT: Final = re.compile(r"(^|\s)#.*$", re.M)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^}]*))?\})"
)
_INTEGER: Final = re.compile(r"-?[0-9]{1,15}")


def flags(text: str) -> dict[str, tuple[str, ...]]:
    """Every flag `--name` of a text with the words after it, in order.

    Names come without the dashes in front, `_` as `-`, `--name=value` as `--name value`. Raises
    ParseError for an open quote, InvalidValueError for a flag given twice with other values.
    """
    given: list[tuple[str, list[str]]] = []
    for item in _words(text):
        if item.startswith("--"):
            name, _, value = item[2:].partition("=")
            given.append((name.replace("_", "-"), [value] if value else []))
        elif given:
            given[-1][1].append(item)
    found: dict[str, tuple[str, ...]] = {}
    for name, values in given:
        if name in found and found[name][:1] != tuple(values[:1]):
            raise InvalidValueError(
                f"--{name} is given as {shown(' '.join(found[name][:1]))} and as "
                f"{shown(' '.join(values[:1]))}; leave one"
            )
        found[name] = tuple(values)
    return found


def names(text: str) -> frozenset[str]:
    """The words of a text, for tables of flags."""
    return frozenset(text.split())


def integer(name: str, values: Sequence[str]) -> int:
    """The whole number after a flag; raises InvalidValueError."""
    if not values or not _INTEGER.fullmatch(values[0]):
        raise InvalidValueError(
            f"--{name} is {shown(values[0] if values else '')}; give a whole number"
        )
    return int(values[0])


def word(name: str, values: Sequence[str]) -> str:
    """The word after a flag; raises InvalidValueError where there is none."""
    if not values:
        raise InvalidValueError(f"--{name} has no value; give one")
    return values[0]


def _words(text: str) -> Iterator[str]:
    plain = _COMMENT.sub(r"\1", text.replace("\\\r\n", " ").replace("\\\n", " "))
    try:
        tokens = iter(shlex.split(plain))
    except ValueError as error:
        raise ParseError(f"flags {shown(text)} do not read as words ({error})") from None
    names: dict[str, list[str]] = {}
    for token in tokens:
        assignment = _ASSIGNMENT.fullmatch(token)
        if assignment is None:
            yield from _expanded(token, names)
            continue
        name, adds, value = assignment.groups()
        values = [value]
        if value.startswith("("):
            values = [value[1:]]
            while not values[-1].endswith(")"):
                item = next(tokens, None)
                if item is None:
                    raise ParseError(f"the list {name}=( is not closed; add a )")
                values.append(item)
            values[-1] = values[-1][:-1]
        made = [part for item in values for part in _expanded(item, names)]
        names[name] = [*names.get(name, []), *made] if adds else made


def _expanded(token: str, names: Mapping[str, list[str]]) -> list[str]:
    """A word with variables put in: several words where one holds several."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name in names:
            return " ".join(names[name])
        return match[0] if default is None else default

    return _VARIABLE.sub(value, token).split()
