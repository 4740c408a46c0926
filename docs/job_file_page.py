"""Writes docs/job-file.md from the schema of job files.

Run `python docs/job_file_page.py` after a change of it; a test compares the page with it.
"""

import types
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from shardwise.runtime.job_schema import JobForm

PAGE = Path(__file__).with_name("job-file.md")

INTRODUCTION = """\
# The job file

A job is one TOML file: what is trained, on what, how, and where the results go. It says nothing
of how the work is split; that is the [plan](plan-file.md)'s. [run.md](run.md) is the guide, and
[configs/jobs](../configs/jobs) holds jobs that run as they are.

*This page is written by `docs/job_file_page.py` from the schema (`runtime/job_schema.py`); change
that, not the page.*

No other key is allowed and types are not converted: `"8"` is no integer. Relative paths start at
the working folder. What is wrong with a file is said in one line, with the place:

    job.toml: at training.step: the key is unknown; rename it to steps if that is meant
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([INTRODUCTION, *(_section(name) for name in JobForm.model_fields)])


def _section(name: str) -> str:
    form = JobForm.model_fields[name].annotation
    assert isinstance(form, type) and issubclass(form, BaseModel)
    lines = [f"## [{name}]", "", form.__doc__ or "", ""]
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key, field in form.model_fields.items():
        default = "needed" if field.is_required() else _default(field.default)
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{key}` | {_type(field.annotation)} | {default} | {meaning} |")
    return "\n".join([*lines, ""])


def _default(value: Any) -> str:
    assert value is not PydanticUndefined
    if value is None:
        return "none"
    text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return f"`{text}`".replace("'", '"')


def _type(kind: Any) -> str:
    names = {bool: "boolean", str: "text", int: "integer", float: "number"}
    if get_origin(kind) is list:
        return f"list of {_type(get_args(kind)[0])}s"
    if isinstance(kind, types.UnionType):
        return " or ".join(_type(part) for part in get_args(kind) if part is not type(None))
    return names[kind]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
