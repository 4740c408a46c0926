"""Units, templates, and the digest that says which stretches of a graph are the same layer.

A model is an ordered list of units (embedding, layers.0, ..., head) that tile its operators.
Units with equal fingerprints are planned once, as one template, and run the same emitted code.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import Constant, OperatorGraph, Parameter
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.scanner import Scanner, check_name, made, quote_name, shown

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NUMBERED: Final = re.compile(r"(.+?)[._]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Unit:
    """A named stretch of a graph's operators; stages are cut between units, runs count them.

    Text: `layers.0 = 12:40 module=layers.0` (module left out where it is "").
    """

    name: str
    operators: tuple[int, int]
    """Half-open range (start, stop) of indices into `graph.operators`, never empty."""
    module_path: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "a unit")
        ends = self.operators
        if (
            type(ends) is not tuple
            or len(ends) != 2
            or any(type(end) is not int for end in ends)
            or not 0 <= ends[0] < ends[1]
        ):
            raise InvalidValueError(
                f"unit {shown(self.name)} has operators {shown(ends)}: give (start, stop) with "
                "0 <= start < stop"
            )
        if type(self.module_path) is not str:
            raise InvalidValueError(
                f"unit {shown(self.name)} has module_path {shown(self.module_path)}: give a str"
            )

    def __str__(self) -> str:
        start, stop = self.operators
        module = f" module={quote_name(self.module_path)}" if self.module_path else ""
        return f"{quote_name(self.name)} = {start}:{stop}{module}"

    @classmethod
    def parse(cls, text: str) -> "Unit":
        """The unit that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'layers.0 = 12:40 module=layers.0'")
        name = scanner.name()
        scanner.expect(" = ")
        start = scanner.integer()
        scanner.expect(":")
        stop = scanner.integer()
        module_path = scanner.name() if scanner.take(" module=") else ""
        scanner.end()
        return made(text, cls, name, (start, stop), module_path)


@dataclass(frozen=True, slots=True)
class Template:
    """The units of a model that are the same layer.

    Text: `layers digest=<64 hex> units=layers.0,layers.1 operators=aten.linear.default,...`.
    """

    name: str
    operators: tuple[str, ...]
    """Kinds of the operators of one unit, in order, at least one."""
    digest: str
    """`range_digest` of every unit."""
    units: tuple[str, ...]
    """Names of the units in the order of the model, at least one, each once."""

    def __post_init__(self) -> None:
        check_name(self.name, "a template")
        where = f"template {shown(self.name)}"
        for what in ("operators", "units"):
            names = getattr(self, what)
            if type(names) is not tuple or not names:
                raise InvalidValueError(
                    f"{where} has {what} {shown(names)}: give a tuple of names, one or more"
                )
            for name in names:
                check_name(name, f"one of the {what} of {where}")
        if len(set(self.units)) != len(self.units):
            raise InvalidValueError(
                f"{where} has the units {shown(self.units)}: each comes once; drop the repeats"
            )
        check_digest(self.digest, where)

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.units)

    def __str__(self) -> str:
        units = ",".join(map(quote_name, self.units))
        operators = ",".join(map(quote_name, self.operators))
        return f"{quote_name(self.name)} digest={self.digest} units={units} operators={operators}"

    @classmethod
    def parse(cls, text: str) -> "Template":
        """The template that prints as `text`; raises ParseError."""
        scanner = Scanner(
            text, "'layers digest=<64 hex> units=layers.0,layers.1 operators=aten.add.Tensor'"
        )
        name = scanner.name()
        scanner.expect(" digest=")
        digest = scanner.need(_DIGEST, "64 digits of lower-case hex")
        scanner.expect(" units=")
        units = scanner.names()
        scanner.expect(" operators=")
        operators = scanner.names()
        scanner.end()
        return made(text, cls, name, operators, digest, units)


def check_digest(digest: object, where: str) -> None:
    """Raise InvalidValueError unless `digest` is a SHA-256 in 64 digits of lower-case hex."""
    if type(digest) is not str or not _DIGEST.fullmatch(digest):
        raise InvalidValueError(
            f"{where} has digest {shown(digest)}: a digest is 64 digits of lower-case hex"
        )


def check_cover(graph: OperatorGraph, units: Iterable[Unit]) -> None:
    """Raise InvalidValueError unless the units, in order, tile the graph's operators."""
    end, names = 0, set()
    for unit in units:
        if unit.operators[0] != end or unit.name in names:
            raise InvalidValueError(
                f"unit {unit}: units have names of their own and the next starts at operator "
                f"{end}; "
                "correct it"
            )
        end = unit.operators[1]
        names.add(unit.name)
    if end != len(graph.operators):
        raise InvalidValueError(
            f"the units end at operator {end} of {len(graph.operators)}: they cover all; "
            "extend them"
        )


