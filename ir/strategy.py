"""Strategy: how an operator or a region computes on the mesh."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, made, shown
from shardwise.ir.value_layout import ValueLayout


class Role(StrEnum):
    """What an axis of the mesh splits in an operator."""

    BATCH = "batch"
    SEQUENCE = "sequence"
    TENSOR = "tensor"
    """Columns, rows, heads or the vocabulary."""
    EXPERT = "expert"
    REPLICATE = "replicate"
    """Nothing: all ranks along the axis compute the same."""


class Recompute(StrEnum):
    """What of the forward is computed again in the backward instead of being saved."""

    NONE = "none"
    ATTENTION = "attention"
    """The attention core."""
    REGION = "region"
    LAYER = "layer"


_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_LAYOUTS: Final = re.compile(r"\[([^\[\]]*)\]")
_RESERVED: Final = ("recompute", "in", "out")
_FORM: Final = "'tensor x0=tensor data=batch recompute=layer in=[data:S(0)] out=[data:S(0)]'"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to compute an operator or a region: an implementation, roles and layouts.

    Axes have one role each; an axis without one is not used and is replicated. Layouts mention
    only axes with a role other than `replicate`. Raises InvalidValueError otherwise.

    Text: `tensor_sequence x0=tensor data=batch recompute=layer in=[data:S(0) x0:S(1); R | x0:P]
    out=[data:S(0) x0:S(1)] splits_backward not_executable` on one line; `recompute=none` and
    the flags that do not hold are left out.
    """

    implementation: str
    """Name in the function library (`tensor_sequence`, `ring`), or of an operator's rule."""
    roles: tuple[tuple[str, Role], ...]
    inputs: tuple[ValueLayout, ...]
    """Of the values that it reads, in the order of the operator's references."""
    outputs: tuple[ValueLayout, ...]
    recompute: Recompute = Recompute.NONE
    splits_backward: bool = False
    """Whether gradients of inputs and of weights can be computed at different times."""
    executable: bool = True
    """Whether this version's runtime can run it (else it is priced only)."""

    def __post_init__(self) -> None:
        if type(self.implementation) is not str or not _NAME.fullmatch(self.implementation):
            raise InvalidValueError(
                f"strategy {shown(self.implementation)}: the implementation is a name of a-z, "
                "0-9 and _"
            )
        where = f"strategy {self.implementation}"
        _check_roles(self.roles, where)
        used = {axis for axis, role in self.roles if role is not Role.REPLICATE}
        for what in ("inputs", "outputs"):
            layouts = getattr(self, what)
            if type(layouts) is not tuple or not all(isinstance(x, ValueLayout) for x in layouts):
                raise InvalidValueError(
                    f"{where} has {what} {shown(layouts)}: give a tuple of ValueLayout"
                )
            for layout in layouts:
                unused = _axes(layout) - used
                if unused:
                    raise InvalidValueError(
                        f"{where} has {what} with {shown(str(layout))}, but axis "
                        f"{', '.join(sorted(unused))} has no "
                        "role that splits; give it one or replicate the value"
                    )
        if not isinstance(self.recompute, Recompute):
            raise InvalidValueError(
                f"{where} has recompute {shown(self.recompute)}: use Recompute of "
                f"{', '.join(Recompute)}"
            )
        if type(self.splits_backward) is not bool or type(self.executable) is not bool:
            raise InvalidValueError(
                f"{where} has splits_backward {shown(self.splits_backward)} and executable "
                f"{shown(self.executable)}: give a bool for both"
            )

    def role(self, axis: str) -> Role:
        """The role of an axis, `replicate` where it has none."""
        return dict(self.roles).get(axis, Role.REPLICATE)

    def axes(self, role: Role) -> tuple[str, ...]:
        """The axes of a role, in order."""
        return tuple(axis for axis, its_role in self.roles if its_role is role)

    def __str__(self) -> str:
        parts = [self.implementation, *(f"{axis}={role}" for axis, role in self.roles)]
        if self.recompute is not Recompute.NONE:
            parts.append(f"recompute={self.recompute}")
        parts.append(f"in=[{'; '.join(map(str, self.inputs))}]")
        parts.append(f"out=[{'; '.join(map(str, self.outputs))}]")
        if self.splits_backward:
            parts.append("splits_backward")
        if not self.executable:
            parts.append("not_executable")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> "Strategy":
        """The strategy that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _FORM)
        implementation = scanner.need(_NAME, "the name of an implementation")
        roles: list[tuple[str, Role]] = []
        recompute = Recompute.NONE
        scanner.expect(" ")
        while not scanner.take("in="):
            if scanner.take("recompute="):
                recompute = _scan_recompute(scanner)
                scanner.expect(" in=")
                break
            axis = scanner.need(_NAME, "an axis, 'recompute=' or 'in='")
            scanner.expect("=")
            roles.append((axis, _scan_role(scanner)))
            scanner.expect(" ")
        inputs = _scan_layouts(scanner)
        scanner.expect(" out=")
        outputs = _scan_layouts(scanner)
        splits_backward = scanner.take(" splits_backward")
        executable = not scanner.take(" not_executable")
        scanner.end()
        return made(
            text,
            cls,
            implementation,
            tuple(roles),
            inputs,
            outputs,
            recompute=recompute,
            splits_backward=splits_backward,
            executable=executable,
        )


def _check_roles(roles: object, where: str) -> None:
    if type(roles) is not tuple or not all(
        type(entry) is tuple and len(entry) == 2 and isinstance(entry[1], Role) for entry in roles
    ):
        raise InvalidValueError(f"{where} has roles {shown(roles)}: give (axis, Role) pairs")
    axes = [axis for axis, _ in roles]
    for axis in axes:
        if type(axis) is not str or not _NAME.fullmatch(axis) or axis in _RESERVED:
            raise InvalidValueError(
                f"{where} has the axis {shown(axis)}: an axis is a name of a-z, 0-9 and _, not "
                "one "
                f"of {', '.join(_RESERVED)}; rename it"
            )
    if len(set(axes)) != len(axes):
        raise InvalidValueError(f"{where} has the axes {shown(axes)}: one role an axis; drop one")


def _axes(layout: ValueLayout) -> set[str]:
    return {axis for side in (layout.forward, layout.gradient) for axis, _ in side.entries}


def _scan_role(scanner: Scanner) -> Role:
    start = scanner.position
    word = scanner.need(_NAME, "a role")
    if word not in set(Role):
        scanner.position = start
        raise scanner.error(f"one of {', '.join(Role)}")
    return Role(word)


def _scan_recompute(scanner: Scanner) -> Recompute:
    start = scanner.position
    word = scanner.need(_NAME, "what is recomputed")
    if word not in set(Recompute):
        scanner.position = start
        raise scanner.error(f"one of {', '.join(Recompute)}")
    return Recompute(word)


def _scan_layouts(scanner: Scanner) -> tuple[ValueLayout, ...]:
    body = scanner.need(_LAYOUTS, "layouts in brackets, '[data:S(0); R]'")[1:-1]
    return tuple(ValueLayout.parse(part) for part in body.split("; ")) if body else ()
