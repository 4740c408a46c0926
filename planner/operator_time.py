"""Seconds of one operator on one rank, forward and backward.

    product      its FLOP at the measured rate of large products plus its bytes at the bandwidth:
                 the two overlap little where the inner dimension is short (docs/prices.md);
                 backward one product of the same size for each factor that needs a gradient
    attention    the larger of the two, since it is one kernel; its backward has its own work and
                 efficiency (`attention.backward`)
    others       bytes over bandwidth. The backward of a linear map (a sum, a cast, dropout) moves
                 what its forward moves; any other reads its operands once more beside the
                 gradient (ir/flops.backward_moved)

Each is at least the launch floor of the software, and a share of the roofline. A product in float8
also pays for casts of its activation and gradient, as they stand and transposed (Transformer
Engine's fused cast and transpose).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.flops import ATTENTION, LINEAR, VIEWS, backward_moved, is_product
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call
from shardwise.ir.software import SoftwareProfile
from shardwise.planner.sizes import call_bytes, number, parts
from shardwise.planner.work import call_flops

_BATCHED: Final = ("aten.matmul.default", "aten.bmm.default", "aten.baddbmm.default")
_PLAIN: Final = "float32"
"""Products in half precision accumulate in it, with or without tensor cores."""
WHOLE_BYTES: Final = 16
"""What rows of operands must be multiples of for tensor cores to load them: 8 elements of 2 bytes
(NVIDIA, Matrix Multiplication Background User's Guide, section 2.2, for cuBLAS before 11; later
ones may use them at a lower rate, which single products do and batched ones are assumed not to)."""
TILES: Final = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 1.05))
"""Rows, columns and relative cost of the tiles of a product: the large ones reuse more of what
they read (NVIDIA, Matrix Multiplication Background User's Guide, tile quantization); 5 % for the
small one is an assumption."""


@dataclass(frozen=True)
class OperatorTime:
    """Prices calls on a device and under a software stack."""

    hardware: HardwareProfile
    software: SoftwareProfile
    ranks_per_device: int = 1
    linear_dtype: str | None = None
    """Of products with weights inside layers, where it is not the compute dtype (float8)."""
    blocking: bool = False
    """The host waits for every kernel (CUDA_LAUNCH_BLOCKING=1): no launch hides behind one."""

    def seconds(
        self, call: Call, needs: Sequence[bool], sizes: Mapping[str, int], mesh: Mesh
    ) -> tuple[float, float]:
        """(forward, backward) of one call; `needs` says which operands need a gradient."""
        operator = call.operator
        if operator.kind in VIEWS and self.hardware.device != "cpu":
            return 0.0, 0.0  # no kernel; the floor of cpu profiles is measured with views
        flops, back = call_flops(call, needs, sizes)
        if flops and multiplies(operator.kind):
            return self._product(call, flops, back, sizes, mesh)
        moved = number(operator.moved_bytes, sizes) / call.parts
        forward = self._floored(self.hardware.memory_s(moved, _memory_key(call)))
        if not call.needs_gradient:
            return forward, 0.0
        again = number(backward_moved(operator, call.operand_specs, needs), sizes) / call.parts
        key = f"{_memory_key(call)}.backward"
        return forward, self._floored(self.hardware.memory_s(again, key))

    def moves_s(self, moved_bytes: float, operators: int = 1) -> float:
        """Seconds of so many equal operators, one after the other, that move `moved_bytes` in all
        and have no call: adding to accumulators, the optimizer."""
        return operators * self._floored(self.hardware.memory_s(moved_bytes) / operators)

    def _product(
        self, call: Call, flops: float, back: float, sizes: Mapping[str, int], mesh: Mesh
    ) -> tuple[float, float]:
        moved = call_bytes(call, mesh, sizes)
        roofline_s = self.hardware.roofline_s
        if call.operator.kind == ATTENTION:
            dtype = call.operator.outputs[0].dtype
            named = f"attention.{dict(call.operator.kwargs).get('kernel')}"
            key = named if named in dict(self.hardware.efficiency) else "attention"
            size, heads = self._heads(call, sizes)

            def attention_s(key: str, work: float, bytes_: float) -> float:
                one = roofline_s(f"{key}{size}", dtype, work / heads, bytes_ / heads)
                return self._floored(heads * one)

            forward = attention_s(key, flops, moved)
            if not back:
                return forward, 0.0
            return forward, attention_s(f"{key}.backward", back, 2 * moved)
        compute = self.hardware.compute_s("matmul", self._units(call, sizes), flops)
        bytes_s = self.hardware.memory_s(moved * self._lowered_share(call))
        forward_tiles, backward_tiles = self._tiling(call, sizes, mesh)
        forward = self._floored(compute * forward_tiles + bytes_s)
        each = self._floored(compute * backward_tiles + bytes_s)
        count = back / flops
        if self._is_lowered(call):
            operands, gradient = self._casts(call, sizes, mesh)
            return forward + operands, count * each + gradient
        return forward, count * each

    def _heads(self, call: Call, sizes: Mapping[str, int]) -> tuple[str, float]:
        """Ending of the key of the nearest head size that `shardwise profile` measured, and how
        many heads, of all documents, one call of the curve's kind does: a core one at a time."""
        before = "attention.backward.d"
        keys = (key for key, _ in self.hardware.efficiency if key.startswith(before))
        known = {int(key.removeprefix(before).split(".")[0]) for key in keys}
        if not known:
            return "", 1.0
        query = call.operand_specs[0].shape
        size = int(number(query[-1], sizes))
        ending = f".d{min(known, key=lambda one: abs(math.log(one / size)))}"
        if self.hardware.device != "cpu":
            return ending, 1.0
        heads = number(query[0], sizes) * number(query[1], sizes) / call.parts
        return ending, max(1.0, heads)

    def _tiling(self, call: Call, sizes: Mapping[str, int], mesh: Mesh) -> tuple[float, float]:
        """Factors by which the last, partly filled round of tiles lengthens a linear: forward, and
        on average its two backward products."""
        processors = self.hardware.processors
        if call.operator.kind != LINEAR or processors is None:
            return 1.0, 1.0
        given, last = call.operand_specs[0], len(call.operand_specs[0].shape) - 1
        read, written = call.reads[0].forward, call.writes[0].forward
        whole = int(number(given.shape[last], sizes))
        inner = whole // _cut(read, last, mesh)
        rows = int(number(given.element_count(), sizes)) // whole
        rows //= parts(read, mesh) // _cut(read, last, mesh)
        outer = int(number(call.operator.outputs[0].shape[last], sizes))
        outer //= _cut(written, last, mesh)
        count = int(processors.value)
        backward = (tile_rounds(rows, inner, count) + tile_rounds(outer, inner, count)) / 2
        return tile_rounds(rows, outer, count), backward

    def _is_lowered(self, call: Call) -> bool:
        return bool(self.linear_dtype) and may_be_lowered(call.operator)

    def _lowered_share(self, call: Call) -> float:
        """Bytes of the three products of a linear over what they are in the compute dtype: of each
        tensor two products read the lower dtype, one writes it or its gradient in the other."""
        if not self._is_lowered(call):
            return 1.0
        assert self.linear_dtype is not None
        size = DTYPE_BYTES[call.operator.outputs[0].dtype]
        return (2 * DTYPE_BYTES[self.linear_dtype] + size) / (3 * size)

    def _dtype(self, call: Call) -> str:
        """The dtype in which a product computes."""
        lowered = self.linear_dtype if self._is_lowered(call) else None
        return lowered or call.operator.outputs[0].dtype

    def _units(self, call: Call, sizes: Mapping[str, int]) -> str:
        """The dtype whose peak a product has: that of the plain cores where a batched one has rows
        that are no multiple of WHOLE_BYTES, its batches then begin between the words that tensor
        cores load."""
        dtype = self._dtype(call)
        if call.operator.kind not in _BATCHED or self.hardware.device == "cpu":
            return dtype
        size = DTYPE_BYTES[dtype]
        specs = (*call.operand_specs[:2], call.operator.outputs[0])
        whole = all(number(spec.shape[-1], sizes) * size % WHOLE_BYTES == 0 for spec in specs)
        return dtype if whole or size >= DTYPE_BYTES[_PLAIN] else _PLAIN

    def _casts(self, call: Call, sizes: Mapping[str, int], mesh: Mesh) -> tuple[float, float]:
        """Seconds to cast the activation of a product, and the gradient of its result: read once,
        two copies written. Weights are cast once a step (planner/uniform_price.py)."""
        assert self.linear_dtype is not None
        low = DTYPE_BYTES[self.linear_dtype]

        def cast_s(index: int, *, output: bool = False) -> float:
            spec = call.operator.outputs[0] if output else call.operand_specs[index]
            layout = call.writes[0] if output else call.reads[index]
            count = number(spec.element_count(), sizes) / parts(layout.forward, mesh)
            return self._floored(
                self.hardware.memory_s(count * (DTYPE_BYTES[spec.dtype] + 2 * low))
            )

        return cast_s(0), cast_s(0, output=True)

    def _floored(self, roofline_s: float) -> float:
        if self.blocking:
            waited_s = self.software.launch_floor_s.value * self.ranks_per_device
            return waited_s + self.ranks_per_device * roofline_s / self.software.efficiency.value
        return self.software.operator_s(roofline_s, self.ranks_per_device)


def multiplies(kind: str) -> bool:
    """Whether an operator is a product or attention: what is priced by its FLOP."""
    return is_product(kind) or kind == ATTENTION


def may_be_lowered(operator: Operator) -> bool:
    """Whether an operator is a product with a weight inside a layer, which float8 stacks lower."""
    return operator.kind == LINEAR and bool(operator.module_path)


def tile_rounds(rows: int, columns: int, processors: int) -> float:
    """Time of a product over what it would be if its tiles filled every round of the processors.

    At 2048 x 5376 on 108 processors 3.1 rounds of large tiles would take 4, and 6.2 of small ones
    7, which is better. Below one full round the measured curve by FLOP already has the loss: 1. The
    best of TILES is taken, as libraries do.
    """
    best = math.inf
    for height, width, cost in TILES:
        rounds = -(-rows // height) * -(-columns // width) / processors
        if rounds < 1:
            return 1.0
        best = min(best, cost * math.ceil(rounds) / rounds)
    return best


def _cut(layout: Layout, dim: int, mesh: Mesh) -> int:
    """In how many parts a layout cuts a dim."""
    return mesh.group_size(tuple(axis for axis, _ in layout.cuts(dim)))


def _memory_key(call: Call) -> str:
    """The efficiency curve of an operator that memory bounds: `memory.silu`, else `memory`."""
    name = call.operator.kind.split(".")[1].strip("_")
    if name == "gelu" and dict(call.operator.kwargs).get("approximate") == "tanh":
        name = "gelu_tanh"
    return f"memory.{name}"
