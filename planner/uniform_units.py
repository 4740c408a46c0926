"""What one layer, the entrance and the exit of a decoder cost one rank, at one micro-batch.

The units of the decoder's graph are localised over the tensor axis and priced by the same functions
as any plan of ours (planner/time_model.py, planner/memory_model.py). The sequence is cut over
`context` ranks: every unit sees its part, the attention core all keys, which travel in a ring.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.decoder_graph import LAYER, UNITS, decoder_graph
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.layout import Shard
from shardwise.ir.localise import localise
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh, MeshAxis
from shardwise.ir.program import Call, Move, UnitProgram
from shardwise.ir.redistribution import StepKind
from shardwise.ir.strategy import Recompute, Role, Strategy
from shardwise.ir.training import TrainingSpec
from shardwise.planner.memory_model import SlotMemory, slot_memory, total_bytes
from shardwise.planner.menu import MODEL_AXIS
from shardwise.planner.operator_time import may_be_lowered, multiplies
from shardwise.planner.sizes import call_bytes, local_bytes, number
from shardwise.planner.time_model import Pricer
from shardwise.planner.traffic import Messages, Traffic
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_recompute import KeptResult, kept_results

CORE, HEAD = "core", "head"


@dataclass(frozen=True, slots=True)
class PartCost:
    """Of one part of the model on one rank, for one micro-batch."""

    forward_s: float
    """Messages of the tensor and context axes included."""
    backward_s: float
    """Recomputation included."""
    weight_share: float
    """Share of the backward that computes gradients of weights, which may wait."""
    kept_bytes: float
    """Between forward and backward."""
    opened_bytes: float
    """More while its backward runs: what it recomputes, and its largest call."""


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Of the three parts of a decoder."""

    embed: PartCost
    layer: PartCost
    head: PartCost


