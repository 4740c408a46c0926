"""Every value that is read from text, found by looking: nonsense gives one short ParseError.

Other tests check what each form means; this one that no reader was left out of the common rules.
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass, replace

import pytest

import shardwise.ir
from shardwise.ir.errors import ParseError, ShardwiseError
from shardwise.ir.plan import Plan
from tests.support.planning import SOME, machine, traced_hand_model
from tests.support.plans import GOLDEN

LONGEST_LINE = 700
"""Characters of a message: what was given is cut, the rule and the remedy are not."""


def readers():
    """(name, function of a text) of every `parse` of a class and every `parse_*` of ir."""
    found = {}
    for entry in pkgutil.iter_modules(shardwise.ir.__path__, "shardwise.ir."):
        if entry.name.startswith("shardwise.ir.trace"):
            continue  # reads models, not texts
        module = importlib.import_module(entry.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != entry.name:
                continue
            if inspect.isclass(value) and "parse" in vars(value):
                found[f"{entry.name}.{name}"] = value.parse
            elif name.startswith("parse") and inspect.isfunction(value):
                first, *others = inspect.signature(value).parameters.values()
                if first.name == "text" and all(p.default is not p.empty for p in others):
                    found[f"{entry.name}.{name}"] = value
    return found


READERS = readers()
NO_TEXTS = (None, 5, -1.5, True, b"x0=2@l", ["1"], ("S", 1), {"S": 1}, object(), float, 10**5000)
BAD_TEXTS = (
    "\n", "\0", " ", "\ufeff", "\ud800", "\u0663", "x" * 10**5, "9" * 10**5, "(" * 10**4,
    "[" * 10**4, '"' * 10**4, "a:" * 10**4, "=" * 10**4, "1 " * 10**4, "x0=" + "9" * 5000 + "@l",
    "S(0," * 5000, "S(0,outer=" + "(" * 5000, "-" * 10**5, "%" * 300, "{" * 10**4, "'" * 10**4,
)  # fmt: skip


def test_the_readers_are_found():
    names = {name.rpartition(".")[2] for name in READERS}
    assert {"Mesh", "Layout", "Prices", "Plan", "Lengths", "parse_expression"} <= names
    assert len(READERS) >= 45


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_text_is_refused(name):
    for value in NO_TEXTS:
        refused(READERS[name], value)


@pytest.mark.parametrize("name", READERS)
def test_nonsense_is_refused_in_a_short_line(name):
    for text in BAD_TEXTS:
        refused(READERS[name], text, may_read=True)


def refused(read, value, *, may_read=False):
    try:
        read(value)
    except ParseError as error:
        line = str(error)
        assert "\n" not in line and len(line) <= LONGEST_LINE, (len(line), line[:300])
    else:
        assert may_read, f"{type(value).__name__} was read"


def instances():
    """One value of every class that is in a plan, a traced model, a machine or lengths."""
    found = {}

    def walk(value):
        if is_dataclass(value):
            if "parse" in vars(type(value)):
                found.setdefault(type(value).__name__, value)
            for field in fields(value):
                walk(getattr(value, field.name))
        elif isinstance(value, tuple):
            for item in value:
                walk(item)

    traced = traced_hand_model()
    for path in GOLDEN:
        walk(Plan.load(path))
    walk((traced.graph, traced.units, traced.templates, traced.fingerprint, machine(), SOME))
    return found


INSTANCES = instances()
MUCH = (
    10**5000, -(10**5000), 10**400, float("inf"), float("nan"), "x" * 10**5, "\n" * 10**4, None,
    object(), True, ("x" * 1000,) * 1000, (10**5000,), ((0, 10**5000),), ["x"] * 10**5,
)  # fmt: skip


@pytest.mark.parametrize("name", INSTANCES)
def test_every_field_refuses_in_a_short_line(name):
    """What a field may not hold is an error of ours, whatever it is; some of it is legal."""
    value = INSTANCES[name]
    for field in (field for field in fields(value) if field.init):
        for given in MUCH:
            try:
                replace(value, **{field.name: given})
            except ShardwiseError as error:
                line = str(error)
                assert "\n" not in line and len(line) <= LONGEST_LINE, (field.name, line[:300])