def group_units(graph: OperatorGraph, units: tuple[Unit, ...]) -> tuple[Template, ...]:
    """The templates of a covering list of units, in the order of their first units.

    A template is called like its first unit without the number at the end (`layers.0` ->
    `layers`); where two would be called alike, the later ones get `#2`, `#3`, ... Raises
    InvalidValueError as `check_cover` does.
    """
    check_cover(graph, units)
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(range_digest(graph, *unit.operators), []).append(unit)
    templates: list[Template] = []
    taken: set[str] = set()
    for digest, members in groups.items():
        numbered = _NUMBERED.fullmatch(members[0].name)
        base = name = numbered.group(1) if numbered else members[0].name
        repeat = 1
        while name in taken:
            repeat += 1
            name = f"{base}#{repeat}"
        taken.add(name)
        start, stop = members[0].operators
        kinds = tuple(operator.kind for operator in graph.operators[start:stop])
        templates.append(Template(name, kinds, digest, tuple(unit.name for unit in members)))
    return tuple(templates)


def range_digest(graph: OperatorGraph, start: int, stop: int) -> str:
    """SHA-256 (hex) of what operators start..stop-1 compute, without absolute names.

    Where it is equal, one program runs both ranges, with parameters, constants and
    incoming values being arguments: kinds, arguments, shapes and dtypes are equal, values
    inside are named by their distance from `start`, all others are numbered in the order of
    their first use, and the same values are read outside. Of parameters it also takes
    trainable, the section, and whether operators outside the range read them (tied weights plan
    differently). Left out: names, module paths, source lines, costs (these follow from the
    rest), values. Symbols keep their names.
    """
    if not 0 <= start < stop <= len(graph.operators):
        raise InvalidValueError(
            f"range {start}:{stop} of {len(graph.operators)} operators: use 0 <= start < stop "
            "<= all"
        )
    return _RangeText(graph, start, stop).digest()


class _RangeText:
    """Writes a range with relative references; `lines` first define what comes from outside."""

    def __init__(self, graph: OperatorGraph, start: int, stop: int) -> None:
        self.graph = graph
        self.start = start
        self.stop = stop
        self.inside = {graph.operators[i].name: i - start for i in range(start, stop)}
        self.outside: dict[Ref, str] = {}
        self.sources: dict[str, int] = {}
        self.definitions: list[str] = []

    def digest(self) -> str:
        lines = []
        for position in range(self.start, self.stop):
            operator = self.graph.operators[position]
            outputs = ", ".join(map(str, operator.outputs))
            lines.append(f"{operator.call_text(self.ref_text)} -> {outputs}{self.reads(operator)}")
        return hashlib.sha256("\n".join([*self.definitions, *lines]).encode("ascii")).hexdigest()

    def ref_text(self, ref: Ref) -> str:
        if ref.name in self.inside:
            return f"%@{self.inside[ref.name]}:{ref.index}"
        if ref not in self.outside:
            self.outside[ref] = f"%@x{len(self.outside)}"
            self.definitions.append(f"{self.outside[ref]} {self.definition(ref)}")
        return self.outside[ref]

    def definition(self, ref: Ref) -> str:
        item = self.graph.producer(ref)
        if isinstance(item, Constant):
            return f"constant {item.spec} {item.persistent}"
        if not isinstance(item, Parameter):
            return f"value {self.graph.spec(ref)}"
        shared = self.is_read_outside(item.name)
        text = f"parameter {item.spec} {item.trainable} shared={shared}"
        if item.section is None:
            return text
        source = self.sources.setdefault(item.section.source, len(self.sources))
        return f"{text} {source}[{item.section.dim}, {item.section.start}:{item.section.stop}]"

    def is_read_outside(self, name: str) -> bool:
        positions = (self.graph.position(user.name) for user in self.graph.users(name))
        return any(not self.start <= position < self.stop for position in positions)

    def reads(self, operator: Operator) -> str:
        """Which outputs of an operator inside are read outside (the model's own included)."""
        refs = {*self.graph.outputs, *(ref for _, ref in self.graph.updates)}
        found = {ref.index for ref in refs if ref.name == operator.name}
        for user in self.graph.users(operator.name):
            if not self.start <= self.graph.position(user.name) < self.stop:
                found |= {ref.index for ref in user.refs() if ref.name == operator.name}
        return f" read {sorted(found)}" if found else ""
