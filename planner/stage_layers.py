"""How the layers of a decoder are dealt to pipeline devices and their model parts."""

from dataclasses import dataclass

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind, device_of


@dataclass(frozen=True, slots=True)
class StageLayers:
    """One model part (a chunk of a pipeline device)."""

    device: int
    layers: int
    first: bool
    """Holds the embedding."""
    last: bool
    """Holds the head."""


def stage_layers(
    layers: int, devices: int, chunks: int, schedule: ScheduleKind
) -> tuple[StageLayers, ...]:
    """Equal parts in the order of the model; where they can't be equal, entrance and exit count as
    a layer each, and what is left over goes to the first parts between them.

    Raises InvalidValueError for more parts than layers.
    """
    parts = devices * chunks
    if parts > layers + 2:
        raise InvalidValueError(
            f"{layers} layers on {devices} devices with {chunks} parts each: a part would have no "
            "layer; lower pp or chunks"
        )
    counts = [layers // parts] * parts
    if layers % parts:
        counts = [(layers + 2) // parts] * parts
        left = (layers + 2) % parts
        for index in range(left):
            counts[(index + 1) % parts] += 1
        counts[0] -= 1
        counts[-1] -= 1
    return tuple(
        StageLayers(device_of(schedule, part, devices), counts[part], part == 0, part == parts - 1)
        for part in range(parts)
    )
