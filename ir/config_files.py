"""Cluster, hardware and software files: TOML read into values, hardware profiles written as
TOML.

A cluster file names its hardware; `load_machine` finds the other two files in the folders
beside it:

    configs/clusters/dgx-a100-1x8.toml   hardware = "a100-sxm-80"
    configs/hardware/a100-sxm-80.toml    device = "cuda"
    configs/software/torch-cuda.toml     the default software of a device is torch-<device>

Errors are FileFormatError, one line: the file, the key and what to change.
"""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.config_inherit import resolved
from shardwise.ir.config_schema import (
    ClusterForm,
    CollectiveForm,
    ConfigForm,
    EfficiencyForm,
    FabricForm,
    FigureForm,
    HardwareForm,
    LinkForm,
    SoftwareForm,
)
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.errors import FileFormatError, InvalidValueError, MismatchError
from shardwise.ir.fabric import DEFAULT_NODES, fabric_link
from shardwise.ir.form_errors import checked_form
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link import CollectiveCurve, LinkClass
from shardwise.ir.scanner import shown
from shardwise.ir.software import SoftwareProfile

Form = TypeVar("Form", bound=ConfigForm)

CONFIGS: Final = Path(__file__).resolve().parent.parent / "configs"
"""The files that come with the project."""


def load_cluster(path: str | Path) -> Cluster:
    """The cluster in a TOML file; raises FileFormatError."""
    form = _form(path, ClusterForm)
    levels = []
    for index, item in enumerate(form.levels):
        with _at(path, f"levels[{index}]"):
            levels.append(Level(item.name, item.size, item.link))
    with _at(path):
        return Cluster(
            form.name,
            form.hardware,
            tuple(levels),
            form.memory_limit_bytes,
            form.ranks_per_device,
        )


def load_hardware(path: str | Path, *, nodes: int = DEFAULT_NODES) -> HardwareProfile:
    """The hardware profile in a TOML file; raises FileFormatError.

    `nodes` share the fabrics between nodes, which reach the less of their rate the more there are.
    """
    form = _form(path, HardwareForm)
    peaks = []
    for dtype, figure in form.peak_flops_per_s.items():
        peaks.append((dtype, _figure(path, f"peak_flops_per_s.{dtype}", figure, "FLOP/s")))
    curves = []
    for key, item in form.efficiency.items():
        curves.append((key, _efficiency(path, f"efficiency.{shown(key)}", item)))
    links = []
    for index, link in enumerate(form.links):
        links.append(_link(path, f"links[{index}]", link))
    for index, fabric in enumerate(form.fabrics):
        links.append(_fabric(path, f"fabrics[{index}]", fabric, nodes))
    bandwidth = "memory_bandwidth_bytes_per_s"
    with _at(path):
        return HardwareProfile(
            form.name,
            form.device,
            _figure(path, "memory_bytes", form.memory_bytes, "bytes"),
            _figure(path, bandwidth, form.memory_bandwidth_bytes_per_s, "bytes/s"),
            _figure(path, "context_bytes", form.context_bytes, "bytes"),
            _figure(path, "group_bytes", form.group_bytes, "bytes"),
            tuple(peaks),
            tuple(curves),
            tuple(links),
            None
            if form.processors is None
            else _figure(path, "processors", form.processors, "count"),
        )


def load_software(path: str | Path) -> SoftwareProfile:
    """The software profile in a TOML file; raises FileFormatError."""
    form = _form(path, SoftwareForm)
    efficiency = _figure(path, "efficiency", form.efficiency, "ratio")
    floor = _figure(path, "launch_floor_s", form.launch_floor_s, "s")
    with _at(path):
        return SoftwareProfile(form.name, form.version_range, form.device, efficiency, floor)


def load_machine(
    cluster_path: str | Path, software: str | None = None
) -> tuple[Cluster, HardwareProfile, SoftwareProfile]:
    """A cluster with the hardware that it names and a software profile of that device.

    Both are looked up by name in `../hardware` and `../software` beside the cluster file, then
    among the profiles that come with the project;
    `software` None is `torch-<device>`. Raises FileFormatError for a missing or bad file, and
    MismatchError if the cluster has a link class or a memory limit that the hardware lacks,
    or the software is for another device.
    """
    cluster = load_cluster(cluster_path)
    folder = Path(cluster_path).resolve().parent.parent
    nodes = cluster.world_size // cluster.levels[0].size
    hardware_path = _find(folder / "hardware", cluster.hardware, cluster_path)
    hardware = load_hardware(hardware_path, nodes=nodes)
    hardware.rank_memory_bytes(cluster)
    name = software or f"torch-{hardware.device}"
    profile = load_software(_find(folder / "software", name, cluster_path))
    if profile.device != hardware.device:
        raise MismatchError(
            f"software {profile.name} is for {profile.device}, cluster {cluster.name} has "
            f"{hardware.device}; name a software profile for {hardware.device}"
        )
    return cluster, hardware, profile


