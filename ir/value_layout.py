"""ValueLayout: the layout of a value together with that of its gradient.

The four states of emission.md, per mesh axis; this pair is what makes every backward right:

    state  forward      gradient     text of forward | gradient
    S      shard        same shard   x0:S(1)
    R      replicated   replicated   R
    R'     replicated   Partial      R | x0:P      (read by work that is sharded)
    P      Partial      replicated   x0:P
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.layout import Layout, Partial, Placement, Replicate, Select
from shardwise.ir.scanner import check_kind, check_text, shown


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """Forward layout and gradient layout of one value.

    Legal pairs on an axis: the same cut twice, R and R, R and P, P and R. A Select may be
    `partial` in at most one of the two (ranks that share indices: values one way, addends the
    other). Cuts of one dim stand in the same order, so that a local gradient has the shape of
    the local value. Text: `R | x0:P`, or `x0:S(1)` where the gradient follows: cuts as forward,
    the rest replicated. Raises InvalidValueError, parse ParseError.
    """

    forward: Layout
    gradient: Layout

    def __post_init__(self) -> None:
        check_kind(self.forward, Layout, "the forward layout of a value")
        check_kind(self.gradient, Layout, "the gradient layout of a value")
        for axis in dict.fromkeys((*self.forward.axes, *self.gradient.axes)):
            pair = self.forward.placement(axis), self.gradient.placement(axis)
            if not _legal(*pair):
                raise InvalidValueError(
                    f"value layout {shown(f'{self.forward} | {self.gradient}')} has {pair[0]} with "
                    f"gradient {pair[1]} on {axis}; legal are equal cuts, R|R, R|P and P|R"
                )
        for dim in self.forward.cut_dims:
            orders = [
                [axis for axis, _ in side.cuts(dim)] for side in (self.forward, self.gradient)
            ]
            if orders[0] != orders[1]:
                raise InvalidValueError(
                    f"value layout {shown(f'{self.forward} | {self.gradient}')} cuts dim {dim} by "
                    f"{', '.join(orders[0])} but its gradient by {', '.join(orders[1])}; "
                    "use one order"
                )

    @classmethod
    def following(cls, forward: Layout) -> "ValueLayout":
        """`forward` with the gradient that an omitted one means."""
        return cls(forward, following(forward))

    @property
    def gradient_follows(self) -> bool:
        """Whether the gradient is the one that an omitted one means."""
        return self.gradient == following(self.forward)

    def at(self, sizes: Mapping[str, int]) -> "ValueLayout":
        """Both layouts with `sizes` put into symbolic outers."""
        return ValueLayout(self.forward.at(sizes), self.gradient.at(sizes))

    def __str__(self) -> str:
        return f"{self.forward}" if self.gradient_follows else f"{self.forward} | {self.gradient}"

    @classmethod
    def parse(cls, text: str) -> "ValueLayout":
        """Inverse of `str`; raises ParseError."""
        parts = check_text(text, "a value layout", "x0:S(1) or 'R | x0:P'").split("|")
        if len(parts) > 2:
            raise ParseError(
                f"value layout {shown(text)} has {len(parts)} parts; expected fwd | grad"
            )
        forward = Layout.parse(parts[0])
        try:
            return cls(forward, Layout.parse(parts[1]) if parts[1:] else following(forward))
        except InvalidValueError as error:
            raise ParseError(f"value layout {shown(text)}: {error}") from error


def following(forward: Layout) -> Layout:
    """The gradient that a forward layout has by default: cuts alike, addends replicated."""
    return Layout(
        tuple(
            (axis, _plain(placement))
            for axis, placement in forward.entries
            if not isinstance(placement, Partial)
        )
    )


def _legal(forward: Placement, gradient: Placement) -> bool:
    if isinstance(forward, Partial):
        return isinstance(gradient, Replicate)
    if isinstance(forward, Replicate):
        return isinstance(gradient, Replicate) or gradient == Partial("sum")
    if isinstance(forward, Select) and isinstance(gradient, Select):
        return _plain(forward) == _plain(gradient) and not (forward.partial and gradient.partial)
    return forward == gradient


def _plain(placement: Placement) -> Placement:
    return replace(placement, partial=False) if isinstance(placement, Select) else placement
