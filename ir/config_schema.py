"""The form of cluster, hardware and software files (TOML), in pydantic: keys and types.

Pydantic stands here only, at the edge; `config_files` makes values of the forms. Units stand
in the names of the keys. A figure is a table `{ value = 3.35e12, source = "..." }`, a curve a
table of two lists and a source. No other keys are allowed.
"""

from pydantic import BaseModel, ConfigDict


class ConfigForm(BaseModel):
    """What all tables share: known keys only, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FigureForm(ConfigForm):
    """A Constant; its unit is that of the key."""

    value: float
    source: str


class EfficiencyForm(ConfigForm):
    """A curve of efficiency: by FLOP (matmul, attention) or by bytes (memory)."""

    flop: list[float] | None = None
    bytes: list[float] | None = None
    ratio: list[float]
    source: str


class CollectiveForm(ConfigForm):
    """A timed curve (`group_size`, `seconds`) or a bus curve (`bus_bytes_per_s`) of a
    collective."""

    kind: str
    group_size: int | None = None
    ranks_per_device: int = 1
    bytes: list[float]
    seconds: list[float] | None = None
    bus_bytes_per_s: list[float] | None = None
    source: str


class LinkForm(ConfigForm):
    """A LinkClass."""

    name: str
    latency_s: FigureForm
    overlap: FigureForm
    contention: FigureForm
    collectives: list[CollectiveForm]


class FabricForm(ConfigForm):
    """A link class built by `fabric.fabric_link`; `collectives` are rates that were measured."""

    name: str
    kind: str
    bytes_per_s_per_gpu: FigureForm
    mesh_of: int | None = None
    collectives: dict[str, FigureForm] = {}


class HardwareForm(ConfigForm):
    """A HardwareProfile, after `config_inherit` has put in what it inherits."""

    name: str
    device: str
    memory_bytes: FigureForm
    memory_bandwidth_bytes_per_s: FigureForm
    context_bytes: FigureForm
    group_bytes: FigureForm
    processors: FigureForm | None = None
    peak_flops_per_s: dict[str, FigureForm]
    efficiency: dict[str, EfficiencyForm]
    links: list[LinkForm]
    fabrics: list[FabricForm] = []


class LevelForm(ConfigForm):
    """A Level of a cluster."""

    name: str
    size: int
    link: str


class ClusterForm(ConfigForm):
    """A Cluster; levels innermost first."""

    name: str
    hardware: str
    levels: list[LevelForm]
    memory_limit_bytes: int | None = None
    ranks_per_device: int = 1


class SoftwareForm(ConfigForm):
    """A SoftwareProfile."""

    name: str
    version_range: str
    device: str
    efficiency: FigureForm
    launch_floor_s: FigureForm