class UniformUnits:
    """Prices the parts of one decoder under uniform plans on one machine."""

    def __init__(self, shape: DecoderShape, pricer: Pricer) -> None:
        self.shape, self.pricer = shape, pricer

    def costs(self, plan: UniformPlan) -> PartCosts:
        """Of the embedding, one layer, and the head."""
        traffic, memory = local_decoder(
            self.shape, self.pricer.training, plan.tensor, plan.sequence_parallel, self._link(plan)
        )
        prices = [self._unit(plan, traffic, name) for name in UNITS]
        parts = []
        for names in (("embed",), LAYER, ("head",)):
            places = [UNITS.index(name) for name in names]
            forward_s = backward_s = weight_s = 0.0
            for place in places:
                one = prices[place]
                forward_s += one.forward_s
                backward_s += one.backward_s + one.again_s
                weight_s += one.weight_s
            kept, opened = self._bytes(plan, traffic, memory, places)
            share = min(1.0, weight_s / backward_s) if backward_s else 0.0
            parts.append(PartCost(forward_s, backward_s, share, kept, opened))
        return PartCosts(*parts)

    def _link(self, plan: UniformPlan) -> str:
        return self.pricer.cluster.link_of(1, plan.tensor) if plan.tensor > 1 else ""

    def _sizes(self, plan: UniformPlan, name: str) -> Mapping[str, int]:
        """The core sees the whole sequence; its cost is then divided."""
        length = plan.sequence_length
        if name != CORE:
            length = max(1, length // plan.context)
        return {"B": plan.micro_batch, "S": length}

    def _unit(self, plan: UniformPlan, traffic: Traffic, name: str) -> "_UnitPrice":
        unit = traffic.program.units[UNITS.index(name)]
        sizes = self._sizes(plan, name)
        forward_s, backward_s, _ = self.pricer.calls_s(traffic, unit, sizes)
        weight_s = self.pricer.weight_gradients_s(traffic, unit, sizes)
        back = traffic.backward_values(unit.steps, sizes)
        if plan.sequence_parallel and plan.tensor > 1:
            back += _gathers(traffic, unit, sizes)
        if name == CORE and plan.context > 1:
            forward_s, backward_s = forward_s / plan.context, backward_s / plan.context
            forward_s += self._ring_s(plan, forward_s, 1)
            backward_s += self._ring_s(plan, backward_s, 2)
        forward_s += self._messages_s(
            plan, traffic, traffic.forward_values(unit.steps, sizes), forward_s
        )
        backward_s += self._messages_s(plan, traffic, back, backward_s)
        again_s = self._again_s(plan, traffic, name, forward_s)
        return _UnitPrice(forward_s, backward_s, weight_s, again_s)

    def _messages_s(
        self, plan: UniformPlan, traffic: Traffic, messages: Messages, compute_s: float
    ) -> float:
        """Seconds that messages of the tensor axis add to a unit's compute."""
        whole = self.pricer.messages_s(messages, traffic)
        if not plan.overlap_tensor or not whole:
            return whole
        return self.pricer.shown_s(whole, compute_s, self.pricer.cluster.span(1, plan.tensor))

    def _ring_s(self, plan: UniformPlan, compute_s: float, tensors: int) -> float:
        """Keys and values go round while the core computes; what compute does not hide shows."""
        shape, size = self.shape, DTYPE_BYTES[self.pricer.training.compute_dtype]
        rows = plan.micro_batch * plan.sequence_length // plan.context
        heads = max(1, shape.kv_heads // plan.tensor)
        hop = 2 * tensors * rows * heads * shape.head_size * size
        span = self.pricer.cluster.span(plan.tensor, plan.context)
        one = self.pricer.hardware.collective_s("send_recv", span, hop)
        return self.pricer.shown_s(one * (plan.context - 1), compute_s, span)

    def _again_s(self, plan: UniformPlan, traffic: Traffic, name: str, forward_s: float) -> float:
        """What of a unit's forward, its messages included, is computed once more."""
        if name not in LAYER or plan.recompute is Recompute.NONE:
            return 0.0
        if plan.recompute is Recompute.ATTENTION and name != CORE:
            return 0.0
        if plan.recompute is not Recompute.REGION:
            return forward_s
        # norms and what is pointwise; results of products and of attention are kept
        unit, sizes = traffic.program.units[UNITS.index(name)], self._sizes(plan, name)
        other = self.pricer.calls_s(traffic, unit, sizes, only=lambda kind: not multiplies(kind))[0]
        return other / (plan.context if name == CORE else 1) + sum(
            (1 - kept.share) * self.pricer.forward_s(traffic, kept.step, sizes)
            for kept in self._kept_results(plan, traffic)
            if UNITS[kept.unit] == name and isinstance(kept.step, Call) and kept.share < 1
        )

    def _kept_results(self, plan: UniformPlan, traffic: Traffic) -> Iterator[KeptResult]:
        """Of all units; those outside layers have no products that are recomputed."""
        units = traffic.program.units
        for one in kept_results(units, self.shape, traffic.mesh, alternate=plan.alternate):
            if UNITS[one.unit] in LAYER:
                yield one

    def _bytes(
        self, plan: UniformPlan, traffic: Traffic, memory: SlotMemory, places: list[int]
    ) -> tuple[float, float]:
        """(kept between the passes, more while the backward of the part runs)."""
        kept = opened = transient = 0.0
        inputs = 0.0
        for place in places:
            name, unit = UNITS[place], traffic.program.units[place]
            sizes = self._sizes(plan, name)
            share = plan.context if name == CORE else 1
            before = memory.phases[place - 1].kept if place else ()
            own = float(total_bytes(memory.phases[place].kept, sizes) - total_bytes(before, sizes))
            if plan.sequence_parallel and plan.tensor > 1:
                own -= _gathered_bytes(traffic, unit, sizes)
            own -= self._lowered_bytes(traffic, unit, sizes)
            own /= share
            read = sum(number(size, sizes) for size in traffic.unit_saves(unit).inputs.values())
            if place == places[0]:
                inputs = read / share
            if name == CORE and plan.recompute is Recompute.ATTENTION:
                kept += read / share
                opened += max(0.0, own - read / share)
            else:
                kept += own
            if name == HEAD and self.shape.fused_loss:
                largest = _output_bytes(traffic, unit, sizes)
            else:
                largest = max((number(s, sizes) for s in memory.phases[place].transient), default=0)
            transient = max(transient, largest / share)
        if UNITS[places[0]] not in LAYER:
            return kept, opened + transient
        held = kept
        if plan.recompute is Recompute.LAYER:
            held = inputs
        elif plan.recompute is Recompute.REGION:
            held = inputs + self._results(plan, traffic)
            held = held if plan.alternate else min(kept, held)
        away = plan.offload / 1000 * held
        return held - away, away + opened + max(0.0, kept - held) + transient

    def _lowered_bytes(
        self, traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]
    ) -> float:
        """Bytes that are not kept where products in float8 keep their inputs in it: of a gathered
        one its part, which alone is kept."""
        low = self.pricer.linear_dtype
        if low is None:
            return 0.0
        parts = {move.name: move.source.forward for move in _gather_moves(traffic, unit)}
        inputs = {
            ref: (step.operand_specs[0], parts.get(ref.name, step.reads[0].forward))
            for step in unit.steps
            if isinstance(step, Call) and may_be_lowered(step.operator)
            for ref in step.operator.refs()[:1]
        }
        return sum(
            local_bytes(spec, layout, traffic.mesh, sizes)
            * (1 - DTYPE_BYTES[low] / DTYPE_BYTES[spec.dtype])
            for spec, layout in inputs.values()
        )

    def _results(self, plan: UniformPlan, traffic: Traffic) -> float:
        """Bytes of the results of products and attention of a layer that are kept."""
        total = 0.0
        for kept in self._kept_results(plan, traffic):
            if plan.alternate and plan.compiled and not kept.is_read:
                continue
            name = UNITS[kept.unit]
            size = kept.bytes_per_rank(traffic.mesh, self._sizes(plan, name))
            total += size / (plan.context if name == CORE else 1)
        return total


@dataclass(frozen=True, slots=True)
class _UnitPrice:
    forward_s: float
    backward_s: float
    weight_s: float
    again_s: float
    """Of the forward, where it is recomputed."""


@lru_cache(maxsize=512)
def local_decoder(
    shape: DecoderShape, training: TrainingSpec, tensor: int, sequence: bool, link: str
) -> tuple[Traffic, SlotMemory]:
    """The local program over the tensor axis, one layer of the decoder, and what its units keep one
    after the other, none recomputed."""
    graph, units = decoder_graph(shape, training.compute_dtype)
    mesh = Mesh((MeshAxis(MODEL_AXIS, tensor, link),) if tensor > 1 else ())
    name = "tensor_sequence" if sequence else "tensor"
    roles = tuple((axis.name, Role.TENSOR) for axis in mesh.axes)
    program = localise(graph, units, mesh, [Strategy(name, roles, (), ())] * len(units))
    traffic = Traffic(program, {}, training)
    return traffic, slot_memory(traffic, range(len(units)), [False] * len(units))


def _output_bytes(traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]) -> float:
    """Operands and results of the output layer, whose backward is the largest call of the exit
    where the loss is one kernel: it reads logits, writes their gradient, and makes no other."""
    return max(
        call_bytes(step, traffic.mesh, sizes)
        for step in unit.steps
        if isinstance(step, Call) and multiplies(step.operator.kind)
    )


def _gather_moves(traffic: Traffic, unit: UnitProgram) -> list[Move]:
    """Moves that gather the sequence: Megatron keeps the part and gathers again in the backward
    (Korthikanti et al. 2022, section 4.2.2)."""
    return [
        step
        for step in unit.steps
        if isinstance(step, Move)
        and step.needs_gradient
        and any(isinstance(p, Shard) for _, p in step.source.forward.entries)
        and [s.kind for s in lower(step.source.forward, step.target.forward, traffic.mesh)]
        == [StepKind.ALL_GATHER]
    ]


def _gathers(traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]) -> Messages:
    return traffic.forward_values(_gather_moves(traffic, unit), sizes)


def _gathered_bytes(traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]) -> float:
    """Bytes that are not kept where the gathered value is made again from its part."""
    mesh = traffic.mesh
    return sum(
        local_bytes(move.spec, move.target.forward, mesh, sizes)
        - local_bytes(move.spec, move.source.forward, mesh, sizes)
        for move in _gather_moves(traffic, unit)
    )
