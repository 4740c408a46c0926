"""From figures to a hardware and a software profile; every number says how it was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

from shardwise.ir.cluster import Cluster
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link import CollectiveCurve, LinkClass
from shardwise.ir.software import SoftwareProfile
from shardwise.runtime.profile_floor import KEY as FLOOR
from shardwise.runtime.profile_links import Overlap
from shardwise.runtime.profile_samples import Figure
from shardwise.runtime.profile_work import product_bytes

Points = Mapping[float, Figure]
Figures = Mapping[str, Points]
_COMPUTE: Final = ("matmul", "attention")


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a profile is made of."""

    name: str
    device: str
    cluster: Cluster
    figures: Figures
    dtypes: tuple[str, ...]
    """The first is the one whose curves have no dtype in their key."""
    quantile: float
    shared: float
    """Part of its time for which a busy loop had no core."""
    part: str
    """Which device, as the system calls it."""
    torch_version: str
    date: str
    memory_bytes: int
    context_bytes: float
    group_bytes: float | None
    overlap: Overlap | None

    def source(self, what: str, points: Sequence[Figure] = ()) -> str:
        """One line: what, how often, how far apart, when, on what."""
        parts = [f"measured, {what}"]
        if points:
            low, high = min(p.repeats for p in points), max(p.repeats for p in points)
            repeats = str(low) if low == high else f"{low} to {high}"
            how = "median" if self.quantile == 0.5 else f"fastest {100 * self.quantile:.0f} %"
            parts.append(f"{how} of {repeats} repeats")
            spreads = sorted(p.spread for p in points)
            parts.append(f"spread {100 * spreads[len(spreads) // 2]:.0f} %")
        if self.is_shared:
            parts.append(f"other work had {100 * self.shared:.0f} % of a core")
        return ", ".join([*parts, self.date, self.part, f"torch {self.torch_version}"])

    @property
    def is_shared(self) -> bool:
        """Whether figures are of the fastest repeats."""
        return self.quantile != 0.5


def seconds_of(points: Points, *, shared: bool) -> dict[float, float]:
    """Seconds by x that never fall, since more work of a kind takes no less: what says otherwise is
    noise.

    On a shared machine noise only adds, so what is larger bounds what is smaller. Else neighbours
    in the wrong order share their geometric mean, which is the closest such curve in squared error
    of the logarithms (isotonic regression by pooling adjacent violators; Ayer et al. 1955).
    """
    ordered = sorted(points)
    if shared:
        least = [min(points[at].seconds for at in ordered[i:]) for i in range(len(ordered))]
        return dict(zip(ordered, least, strict=True))
    pools: list[tuple[float, int]] = []  # (mean of the logarithms, how many points)
    for x in ordered:
        mean, count = log(points[x].seconds), 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, count = (before * more + mean * count) / (more + count), count + more
        pools.append((mean, count))
    values = [exp(mean) for mean, count in pools for _ in range(count)]
    return dict(zip(ordered, values, strict=True))


def hardware_profile(measured: Measured) -> HardwareProfile:
    """The profile of one device and its links."""
    seconds = {
        key: seconds_of(points, shared=measured.is_shared)
        for key, points in measured.figures.items()
    }
    peaks = {
        dtype: _peak(seconds, dtype) for dtype in measured.dtypes if f"matmul.{dtype}" in seconds
    }
    bandwidth = max(
        x / s
        for key, points in seconds.items()
        if key.startswith("memory") and not key.endswith(".backward")
        for x, s in points.items()
    )
    curves: dict[str, Curve] = {}
    for key, points in seconds.items():
        work, dtype = key.split(".")[0], key.split(".")[-1]
        if work != "memory" and not (work in _COMPUTE and dtype in peaks):
            continue
        best = bandwidth if work == "memory" else peaks[dtype]
        what = _title(key)
        if work == "matmul":
            points = _without_memory(points, dtype, seconds["memory"])
            what = f"{what}, the time to move its operands taken off"
        curve = Curve(
            tuple(points),
            tuple(_ratio(x / s / best) for x, s in points.items()),
            "bytes" if work == "memory" else "FLOP",
            "ratio",
            measured.source(what, list(measured.figures[key].values())),
        )
        plain = key.removesuffix(f".{measured.dtypes[0]}")
        curves[plain] = curve
        if plain.startswith("attention") and plain.endswith(".d64"):
            curves[plain.removesuffix(".d64")] = curve
    order = ("matmul", "attention", "memory")
    kept = sorted(curves.items(), key=lambda item: (order.index(item[0].split(".")[0]), item[0]))
    context = "this process before its first tensor, with torch and process groups"
    return HardwareProfile(
        measured.name,
        measured.device,
        Constant(
            float(measured.memory_bytes),
            "bytes",
            f"as the system says, an equal part for each device in use, {measured.part}",
        ),
        Constant(
            float(f"{bandwidth:.5g}"),
            "bytes/s",
            measured.source("the fastest of all memory-bound calls"),
        ),
        Constant(measured.context_bytes, "bytes", measured.source(context)),
        _group_bytes(measured),
        tuple(
            (
                dtype,
                Constant(
                    float(f"{peak:.5g}"), "FLOP/s", measured.source(f"the fastest call in {dtype}")
                ),
            )
            for dtype, peak in peaks.items()
        ),
        tuple(kept),
        tuple(_link(measured, name, seconds) for name in dict.fromkeys(_links(measured.cluster))),
    )


