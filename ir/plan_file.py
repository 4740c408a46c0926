"""Plan files: read with one clear line for anything wrong, written at once or not at all.

    plan.json: at buckets[1].seats: -3 is given, expected a number >= 1 (or write it again with
    ...

Bytes become strict JSON (`strict_json`), JSON becomes the form of the file (`plan_schema`,
where pydantic checks keys and types), and the form becomes values (`plan_build`), which check
the rest.
"""

import os
import uuid
from pathlib import Path
from typing import Final

from shardwise.ir.errors import FileFormatError, ShardwiseError
from shardwise.ir.form_errors import checked_form
from shardwise.ir.plan import VERSION, Plan
from shardwise.ir.plan_build import plan_of
from shardwise.ir.plan_json import plan_to_text
from shardwise.ir.plan_schema import PlanForm
from shardwise.ir.scanner import shown
from shardwise.ir.strict_json import MAX_BYTES, Json, read_json

_REMEDY: Final = "(or write it again with `shardwise plan`)"
_LONGEST_LINE: Final = 700


def load(path: str | Path) -> Plan:
    """The plan in a file.

    Raises FileFormatError, one line `<file>: at <JSON path>: <problem and remedy>`, for a file
    that cannot be read or holds no legal plan of this version.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileFormatError(
            f"{_one_line(str(path))}: cannot be read ({reason}); give the path of a plan file"
        ) from None
    return loads(content, name=str(path))


def loads(content: bytes, *, name: str = "plan") -> Plan:
    """The plan that the bytes of a file hold; errors as `load`, with `name` for the file."""
    try:
        tree = read_json(content)
        _check_version(tree)
        return plan_of(checked_form(PlanForm, tree))
    except FileFormatError as error:
        problem = str(error)
        if len(problem) > _LONGEST_LINE:
            problem = f"{problem[:_LONGEST_LINE]}..."
        raise FileFormatError(f"{_one_line(name)}: {problem} {_REMEDY}") from None


def save(plan: Plan, path: str | Path) -> None:
    """Write the canonical text of the plan: the whole file, or on any failure the old one.

    Raises ShardwiseError where the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        try:
            with partial.open("xb") as file:
                file.write(plan_to_text(plan).encode("ascii"))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ShardwiseError(
            f"{_one_line(str(path))}: cannot be written ({reason}); give a path in a folder "
            "that exists and that you may write"
        ) from None


def _check_version(tree: Json) -> None:
    """Another version comes before all that differs because of it."""
    if not isinstance(tree, dict):
        raise FileFormatError(
            "at the top level: no object is given, expected one with the keys of a plan; "
            "give a plan file"
        )
    version = tree.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise FileFormatError(
            f"at version: {shown(version)} is given and this shardwise reads version "
            f"{VERSION}; use the shardwise that wrote it"
        )


def _one_line(name: str) -> str:
    return name if name.isprintable() else ascii(name)