def _find(folder: Path, name: str, cluster_path: str | Path) -> Path:
    places = (folder, CONFIGS / folder.name)
    for place in places:
        if (place / f"{name}.toml").is_file():
            return place / f"{name}.toml"
    known = sorted({item.stem for place in places for item in place.glob("*.toml")})
    raise FileFormatError(
        f"{cluster_path}: there is no {folder.name}/{name}.toml in the folder above its own, nor "
        f"among the profiles that come with shardwise; add the file, or name one of "
        f"{', '.join(known) or 'none'}"
    )


@contextmanager
def _at(path: str | Path, key: str = "") -> Iterator[None]:
    """Turns an illegal value into a FileFormatError at a key of a file."""
    try:
        yield
    except InvalidValueError as error:
        place = f"at {key}: " if key else ""
        raise FileFormatError(f"{path}: {place}{error}") from error


def _form(path: str | Path, form: type[Form]) -> Form:
    tree = _tree(Path(path))
    if form is HardwareForm:
        tree = resolved(Path(path), tree, _tree)
    try:
        return checked_form(form, tree)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _tree(path: Path) -> object:
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read ({error.strerror}); give the path of a TOML file"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too deep, huge numbers
        problem = shown(" ".join(str(error).split()))
        raise FileFormatError(f"{path}: not TOML ({problem}); repair it there") from error
    return _plain(tree)


def _plain(tree: object) -> object:
    """`tree` with TOML's dates and times as text, which no key here takes."""
    if isinstance(tree, dict):
        return {key: _plain(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    return tree if isinstance(tree, bool | int | float | str) else str(tree)


def _figure(path: str | Path, key: str, form: FigureForm, unit: str) -> Constant:
    with _at(path, key):
        return Constant(form.value, unit, form.source)


def _efficiency(path: str | Path, key: str, form: EfficiencyForm) -> Curve:
    by_flop = form.flop is not None
    with _at(path, key):
        if by_flop == (form.bytes is not None):
            raise InvalidValueError("an efficiency goes by flop or by bytes; give one of the two")
        x = form.flop if form.flop is not None else form.bytes or []
        unit = "FLOP" if by_flop else "bytes"
        return Curve(tuple(x), tuple(form.ratio), unit, "ratio", form.source)


def _collective(path: str | Path, key: str, form: CollectiveForm) -> CollectiveCurve:
    with _at(path, key):
        timed = form.seconds is not None
        if timed == (form.bus_bytes_per_s is not None) or timed == (form.group_size is None):
            raise InvalidValueError(
                f"{form.kind} has to have either group_size and seconds, or bus_bytes_per_s; "
                "give one form"
            )
        x = tuple(form.bytes)
        if form.seconds is not None:
            y = tuple(form.seconds)
            curve = Curve(x, y, "bytes", "s", form.source, "proportional")
        else:
            curve = Curve(x, tuple(form.bus_bytes_per_s or ()), "bytes", "bytes/s", form.source)
        return CollectiveCurve(form.kind, curve, form.group_size, form.ranks_per_device)


def _link(path: str | Path, key: str, form: LinkForm) -> LinkClass:
    collectives = []
    for index, item in enumerate(form.collectives):
        collectives.append(_collective(path, f"{key}.collectives[{index}]", item))
    with _at(path, key):
        return LinkClass(
            form.name,
            _figure(path, f"{key}.latency_s", form.latency_s, "s"),
            _figure(path, f"{key}.overlap", form.overlap, "ratio"),
            _figure(path, f"{key}.contention", form.contention, "ratio"),
            tuple(collectives),
        )


def _fabric(path: str | Path, key: str, form: FabricForm, nodes: int) -> LinkClass:
    rates = {
        kind: _figure(path, f"{key}.collectives.{shown(kind)}", figure, "bytes/s")
        for kind, figure in form.collectives.items()
    }
    rate = _figure(path, f"{key}.bytes_per_s_per_gpu", form.bytes_per_s_per_gpu, "bytes/s")
    with _at(path, key):
        return fabric_link(
            form.name, form.kind, rate, nodes=nodes, mesh_of=form.mesh_of, collectives=rates
        )
