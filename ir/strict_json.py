"""Strict JSON from bytes: what Python's own reader lets pass is an error that says where.

Refused beside bad syntax: other encodings than UTF-8, a byte order mark, keys given twice in
one object, NaN and infinities, numbers beyond 64-bit integers or floats, texts over 4096
characters, control characters and lone surrogates, nesting over 16 deep, files over 64 MiB.
What is left is safe for any parser of a text form behind it.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardwise.ir.errors import FileFormatError
from shardwise.ir.scanner import shown

MAX_BYTES: Final = 64 * 2**20
"""Largest file that is read; a plan of 1000 layers takes under 1 MiB."""

MAX_TEXT: Final = 4096
"""Longest string; below the 4300 digits from which on `int()` refuses a text."""

MAX_DEPTH: Final = 16
"""Deepest nesting of objects and lists."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_SHOWN_LENGTH: Final = 80
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]', re.DOTALL)
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in the tree where a value was that is not accepted."""

    problem: str


def read_json(content: bytes) -> Json:
    """The value that `content` holds.

    Raises FileFormatError: `at buckets[1].seats: what is wrong there and what to do`.
    """
    tree = _parse(_decoded(content))
    _check_tree(tree)
    return tree  # type: ignore[return-value]  # _check_tree leaves no stand-in


def path_text(path: tuple[str | int, ...]) -> str:
    """`buckets[1].seats` for ("buckets", 1, "seats"); `the top level` for ()."""
    text = ""
    for part in path[:MAX_DEPTH]:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json_text(part)}]"
    return f"{text}..." if len(path) > MAX_DEPTH else text or "the top level"


def json_text(value: object) -> str:
    """A string, number or constant as it stands in a file, on one line of ASCII, shortened."""
    text = json.dumps(value).replace("\x7f", "\\u007f")
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


def path_at(text: str, position: int) -> tuple[str | int, ...]:
    """The path that a reader of JSON has reached at `position` of `text` (broken or not)."""
    path: list[str | int] = []
    keys: list[bool] = []
    last = ""
    for found in _TOKEN.finditer(text, 0, position):
        token = found.group()
        if token in "[{":
            path.append(0 if token == "[" else "")
            keys.append(token == "{")
        elif token in "]}" and path:
            path.pop()
            keys.pop()
        elif token == "," and path:
            last_part = path[-1]
            path[-1] = last_part + 1 if isinstance(last_part, int) else ""
        elif token == ":" and path and keys[-1]:
            path[-1] = last
        last = token[1:-1] if token[0] == '"' else ""
    return tuple(part for part in path if part != "")


def _decoded(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise FileFormatError(
            f"the file has {len(content)} bytes, over the limit of {MAX_BYTES}; give a plan file"
        )
    if content.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise FileFormatError(
            "the file begins with a byte order mark; save it as UTF-8 without one"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"the file is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; "
            "save it as UTF-8"
        ) from None
    if not text.strip():
        raise FileFormatError("the file is empty; give a plan file")
    return text


def _parse(text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=lambda name: _Refused(f"{name} is no JSON number; give a finite one"),
        )
    except json.JSONDecodeError as error:
        cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated")
        cause = "the file ends too early (truncated?)" if cut else "the JSON is broken"
        raise FileFormatError(
            f"at {path_text(path_at(text, error.pos))}: {cause}, line {error.lineno} column "
            f"{error.colno}: {error.msg}; repair it there"
        ) from None
    except RecursionError:
        raise FileFormatError(
            f"the JSON is nested too deep, over {MAX_DEPTH} levels; repair it"
        ) from None


def _object(pairs: list[tuple[str, object]]) -> object:
    tree = dict(pairs)
    if len(tree) == len(pairs):
        return tree
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Refused(f"key {shown(key)} is given twice; delete one of the two")
        seen.add(key)
    raise AssertionError("unreachable: fewer keys than pairs")


def _integer(text: str) -> object:
    if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**63:
        return _Refused(f"integer {shown(text)} is over 64 bits; give the true number")
    return number


def _float(text: str) -> object:
    number = float(text)
    if not math.isfinite(number):
        return _Refused(f"number {shown(text)} is too large; give a finite one")
    return number


def _check_tree(tree: object) -> None:
    pending: list[tuple[tuple[str | int, ...], object]] = [((), tree)]
    while pending:
        path, value = pending.pop()
        problem = ""
        if isinstance(value, _Refused):
            problem = value.problem
        elif isinstance(value, str):
            problem = _text_problem(value)
        elif isinstance(value, dict | list) and len(path) >= MAX_DEPTH:
            problem = f"nested over {MAX_DEPTH} deep; repair it"
        elif isinstance(value, dict):
            problem = next(filter(None, map(_text_problem, value)), "")
            pending.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            items = reversed(list(enumerate(value)))
            pending.extend(((*path, place), item) for place, item in items)
        if problem:
            raise FileFormatError(f"at {path_text(path)}: {problem}")


def _text_problem(text: str) -> str:
    if len(text) > MAX_TEXT:
        return f"a text of {len(text)} characters, over {MAX_TEXT}; shorten it"
    if not text.isprintable():
        return f"text {shown(text)} has a character that does not print; remove it"
    return ""
