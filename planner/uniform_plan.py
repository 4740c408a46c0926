"""UniformPlan: a plan as its users name it, the same everywhere: tp=8 pp=4 dp=2.

What published runs and the flags of other launchers describe. Text: `tp=8 pp=4 dp=2 cp=1
micro_batch=1 micro_batches=32 length=4096 schedule=1f1b chunks=1 zero=1 sequence_parallel
recompute=layer`; parts that have their default may be left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute

_ALIASES: Final[Mapping[str, str]] = {
    "tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "mbs": "micro_batch",
    "vpp": "chunks", "sp": "sequence_parallel", "length": "sequence_length",
}  # fmt: skip
_FLAGS: Final = (
    "sequence_parallel", "overlap_gradients", "overlap_tensor", "broadcast_weights", "alternate",
    "compiled",
)  # fmt: skip
_PART: Final = re.compile(r"([a-z_]+)(?:=([a-z0-9_]+))?")
_MAX_ZERO: Final = 3
_THOUSAND: Final = 1000


@dataclass(frozen=True, slots=True)
class UniformPlan:
    """One way to train: the same degrees for every layer and every micro-batch.

    Raises InvalidValueError for a degree below 1, a ZeRO stage that is not 0 to 3, several chunks
    without an interleaved schedule, a shard group that does not divide the data degree, an
    `offload` above 1000, or `alternate` without recompute=region.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    """Ranks over which the sequence of one document is split (ring attention)."""
    micro_batch: int = 1
    """Documents of one replica in a micro-batch."""
    micro_batches: int = 1
    """Of one replica in a step (gradient accumulation)."""
    sequence_length: int = 1
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    chunks: int = 1
    """Model parts of one device (virtual stages)."""
    zero: int = 0
    """0: all on every rank; 1: optimizer state is cut over the data ranks; 2: gradients too;
    3: weights too."""
    shard: int = 0
    """Data ranks over which ZeRO cuts; 0 is all of them."""
    sequence_parallel: bool = False
    """Between tensor-parallel parts activations are cut over the sequence."""
    recompute: Recompute = Recompute.NONE
    overlap_gradients: bool = False
    """Gradients are reduced, and weights gathered, beside computation."""
    broadcast_weights: bool = False
    """ZeRO-1 and 2: each rank broadcasts the weights that it stepped, one rank after the other,
    where others gather them all at once."""
    overlap_tensor: bool = False
    """Messages of the tensor axis run beside the products that they feed, in pieces (asynchronous
    tensor parallelism, user buffers)."""
    alternate: bool = False
    """With recompute=region: of the products of a layer, in their order, every second one is
    computed again instead of being kept (torchtitan's selective option `op`)."""
    compiled: bool = False
    """Layers are compiled: a result that recomputation was told to keep is dropped where the
    backward does not read it. Eager selective checkpoints keep it all the same."""
    offload: int = 0
    """Thousandths of what a layer keeps for the backward that wait in the host's memory."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" or type(field.default) is int:
                least = 0 if field.name in ("zero", "shard", "offload") else 1
                if type(value) is not int or value < least:
                    raise InvalidValueError(
                        f"{field.name} of a uniform plan is {value!r}; give an int >= {least}"
                    )
        if self.zero > _MAX_ZERO:
            raise InvalidValueError(f"zero={self.zero}: stages of ZeRO are 0 to 3; correct it")
        if self.offload > _THOUSAND:
            raise InvalidValueError(
                f"offload={self.offload}: it is in thousandths of what is kept; give 0 to 1000"
            )
        if self.alternate and self.recompute is not Recompute.REGION:
            raise InvalidValueError(
                f"alternate with recompute={self.recompute}: it says which products of a region "
                "are kept; set recompute=region or leave it out"
            )
        if self.shard and self.data * self.context % self.shard:
            raise InvalidValueError(
                f"shard={self.shard} does not divide {self.data * self.context} data ranks; "
                "give a divisor"
            )
        if self.chunks > 1 and not self.schedule.takes_chunks:
            raise InvalidValueError(
                f"chunks={self.chunks} with schedule {self.schedule}: only an interleaved schedule "
                "has several model parts on a device; set chunks=1 or another schedule"
            )

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def replicas(self) -> int:
        """Ranks that hold the same part of the model and reduce gradients together."""
        return self.data * self.context

    @property
    def shard_size(self) -> int:
        """Ranks over which ZeRO cuts: 1 without it."""
        return 1 if self.zero == 0 else self.shard or self.replicas

    @property
    def documents_per_step(self) -> int:
        """Global."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def tokens_per_step(self) -> int:
        """Global."""
        return self.documents_per_step * self.sequence_length

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            name = next((k for k, v in _ALIASES.items() if v == field.name), field.name)
            parts.append(name if value is True else f"{name}={value}")
        return " ".join(parts) or "tp=1"

    @classmethod
    def parse(cls, text: str) -> "UniformPlan":
        """The plan that `text` names; raises ParseError, InvalidValueError."""
        if not isinstance(text, str):
            raise ParseError(f"a uniform plan is text such as 'tp=8 pp=4', not {text!r:.60}")
        readers: dict[str, type[ScheduleKind] | type[Recompute]] = {
            "schedule": ScheduleKind, "recompute": Recompute
        }  # fmt: skip
        names = {field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for part in text.split():
            match = _PART.fullmatch(part)
            name = _ALIASES.get(match[1], match[1]) if match else ""
            if match is None or name not in names or name in values:
                short = {long: alias for alias, long in _ALIASES.items()}
                valued = sorted(short.get(one, one) for one in names - set(_FLAGS))
                raise ParseError(
                    f"{part!r:.60} in a uniform plan: give {', '.join(valued)} with =value, or "
                    f"{', '.join(_FLAGS)} alone; each at most once"
                )
            try:
                if (match[2] is None) != (name in _FLAGS):
                    raise ValueError
                read = readers.get(name, int)
                values[name] = True if name in _FLAGS else read(match[2])
            except ValueError:
                if name in _FLAGS:
                    what = f"{match[1]} stands alone; leave it out where it is not so"
                else:
                    kind = readers.get(name)
                    values_of = ", ".join(kind) if kind else "a whole number"
                    what = f"{match[1]} takes {values_of}"
                raise ParseError(f"{part!r:.60} in a uniform plan: {what}") from None
        return cls(**values)  # type: ignore[arg-type]
