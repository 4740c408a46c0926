"""ModelFingerprint: what a plan remembers of the model that it was made for."""

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.scanner import Scanner, check_name, made, quote_name, shown
from shardwise.ir.template import Template, Unit, check_cover, check_digest

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class UnitRun:
    """`count` >= 1 consecutive units of one template. Text: `layers*12`, `head` for one."""

    template: str
    count: int = 1

    def __post_init__(self) -> None:
        check_name(self.template, "the template of a run of units")
        if type(self.count) is not int or not 1 <= self.count < 10**9:
            raise InvalidValueError(
                f"run of {shown(self.count)} units of {shown(self.template)}: give an int >= 1"
            )

    def __str__(self) -> str:
        return f"{quote_name(self.template)}{f'*{self.count}' if self.count > 1 else ''}"

    @classmethod
    def parse(cls, text: str) -> "UnitRun":
        """The run that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'layers*12' or 'head'")
        run = cls._scan(scanner)
        scanner.end()
        return run

    @classmethod
    def _scan(cls, scanner: Scanner) -> "UnitRun":
        template = scanner.name()
        count = scanner.integer() if scanner.take("*") else 1
        return made(scanner.text, cls, template, count)


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """Identity of a traced model: a plan runs on no other.

    Text: `gpt2 parameters=124439808 units=embed,layers*12,head digest=<64 hex>`.
    """

    name: str
    """For people, e.g. the class name; not compared by `differences`."""
    digest: str
    """`OperatorGraph.digest()`."""
    parameter_count: int
    """Elements of all parameters, frozen ones included, tied ones once."""
    units: tuple[UnitRun, ...]
    """Templates of the units in order, run-length encoded: neighbours differ."""

    def __post_init__(self) -> None:
        check_name(self.name, "a model")
        where = f"fingerprint of {shown(self.name)}"
        check_digest(self.digest, where)
        if type(self.parameter_count) is not int or not 0 <= self.parameter_count < 2**63:
            raise InvalidValueError(
                f"{where} has parameter_count {shown(self.parameter_count)}: give an int >= 0"
            )
        if (
            type(self.units) is not tuple
            or not self.units
            or not all(isinstance(run, UnitRun) for run in self.units)
        ):
            raise InvalidValueError(
                f"{where} has units {shown(self.units)}: give a tuple of UnitRun, one or more"
            )
        for run, following in zip(self.units, self.units[1:], strict=False):
            if run.template == following.template:
                raise InvalidValueError(
                    f"{where} has neighbouring runs {run} and {following} of one template: "
                    "merge them"
                )

    @classmethod
    def of(
        cls,
        name: str,
        graph: OperatorGraph,
        *,
        units: tuple[Unit, ...],
        templates: tuple[Template, ...],
    ) -> "ModelFingerprint":
        """The fingerprint of a graph with its units and templates.

        Raises InvalidValueError unless the units cover the graph and each is in one template.
        """
        check_cover(graph, units)
        owners = [(unit, template.name) for template in templates for unit in template.units]
        template_of = dict(owners)
        if len(template_of) != len(owners) or set(template_of) != {unit.name for unit in units}:
            raise InvalidValueError(
                f"templates {shown([template.name for template in templates])} do not hold "
                "each unit "
                f"of {shown(name)} once; group the units again"
            )
        runs = groupby(template_of[unit.name] for unit in units)
        return cls(
            name,
            graph.digest(),
            sum(int(parameter.spec.element_count()) for parameter in graph.parameters),
            tuple(UnitRun(template, len(list(members))) for template, members in runs),
        )

    @property
    def unit_count(self) -> int:
        """Number of units of the model."""
        return sum(run.count for run in self.units)

    def template_names(self) -> tuple[str, ...]:
        """The template of every unit, in order."""
        return tuple(run.template for run in self.units for _ in range(run.count))

    def differences(self, other: "ModelFingerprint") -> tuple[str, ...]:
        """What another model has else, `here -> there`, coarsest first; () if nothing."""
        found = []
        if self.parameter_count != other.parameter_count:
            found.append(f"parameters {self.parameter_count} -> {other.parameter_count}")
        if self.units != other.units:
            found.append(f"units {_runs_text(self.units)} -> {_runs_text(other.units)}")
        if self.digest != other.digest:
            found.append(f"operators {self.digest[:12]} -> {other.digest[:12]}")
        return tuple(found)

    def __str__(self) -> str:
        return (
            f"{quote_name(self.name)} parameters={self.parameter_count} "
            f"units={_runs_text(self.units)} digest={self.digest}"
        )

    @classmethod
    def parse(cls, text: str) -> "ModelFingerprint":
        """The fingerprint that prints as `text`; raises ParseError."""
        scanner = Scanner(
            text, "'gpt2 parameters=124439808 units=embed,layers*12,head digest=<64 hex>'"
        )
        name = scanner.name()
        scanner.expect(" parameters=")
        parameter_count = scanner.integer()
        scanner.expect(" units=")
        units = [UnitRun._scan(scanner)]
        while scanner.take(","):
            units.append(UnitRun._scan(scanner))
        scanner.expect(" digest=")
        digest = scanner.need(_DIGEST, "64 digits of lower-case hex")
        scanner.end()
        return made(text, cls, name, digest, parameter_count, tuple(units))


def _runs_text(runs: tuple[UnitRun, ...]) -> str:
    return ",".join(map(str, runs))