def software_profile(measured: Measured, name: str) -> SoftwareProfile:
    """Efficiency 1, since operators were timed in this software, and the launch floor."""
    (floor,) = measured.figures[FLOOR].values()
    version = measured.torch_version.partition("+")[0]
    major, minor = version.split(".")[:2]
    return SoftwareProfile(
        name,
        f"torch>={major}.{minor},<{major}.{int(minor) + 1}",
        measured.device,
        Constant(1, "ratio", "assumption: operators in a program run as fast as alone"),
        Constant(
            float(f"{floor.seconds:.3g}"),
            "s",
            measured.source(
                "slot of a 2-layer decoder of hidden size 16, per operator and pass", [floor]
            ),
        ),
    )


def _without_memory(
    points: Mapping[float, float], dtype: str, memory: Mapping[float, float]
) -> dict[float, float]:
    """Seconds of products less those of moving their operands, as prices add the two; at least a
    half stays."""
    curve = Curve(tuple(memory), tuple(x / s for x, s in memory.items()), "bytes", "bytes/s", "-")
    moved = product_bytes(dtype)
    return {x: max(s / 2, s - moved[x] / curve.at(moved[x])) for x, s in points.items()}


def _peak(seconds: Mapping[str, Mapping[float, float]], dtype: str) -> float:
    best = 0.0
    for key, points in seconds.items():
        if key.split(".")[0] in _COMPUTE and key.endswith(f".{dtype}"):
            alone = points
            if key.startswith("matmul"):
                alone = _without_memory(points, dtype, seconds["memory"])
            best = max(best, *(x / s for x, s in alone.items()))
    return best


def _ratio(value: float) -> float:
    return float(f"{min(1.0, value):.4g}")


def _title(key: str) -> str:
    return key.replace(".", " ")


def _links(cluster: Cluster) -> Sequence[str]:
    return [level.link for level in cluster.levels]


def _link(measured: Measured, name: str, seconds: Mapping[str, Mapping[float, float]]) -> LinkClass:
    sharing = measured.cluster.ranks_per_device
    curves = []
    for key, points in seconds.items():
        link, _, rest = key.partition(" ")
        if link != name or not rest or key == FLOOR:
            continue
        kind, size = rest.split(" ")
        source = measured.source(
            f"{kind} of {size} ranks over {name}, packing included, slowest rank",
            list(measured.figures[key].values()),
        )
        curve = Curve(
            tuple(points), tuple(float(f"{s:.4g}") for s in points.values()), "bytes", "s", source,
            "proportional",
        )  # fmt: skip
        curves.append(CollectiveCurve(kind, curve, int(size), sharing))
    smallest = [item.curve.y[0] for item in curves]
    latency = Constant(
        min(smallest, default=0.0), "s", measured.source("the least of any small message")
    )
    overlap = measured.overlap
    if overlap is None:
        none = "assumption: not measured among ranks of one process"
        return LinkClass(
            name, latency, Constant(0, "ratio", none), Constant(1, "ratio", none), tuple(curves)
        )
    source = measured.source(
        f"all_reduce of 4 MiB beside products of about its length, {overlap.repeats} repeats"
    )
    return LinkClass(
        name,
        latency,
        Constant(float(f"{overlap.hidden:.3g}"), "ratio", source),
        Constant(float(f"{overlap.contention:.3g}"), "ratio", source),
        tuple(curves),
    )


def _group_bytes(measured: Measured) -> Constant:
    if measured.group_bytes is None:
        return Constant(0, "bytes", "assumption: ranks of one process have no process groups")
    return Constant(measured.group_bytes, "bytes", measured.source("8 more groups, each used once"))
