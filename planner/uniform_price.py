"""Step time and peak memory of a uniform plan of a decoder.

    step   = pipeline of micro-batches (solvers/event_simulator.py) + gradients reduced over the
             data ranks, weights gathered, as far as computing does not hide them + optimizer
    peak   = weights, gradients and optimizer state as ZeRO cuts them + gathered weights + the
             larger of: what the micro-batches in flight keep and the largest backward; what the
             optimizer makes while it steps (planner/published_memory.py)
             + context and process groups

ZeRO: Rajbhandari et al. 2020, section 5. Reduction and gathers are one message of each kind a step
(a micro-batch and layer under ZeRO-3): published stacks put gradients into large buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.span import Span
from shardwise.planner.published_memory import NO_BUFFERS, UNFILLED, StepBuffers
from shardwise.planner.stage_layers import StageLayers, stage_layers
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_pipeline import Pipeline
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_units import PartCost, PartCosts, UniformUnits
from shardwise.solvers.timeline import Timeline

_ZERO_3 = 3


@dataclass(frozen=True, slots=True)
class UniformPrice:
    """Of one step, on the slowest and on the fullest rank."""

    step_s: float
    pipeline_s: float
    """All micro-batches, bubble included."""
    gradients_s: float
    """Reduction and gathers over the data ranks, what shows of them."""
    optimizer_s: float
    peak_bytes: int
    """Per rank, with context and process groups."""
    reserved_bytes: int
    """Per rank, what a caching allocator would hold, context and process groups left out; it gives
    cached blocks back where the device has less."""
    rest_bytes: int
    """Of the peak weights, gradients, optimizer state and copies."""
    kept_bytes: int
    """Most that activations take on that rank: what micro-batches in flight keep, and the largest
    backward."""
    context_bytes: int
    """Of the peak context and process groups, which no allocator reports."""
    capacity_bytes: int
    """Of one rank."""

    @property
    def fits(self) -> bool:
        """Whether the peak is within the rank's memory."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits, and only if the allocator gives back what it has cached."""
        return self.fits and self.reserved_bytes + self.context_bytes > self.capacity_bytes


def price_uniform(
    shape: DecoderShape, plan: UniformPlan, pricer: Pricer, buffers: StepBuffers = NO_BUFFERS
) -> UniformPrice:
    """Price one uniform plan; `pricer` holds cluster, profiles and recipe, `buffers` those of the
    stack's optimizer.

    Raises InvalidValueError where the plan has other than the cluster's ranks, or more model parts
    than layers; UnsupportedError for a dtype or collective without a price.
    """
    made = _Step.of(shape, plan, pricer)
    ran = made.pipeline.run()
    weights, data, layers, cluster = made.weights, made.data, made.layers, pricer.cluster
    counts = [weights.elements(part, plan) for part in _devices(layers, plan)]
    gradients_s = data.step_s(max(counts), ran.last_backward_s)
    optimizer_s = pricer.fused_optimizer_s(max(counts) / plan.shard_size)
    if not data.sharded:
        optimizer_s += max(data.casts_s(weights, part) for part in _devices(layers, plan))
    reserve = reserve_bytes(pricer.hardware, plan)
    rests = [data.rest_bytes(count) for count in counts]
    rests = [rest + data.copy_bytes(weights) for rest in rests]
    reduce_size = DTYPE_BYTES[pricer.training.reduce_dtype]
    steps = [buffers.bytes_per_rank(count, plan, reduce_size) for count in counts]
    capacity = pricer.hardware.rank_memory_bytes(cluster)
    tops: list[float] = []
    held: list[float] = []
    for rest, step, active in zip(rests, steps, ran.activation_bytes, strict=True):
        tops.append(rest + max(step, active))
        held.append(rest + step + active / (1 - UNFILLED.value))
    worst = max(range(len(tops)), key=tops.__getitem__)
    return UniformPrice(
        ran.time_s + gradients_s + optimizer_s,
        ran.time_s,
        gradients_s,
        optimizer_s,
        int(tops[worst]) + reserve,
        int(max(held)),
        int(rests[worst]),
        int(ran.activation_bytes[worst]),
        reserve,
        capacity,
    )


