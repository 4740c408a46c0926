"""What pydantic finds wrong with a file as one line: the path, what is there, the rule."""

import difflib
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args

import pydantic
from pydantic_core import ErrorDetails

from shardwise.ir.errors import FileFormatError
from shardwise.ir.strict_json import json_text, path_text

Form = TypeVar("Form", bound=pydantic.BaseModel)

_EXPECTED: Final = MappingProxyType(
    {
        "dict_type": "an object",
        "float_type": "a number",
        "int_type": "an integer",
        "list_type": "a list",
        "model_type": "an object",
        "string_type": "a string",
        "greater_than_equal": "a number >= {ge}",
        "less_than_equal": "a number <= {le}",
    }
)
"""What to say for pydantic's types of errors; its own message for any other."""


def checked_form(form: type[Form], tree: object) -> Form:
    """The form that `tree` (of strict JSON) fills.

    Raises FileFormatError, `at <path>: <what is there>, <what is expected>`, for one problem:
    an unknown key before others, since it is often the cause of a missing one.
    """
    try:
        return form.model_validate(tree)
    except pydantic.ValidationError as error:
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
        others = len(problems) - 1
        more = f" ({others} more problems)" if others else ""
        raise FileFormatError(f"at {_line(form, first)}{more}") from None


def _line(form: type[pydantic.BaseModel], problem: ErrorDetails) -> str:
    path = problem["loc"]
    where = path_text(path)
    match problem["type"]:
        case "missing":
            return f"{where}: the key is missing; add it"
        case "extra_forbidden":
            known = _keys_at(form, path[:-1])
            close = difflib.get_close_matches(str(path[-1]), known, n=1)
            if close:
                return f"{where}: the key is unknown; rename it to {close[0]} if that is meant"
            return f"{where}: the key is unknown; delete it, known are {', '.join(known)}"
        case kind:
            rule = _EXPECTED.get(kind, problem["msg"]).format(**problem.get("ctx", {}))
            return f"{where}: {_given(problem['input'])} is given, expected {rule}"


def _given(value: object) -> str:
    """What stands in the file, without what it contains."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json_text(value)


def _keys_at(form: type[pydantic.BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys that the form knows for the object at `path`."""
    kind: Any = form
    for part in path:
        fields = getattr(kind, "model_fields", None)
        kind = fields[part].annotation if fields is not None else get_args(kind)[-1]
    return list(kind.model_fields)
