"""What stands in an OperatorGraph beside operators: symbols, inputs, parameters, constants."""

import re
from dataclasses import dataclass
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, check_name, made, quote_name, shown
from shardwise.ir.tensor import MAX_DIM, TensorSpec, spec_of

_SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPEC: Final = re.compile(r"[a-z][a-z0-9_]*\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """A symbolic size and the sizes that the trace holds for, both ends included.

    `high` None is no upper end. 1 <= low <= high. Text: `S in 8:4096`, `B in 1:`.
    """

    name: str
    low: int
    high: int | None

    def __post_init__(self) -> None:
        if type(self.name) is not str or not _SYMBOL.fullmatch(self.name):
            raise InvalidValueError(
                f"symbol {shown(self.name)}: a symbol is an ASCII identifier; rename it"
            )
        high = MAX_DIM if self.high is None else self.high
        if (
            type(self.low) is not int
            or type(high) is not int
            or not 1 <= self.low <= high <= MAX_DIM
        ):
            raise InvalidValueError(
                f"symbol {self.name} ranges over {shown(self.low)}:{shown(self.high)}: sizes "
                "are int with "
                "1 <= low <= high; correct the range"
            )

    def __str__(self) -> str:
        return f"{self.name} in {self.low}:{'' if self.high is None else self.high}"

    @classmethod
    def parse(cls, text: str) -> "SymbolRange":
        """The range that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'S in 8:4096' or 'S in 8:'")
        name = scanner.need(_SYMBOL, "a symbol")
        scanner.expect(" in ")
        low = scanner.integer()
        scanner.expect(":")
        high = None if scanner.position == len(scanner.text) else scanner.integer()
        scanner.end()
        return made(text, cls, name, low, high)


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A tensor that the caller of the model gives. Text: `input_ids int64[B, S]`."""

    name: str
    spec: TensorSpec

    def __post_init__(self) -> None:
        check_name(self.name, "an input")
        _check_spec(self.spec, f"input {shown(self.name)}", concrete=False)

    def __str__(self) -> str:
        return f"{quote_name(self.name)} {self.spec}"

    @classmethod
    def parse(cls, text: str) -> "GraphInput":
        """The input that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'input_ids int64[B, S]'")
        name, spec = _scan_item(scanner)
        scanner.end()
        return made(text, cls, name, spec)


@dataclass(frozen=True, slots=True)
class Section:
    """Where a piece of a fused parameter lies: `start:stop` (elements) on `dim` of `source`.

    Text: `c_attn.weight[1, 0:64]`.
    """

    source: str
    """Name of the fused parameter in the model's own state dict."""
    dim: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        check_name(self.source, "the source of a section")
        numbers = (self.dim, self.start, self.stop)
        if any(type(number) is not int for number in numbers) or not (
            self.dim >= 0 and 0 <= self.start < self.stop <= MAX_DIM
        ):
            raise InvalidValueError(
                f"section {self.start}:{self.stop} on dim {self.dim} of {shown(self.source)}: "
                "dim >= 0 and 0 <= start < stop in int; correct it"
            )

    def __str__(self) -> str:
        return f"{quote_name(self.source)}[{self.dim}, {self.start}:{self.stop}]"

    @classmethod
    def parse(cls, text: str) -> "Section":
        """The section that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'c_attn.weight[1, 0:64]'")
        section = cls._scan(scanner)
        scanner.end()
        return section

    @classmethod
    def _scan(cls, scanner: Scanner) -> "Section":
        source = scanner.name()
        scanner.expect("[")
        dim = scanner.integer()
        scanner.expect(", ")
        start = scanner.integer()
        scanner.expect(":")
        stop = scanner.integer()
        scanner.expect("]")
        return made(scanner.text, cls, source, dim, start, stop)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight; tied names are one Parameter, a fused weight is one Parameter per section.

    The shape is concrete. A section's parameter is called `source#what` and its size on the
    section's dim is stop - start. Text: `c_attn.weight#q float32[64, 64] frozen
    alias=tied.weight#q section=c_attn.weight[1, 0:64]` on one line (`frozen`: not trainable;
    `alias=` once per name).
    """

    name: str
    spec: TensorSpec
    trainable: bool = True
    aliases: tuple[str, ...] = ()
    """The other names of the same weight in the model, without `name`."""
    section: Section | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "a parameter")
        where = f"parameter {shown(self.name)}"
        _check_spec(self.spec, where, concrete=True)
        if type(self.trainable) is not bool or type(self.aliases) is not tuple:
            raise InvalidValueError(
                f"{where} has trainable {shown(self.trainable)} and aliases "
                f"{shown(self.aliases)}: "
                "give a bool and a tuple of names"
            )
        for alias in self.aliases:
            check_name(alias, f"an alias of {where}")
        if self.name in self.aliases or len(set(self.aliases)) != len(self.aliases):
            raise InvalidValueError(
                f"{where} has the aliases {shown(self.aliases)}: these are other names, each "
                "once; drop "
                "the repeats"
            )
        if self.section is not None:
            self._check_section(self.section, where)

    def _check_section(self, section: object, where: str) -> None:
        if not isinstance(section, Section):
            raise InvalidValueError(f"{where} has section {shown(section)}: give a Section or None")
        if not self.name.startswith(f"{section.source}#"):
            raise InvalidValueError(
                f"{where} is a section of {shown(section.source)}: its name starts with the "
                "source and "
                f"'#'; rename it"
            )
        sizes = self.spec.shape[section.dim : section.dim + 1]
        if sizes != (section.stop - section.start,):
            raise InvalidValueError(
                f"{where} has shape {self.spec} and section {section}: the size on that dim is "
                "stop - start; correct one of them"
            )

    def __str__(self) -> str:
        parts = [f"{quote_name(self.name)} {self.spec}"]
        if not self.trainable:
            parts.append("frozen")
        parts += [f"alias={quote_name(alias)}" for alias in self.aliases]
        if self.section is not None:
            parts.append(f"section={self.section}")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> "Parameter":
        """The parameter that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'w#q float32[64, 64] frozen alias=v#q section=w[1, 0:64]'")
        name, spec = _scan_item(scanner)
        trainable = not scanner.take(" frozen")
        aliases: list[str] = []
        while scanner.take(" alias="):
            aliases.append(scanner.name())
        section = Section._scan(scanner) if scanner.take(" section=") else None
        scanner.end()
        return made(text, cls, name, spec, trainable, tuple(aliases), section)


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that neither caller nor optimizer gives: a buffer or a constant of the trace.

    Its values are not in the graph. The shape is concrete. Text: `inv_freq float32[32]`,
    `bn.running_mean float32[64] persistent`.
    """

    name: str
    spec: TensorSpec
    persistent: bool = False
    """Whether the state dict of the model holds it."""

    def __post_init__(self) -> None:
        check_name(self.name, "a constant")
        _check_spec(self.spec, f"constant {shown(self.name)}", concrete=True)
        if type(self.persistent) is not bool:
            raise InvalidValueError(
                f"constant {shown(self.name)} has persistent {shown(self.persistent)}: give a bool"
            )

    def __str__(self) -> str:
        return f"{quote_name(self.name)} {self.spec}{' persistent' if self.persistent else ''}"

    @classmethod
    def parse(cls, text: str) -> "Constant":
        """The constant that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'bn.running_mean float32[64] persistent'")
        name, spec = _scan_item(scanner)
        persistent = scanner.take(" persistent")
        scanner.end()
        return made(text, cls, name, spec, persistent)


def _scan_item(scanner: Scanner) -> tuple[str, TensorSpec]:
    name = scanner.name()
    scanner.expect(" ")
    return name, spec_of(scanner.need(_SPEC, "a tensor such as float32[B, S]"))


def _check_spec(spec: object, where: str, *, concrete: bool) -> None:
    if not isinstance(spec, TensorSpec):
        raise InvalidValueError(f"{where} has spec {shown(spec)}: give a TensorSpec")
    if concrete and not spec.is_concrete:
        raise InvalidValueError(
            f"{where} is {spec}: its shape holds at every size of the symbols; give int dims"
        )
