"""Which results of its products a layer keeps when everything between them is computed again.

Plain: all of them (norms and pointwise operators are recomputed). Alternate: torchtitan's selective
option `op` counts the products of a layer in their order and keeps the odd ones (torchtitan,
parallelisms/parallelize_llama.py, `_get_custom_policy`: "every second mm"); attention is kept
either way. Queries, keys and values are three products there and one here, so that of `qkv` the
parts of queries and values are kept, and the part of keys is not. What a reduce-scatter of the
tensor axis makes is on torchtitan's list too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.flops import LINEAR
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, Move, UnitProgram
from shardwise.ir.redistribution import StepKind
from shardwise.planner.operator_time import multiplies
from shardwise.planner.sizes import local_bytes

_JOINED: Final = "qkv"
_LAST: Final = "down"
"""Only the residual sum reads its result, and a sum's backward reads nothing."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The result of a product or of attention in a layer, or of a reduce-scatter."""

    unit: int
    """Index in `units`."""
    step: Call | Move
    share: float
    """Of its result that is not computed again, and of its time that is not spent again: 0 to 1."""
    is_read: bool
    """Whether the backward of the layer reads it."""

    def bytes_per_rank(self, mesh: Mesh, sizes: Mapping[str, int]) -> float:
        """Of what is kept of it, at concrete global sizes."""
        step = self.step
        if isinstance(step, Move):
            return self.share * local_bytes(step.spec, step.target.forward, mesh, sizes)
        return self.share * sum(
            local_bytes(spec, layout.forward, mesh, sizes)
            for spec, layout in zip(step.operator.outputs, step.writes, strict=True)
        )


def kept_results(
    units: Sequence[UnitProgram], shape: DecoderShape, mesh: Mesh, *, alternate: bool
) -> Iterator[KeptResult]:
    """Every product and attention of `units` in order; reduce-scatters too where `alternate`."""
    place = 0
    for index, unit in enumerate(units):
        for step in unit.steps:
            if isinstance(step, Move):
                if alternate and _reduce_scatters(step, mesh):
                    yield KeptResult(index, step, 1.0, step.value != _LAST)
                continue
            if not isinstance(step, Call) or not multiplies(step.operator.kind):
                continue
            name = step.operator.name
            share = 1.0
            if step.operator.kind == LINEAR:
                widths = _widths(name, shape)
                kept = sum(width for at, width in enumerate(widths, place) if not at % 2)
                place += len(widths)
                share = kept / sum(widths) if alternate else 1.0
            yield KeptResult(index, step, share, name != _LAST)


def _reduce_scatters(move: Move, mesh: Mesh) -> bool:
    steps = lower(move.source.forward, move.target.forward, mesh)
    return [step.kind for step in steps] == [StepKind.REDUCE_SCATTER]


def _widths(name: str, shape: DecoderShape) -> tuple[int, ...]:
    """Relative widths of the products that one of our linear layers stands for."""
    if name == _JOINED:
        return shape.heads, shape.kv_heads, shape.kv_heads
    return (1,)
