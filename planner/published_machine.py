"""The machine of a published run: cluster, hardware with its fabric, software profile.

The hardware profile is that of the GPU (ir/gpu_names.py); the network between nodes is the fabric
that the row names, at its rate, for as many nodes as the run has (ir/fabric.py). A row that says no
rate gets the profile's own.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.config_files import CONFIGS, load_hardware, load_software
from shardwise.ir.errors import FileFormatError
from shardwise.ir.fabric import fabric_link, with_link
from shardwise.ir.gpu_names import gpu_profile
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link_text import inter_link_kind, inter_link_rate
from shardwise.ir.software import SoftwareProfile
from shardwise.planner.published_row import PublishedRun

_NETWORK: Final = "network"
_KIND: Final = "infiniband"
"""Where a row names a rate and no kind."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run was measured on."""

    cluster: Cluster
    hardware: HardwareProfile
    software: SoftwareProfile
    notes: tuple[str, ...]


class Machines:
    """Machines of runs, from the profiles in one folder (`hardware/`, `software/`)."""

    def __init__(self, configs: Path = CONFIGS) -> None:
        self.configs = configs
        self._machine = cache(self._made)
        self.software = cache(self._software)

    def of(self, run: PublishedRun) -> Machine:
        """The machine of a run.

        Raises UnsupportedError for an unknown GPU (naming the nearest known one), FileFormatError
        for a profile that is missing or bad.
        """
        return self._machine(
            run.gpu, run.plan.world_size, run.ranks_per_node, run.inter_link, run.stack.software
        )

    def _software(self, name: str) -> SoftwareProfile:
        """The software profile of that name."""
        return load_software(self._file("software", name))

    def _file(self, folder: str, name: str) -> Path:
        path = self.configs / folder / f"{name}.toml"
        if not path.is_file():
            raise FileFormatError(f"{path}: no such profile; give the folder that holds configs")
        return path

    def _made(self, gpu: str, ranks: int, per_node: int, inter_link: str, software: str) -> Machine:
        name = gpu_profile(gpu)
        nodes = max(1, ranks // per_node)
        hardware = load_hardware(self._file("hardware", name), nodes=nodes)
        inside, between = hardware.links[0].name, hardware.links[-1].name
        notes: list[str] = []
        rate = inter_link_rate(inter_link, per_node)
        if nodes > 1 and rate is None:
            notes.append(f"network between nodes as in profile {name}")
        elif nodes > 1 and rate is not None:
            kind = inter_link_kind(inter_link)
            if kind is None:
                notes.append("network assumed to be InfiniBand")
            between = _NETWORK
            link = fabric_link(between, kind or _KIND, rate, nodes=nodes)
            hardware = with_link(hardware, link)
        levels = [Level("node", min(per_node, ranks), inside)]
        if nodes > 1:
            levels.append(Level("cluster", nodes, between))
        cluster = Cluster("published", hardware.name, tuple(levels))
        return Machine(cluster, hardware, self.software(software), tuple(notes))
