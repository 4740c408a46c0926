"""Writes docs/plan-file.md from the schema of the plan file and the legality table of plans.

Run `python docs/plan_file_page.py` after a change of either; a test compares the page with
them.
"""

import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from shardwise.ir.plan import VERSION
from shardwise.ir.plan_rules import RULES
from shardwise.ir.plan_schema import FileForm, PlanForm

PAGE = Path(__file__).with_name("plan-file.md")

INTRODUCTION = f"""\
# The plan file

A plan is one JSON object, version {VERSION}. `plan.save("plan.json")` writes it, `Plan.load`
reads it, and `shardwise train` runs it. It is data: nothing in it is executed. Three plans
written by hand are in [examples/plans](../examples/plans).

*This page is written by `docs/plan_file_page.py` from the schema (`ir/plan_schema.py`) and the
legality table (`ir/plan_rules.py`); change those, not the page.*

Every key is required, no other is allowed, and types are not converted: `"8"` is no integer
and `true` is no number. Numbers are finite, integers have 64 bits, texts are printable and at
most 4096 characters, a key occurs once, and the encoding is UTF-8 without a byte order mark.
The canonical file, which `save` writes, has the keys in the order below, an indent of two,
ASCII only and a newline at the end; loading and saving a canonical file leaves every byte as
it was. The plan hash is the SHA-256 of the same JSON without blanks and with sorted keys. It
is not in the file.

Meshes, layouts, strategies, buckets and the like are texts in the compact form that the value
prints in Python and parses from. What is wrong with a file is said in one line, with the place:

    plan.json: at buckets[1].seats: -3 is given, expected a number >= 1 (or write it again ...)
"""

RULES_INTRODUCTION = """\
## What makes a plan legal

Beside the type and range of each field, a plan as a whole follows these rules, of which the
first that is broken is reported.
"""


def page() -> str:
    """The text of the page."""
    sections = [INTRODUCTION, *map(_section, _forms(PlanForm, [])), RULES_INTRODUCTION]
    rules = "\n".join(_rule(name, rule.__doc__ or "") for name, rule in RULES.items())
    return "\n".join([*sections, rules]) + "\n"


def _forms(form: type[FileForm], seen: list[type[FileForm]]) -> list[type[FileForm]]:
    """The form and those inside it, each once, in reading order."""
    if form not in seen:
        seen.append(form)
        for field in form.model_fields.values():
            for inner in _parts(field.annotation):
                _forms(inner, seen)
    return seen


def _parts(kind: Any) -> Iterator[type[FileForm]]:
    if isinstance(kind, type) and issubclass(kind, FileForm):
        yield kind
    for argument in get_args(kind):
        yield from _parts(argument)


def _section(form: type[FileForm]) -> str:
    lines = [f"## {_title(form)}", "", form.__doc__ or "", ""]
    lines += ["| key | type | unit | meaning |", "| --- | --- | --- | --- |"]
    for name, field in form.model_fields.items():
        extra = field.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(field.annotation)} | {unit} | {meaning} |")
    return "\n".join([*lines, ""])


def _title(form: type[FileForm]) -> str:
    """`Priced for` of PricedForForm, `The file` of the whole."""
    if form is PlanForm:
        return "The file"
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in form.__name__[:-4])
    return words.strip().capitalize()


def _type(kind: Any) -> str:
    names = {str: "text", int: "integer", float: "number", type(None): "null"}
    if isinstance(kind, type) and issubclass(kind, FileForm):
        title = _title(kind)
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if get_origin(kind) is list:
        return f"list of {_type(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"object of {_type(get_args(kind)[1])}"
    if isinstance(kind, types.UnionType):
        return " or ".join(map(_type, get_args(kind)))
    return names[kind]


def _rule(name: str, meaning: str) -> str:
    text = " ".join(meaning.split())
    head = f"- **{name.replace('_', ' ').capitalize()}.** {text}"
    return textwrap.fill(head, 98, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