def uniform_timeline(shape: DecoderShape, plan: UniformPlan, pricer: Pricer) -> Timeline:
    """All micro-batches of a step of a uniform plan; raises as `price_uniform`."""
    return _Step.of(shape, plan, pricer).pipeline.timeline()


def reserve_bytes(hardware: HardwareProfile, plan: UniformPlan) -> int:
    """Device context and one process group for each degree that is not 1."""
    degrees = (plan.tensor, plan.pipeline, plan.data, plan.context)
    groups = sum(degree > 1 for degree in degrees)
    return int(hardware.context_bytes.value + groups * hardware.group_bytes.value)


def _devices(layers: Sequence[StageLayers], plan: UniformPlan) -> list[tuple[StageLayers, ...]]:
    """Model parts by the device that holds them."""
    return [
        tuple(part for part in layers if part.device == device) for device in range(plan.pipeline)
    ]


@dataclass(frozen=True, slots=True)
class _PartWeights:
    """Elements per rank of the parts of a decoder, cut over the tensor axis."""

    embed: float
    layer: float
    head: float
    table: float
    """Of them the table that a tied head holds once more on the last stage."""

    @classmethod
    def of(cls, shape: DecoderShape, plan: UniformPlan) -> "_PartWeights":
        t = plan.tensor
        table = shape.vocabulary * shape.hidden / t
        return cls(
            shape.embedding_parameters / t,
            shape.layer_parameters / t,
            shape.head_parameters / t,
            table if shape.tied else 0.0,
        )

    def elements(self, parts: Sequence[StageLayers], plan: UniformPlan) -> float:
        """Of some model parts, such as those of one device."""
        total = 0.0
        for part in parts:
            total += part.layers * self.layer
            if part.first:
                total += self.embed
            if part.last:
                total += self.head + (self.table if plan.pipeline > 1 else 0.0)
        return total


