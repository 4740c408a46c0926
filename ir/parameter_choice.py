"""ParameterChoice: where a parameter rests and its gradient is summed, for all buckets alike.

The usual schemes are corners of it (design, section 1), over the data axes:

    DDP     master replicated, accumulator replicated, lifetime step
    ZeRO-1  master sharded, accumulator replicated, lifetime step
    ZeRO-2  master sharded, accumulator sharded, lifetime step
    ZeRO-3  master sharded, accumulator sharded, lifetime use

Any other combination of layouts is legal too, as long as both hold values and not addends.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.layout import Layout
from shardwise.ir.name_pattern import NamePattern
from shardwise.ir.scanner import Scanner, made, quote_string, shown

_BARE: Final = re.compile(r"[A-Za-z0-9_.#{}:-]+")
_LAYOUT: Final = re.compile(r"[^\[\]]+")
_WORD: Final = re.compile(r"[a-z_]+")
_FORM: Final = "'layers.{0:4}.w master=[x0:S(0)] accumulator=[R] lifetime=step'"


class Lifetime(StrEnum):
    """How long a gathered compute copy of a parameter lives."""

    USE = "use"
    """Gathered for each use, forward and backward, and dropped after it."""
    MICRO_BATCH = "micro_batch"
    """Kept from the first use in a micro-batch to the last."""
    STEP = "step"
    """Kept from one optimizer step to the next."""


@dataclass(frozen=True, slots=True)
class ParameterChoice:
    """Layouts and copy lifetime of all parameters whose name `pattern` stands for.

    Text: `layers.{0:4}.w master=[x0:S(0)] accumulator=[R] lifetime=step`, the pattern as a
    JSON string where it has blanks or other letters. Neither layout is Partial: an optimizer
    steps on values, and what is summed between micro-batches is complete on every rank that
    holds it (sums that wait for the end of the step follow from the strategies). Raises
    InvalidValueError.
    """

    pattern: str
    """A `NamePattern`: a name of the model, `{a:b}` for the layer numbers a to b - 1."""
    master: Layout
    """Where the master weight and the optimizer state live, on the mesh of one stage."""
    accumulator: Layout
    """Where the gradient is summed between micro-batches, on the mesh of one stage."""
    lifetime: Lifetime

    def __post_init__(self) -> None:
        if type(self.pattern) is not str:
            raise InvalidValueError(f"pattern {shown(self.pattern)}: give a str")
        try:
            NamePattern.parse(self.pattern)
        except ParseError as error:
            raise InvalidValueError(str(error)) from None
        where = f"parameter {shown(self.pattern)}"
        for what, layout in (("master", self.master), ("accumulator", self.accumulator)):
            if not isinstance(layout, Layout):
                raise InvalidValueError(f"{where}: {what} {shown(layout)} is no Layout; give one")
            if layout.addends:
                raise InvalidValueError(
                    f"{where}: {what} '{layout}' is Partial; a {what} holds complete values, "
                    "replicate or shard it"
                )
        if not isinstance(self.lifetime, Lifetime):
            raise InvalidValueError(
                f"{where}: lifetime {shown(self.lifetime)} is none of "
                f"{', '.join(Lifetime)}; choose one"
            )

    def __str__(self) -> str:
        bare = _BARE.fullmatch(self.pattern)
        return (
            f"{self.pattern if bare else quote_string(self.pattern)} master=[{self.master}] "
            f"accumulator=[{self.accumulator}] lifetime={self.lifetime}"
        )

    @classmethod
    def parse(cls, text: str) -> "ParameterChoice":
        """The choice that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _FORM)
        pattern = scanner.match(_BARE) or scanner.string()
        scanner.expect(" master=[")
        master = scanner.need(_LAYOUT, "a layout")
        scanner.expect("] accumulator=[")
        accumulator = scanner.need(_LAYOUT, "a layout")
        scanner.expect("] lifetime=")
        lifetime = parse_lifetime(scanner.need(_WORD, "a lifetime"))
        scanner.end()
        return made(text, cls, pattern, Layout.parse(master), Layout.parse(accumulator), lifetime)

    @property
    def names(self) -> NamePattern:
        """The parameter names that the choice is for."""
        return NamePattern.parse(self.pattern)


def parse_lifetime(text: str) -> Lifetime:
    """The lifetime of that name; raises ParseError."""
    try:
        return Lifetime(text)
    except ValueError:
        raise ParseError(
            f"cannot parse {shown(text)} as a lifetime: expected one of {', '.join(Lifetime)}"
        ) from None