@dataclass(frozen=True)
class _Step:
    """What a step of a uniform plan is made of."""

    layers: tuple[StageLayers, ...]
    weights: _PartWeights
    data: "DataParallel"
    pipeline: Pipeline

    @classmethod
    def of(cls, shape: DecoderShape, plan: UniformPlan, pricer: Pricer) -> "_Step":
        cluster = pricer.cluster
        if plan.world_size != cluster.world_size:
            raise InvalidValueError(
                f"plan '{plan}' has {plan.world_size} ranks, {cluster.name} {cluster.world_size}; "
                "their product must be the cluster's"
            )
        # the table is padded so that the tensor axis cuts it, as Megatron-LM does
        shape = replace(shape, vocabulary=-(-shape.vocabulary // plan.tensor) * plan.tensor)
        layers = stage_layers(shape.layers, plan.pipeline, plan.chunks, plan.schedule)
        costs = UniformUnits(shape, pricer).costs(plan)
        weights = _PartWeights.of(shape, plan)
        data = DataParallel(plan, pricer)
        extras = [data.micro_batch_s(weights, part, costs) for part in layers]
        ran = Pipeline.of(plan, pricer, shape, layers, costs, extras)
        return cls(layers, weights, data, ran)


class DataParallel:
    """What ranks that hold the same part of the model exchange and keep."""

    def __init__(self, plan: UniformPlan, pricer: Pricer) -> None:
        self.plan, self.pricer = plan, pricer
        training = pricer.training
        self.weight_size = DTYPE_BYTES[training.compute_dtype]
        self.gradient_size = DTYPE_BYTES[training.reduce_dtype]
        self.sharded = plan.zero == _ZERO_3
        self.all = self._span(plan.replicas)
        self.group = self._span(plan.shard_size)
        across = plan.replicas // plan.shard_size
        stride = plan.tensor * plan.shard_size
        self.across = pricer.cluster.span(stride, across) if across > 1 else None

    def _span(self, size: int) -> Span | None:
        return self.pricer.cluster.span(self.plan.tensor, size) if size > 1 else None

    def _s(self, kind: str, span: Span | None, message_bytes: float) -> float:
        if span is None or message_bytes == 0:
            return 0.0
        return self.pricer.hardware.collective_s(kind, span, message_bytes)

    def _shown(self, communication_s: float, compute_s: float, span: Span | None) -> float:
        """Seconds added to the compute: what it does not hide, and how it is slowed."""
        if span is None or not self.plan.overlap_gradients:
            return communication_s
        return self.pricer.shown_s(communication_s, compute_s, span)

    def step_s(self, elements: float, last_backward_s: float) -> float:
        """Seconds at the end of a step that show."""
        if self.plan.replicas == 1 or self.sharded:
            return self._across_s(elements) if self.sharded else 0.0
        gradients = elements * self.gradient_size
        if self.plan.zero == 0:
            return self._shown(
                self._s("all_reduce", self.all, gradients), last_backward_s, self.all
            )
        reduced = self._s("reduce_scatter", self.group, gradients) + self._across_s(elements)
        gathered = self._gathered_s(elements)
        reduced_s = self._shown(reduced, last_backward_s, self.group)
        return reduced_s + self._shown(gathered, last_backward_s / 2, self.group)

    def _gathered_s(self, elements: float) -> float:
        """Weights from the ranks that stepped them to all."""
        size, cut = elements * self.weight_size, self.plan.shard_size
        if self.plan.broadcast_weights:
            return cut * self._s("broadcast", self.group, size / cut)
        return self._s("all_gather", self.group, size)

    def _across_s(self, elements: float) -> float:
        """Shards of several groups are summed (HSDP, ZeRO within groups)."""
        size = elements * self.gradient_size / self.plan.shard_size
        return self._s("all_reduce", self.across, size)

    def micro_batch_s(
        self, weights: "_PartWeights", part: StageLayers, costs: PartCosts
    ) -> tuple[float, float]:
        """(forward, backward) seconds that the weights of a model part add to a micro-batch: their
        gradients are added to those of earlier ones, and ZeRO-3 gathers and reduces."""
        forward = self.casts_s(weights, (part,)) if self.sharded else 0.0
        backward = self._accumulate_s(weights.elements((part,), self.plan))
        if not self.sharded or self.group is None:
            return forward, backward
        pieces: list[tuple[float, PartCost, int]] = [(weights.layer, costs.layer, part.layers)]
        if part.first:
            pieces.append((weights.embed, costs.embed, 1))
        if part.last:
            pieces.append((weights.head, costs.head, 1))
        for elements, cost, count in pieces:
            gather = self._s("all_gather", self.group, elements * self.weight_size)
            reduce = self._s("reduce_scatter", self.group, elements * self.gradient_size)
            forward += count * self._shown(gather, cost.forward_s, self.group)
            backward += count * self._shown(gather + reduce, cost.backward_s, self.group)
        return forward, backward

    def casts_s(self, weights: "_PartWeights", parts: Sequence[StageLayers]) -> float:
        """Seconds to cast the weights of layers to the lower dtype of their products, as they stand
        and transposed: once a step, under ZeRO-3 whenever they are gathered."""
        low = self.pricer.linear_dtype
        if low is None:
            return 0.0
        elements = sum(part.layers for part in parts) * weights.layer
        moved = elements * (self.weight_size + 2 * DTYPE_BYTES[low])
        return self.pricer.hardware.memory_s(moved)

    def _accumulate_s(self, elements: float) -> float:
        """A sum is read with what is added, and written; a single micro-batch has none."""
        if self.plan.micro_batches == 1:
            return 0.0
        cut = self.plan.shard_size if self.plan.zero > 1 else 1
        size = DTYPE_BYTES[self.pricer.training.accumulate_dtype]
        return self.pricer.hardware.memory_s(3 * size * elements / cut)

    def rest_bytes(self, elements: float) -> float:
        """Masters, states, gradients and the copies that live for a step."""
        training, cut = self.pricer.training, self.plan.shard_size
        master = DTYPE_BYTES[training.master_dtype]
        states = master * (1 + training.optimizer_kind.state_tensors) / cut
        gradients = DTYPE_BYTES[training.accumulate_dtype] / (cut if self.plan.zero > 1 else 1)
        same = training.compute_dtype == training.master_dtype and cut == 1
        copies = 0 if self.sharded or same else self.weight_size
        return elements * (states + gradients + copies)

    def copy_bytes(self, weights: "_PartWeights") -> float:
        """Gathered weights and whole gradients that ZeRO-3 has at once: two layers (the next one is
        prefetched), or the larger of entrance and exit."""
        if not self.sharded or self.group is None:
            return 0.0
        largest = max(2 * weights.layer, weights.embed, weights.head)
        return largest * (self.weight_size + self.gradient_size)
