"""Link classes built from a rate per GPU and a kind of fabric: the one way to make them.

What the rate means for a group is in `link.bus_factor`: the rate is a GPU's part of the network
cards of its node. Eight rings at once, one for each local rank, get one part each; one ring
through all GPUs of the nodes enters and leaves each node over all eight parts.

    fabric_link("ib", "infiniband", 25e9, nodes=16)      16 nodes, one 200 Gb/s card for each GPU
    fabric_link("xgmi", "direct", 336e9, mesh_of=8)       7 links of 48 GB/s, one to each other GPU
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from shardwise.ir.curve import Constant, Curve
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.fabric_kinds import CONTENTION, FABRIC_KINDS, OVERLAP
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.latency_steps import latency_steps
from shardwise.ir.link import COLLECTIVES, CollectiveCurve, LinkClass, bus_factor
from shardwise.ir.scanner import shown
from shardwise.ir.span import check_count

DEFAULT_NODES: Final = 8
"""Nodes of a fabric where the caller does not say how many there are."""

_POINTS: Final = tuple(float(4**power) for power in range(5, 17))
"""Bytes at which the timed curves of a mesh are set out: 1 KiB to 4 GiB."""
_ASSUMED: Final = "assumption: "
_NO_RATES: Final[Mapping[str, Constant]] = MappingProxyType({})


def fabric_link(
    name: str,
    kind: str,
    bytes_per_s_per_gpu: float | Constant,
    *,
    nodes: int = DEFAULT_NODES,
    mesh_of: int | None = None,
    collectives: Mapping[str, Constant] = _NO_RATES,
) -> LinkClass:
    """The link class `name` of a fabric of `kind` (FABRIC_KINDS).

    `bytes_per_s_per_gpu` is one direction of a GPU's part of the wires; a bare number is an
    assumption of the caller, a Constant says its source. `nodes` share the fabric: the more, the
    less of the rate each collective reaches. `mesh_of` GPUs wired one to another split the rate
    evenly over the others, so that a group of k uses (k - 1) / (mesh_of - 1) of it. `collectives`
    are rates that collectives were measured to reach, instead of a share of the wires. Raises
    InvalidValueError for an unknown kind or collective, or a rate that is not above 0.
    """
    if kind not in FABRIC_KINDS:
        raise InvalidValueError(
            f"fabric {shown(kind)} of link {name} is not known; use {', '.join(FABRIC_KINDS)}"
        )
    for collective in collectives:
        if collective not in COLLECTIVES:
            raise InvalidValueError(
                f"collective {shown(collective)} of link {name} is not known; use "
                f"{', '.join(COLLECTIVES)}"
            )
    check_count(nodes, f"nodes of link {name}")
    fabric = FABRIC_KINDS[kind]
    rate = bytes_per_s_per_gpu
    if not isinstance(rate, Constant):
        rate = Constant(rate, "bytes/s", f"{_ASSUMED}the rate that the caller gave")
    for what, given in (("gpu", rate), *collectives.items()):
        if given.unit != "bytes/s" or given.value == 0:
            raise InvalidValueError(
                f"rate of {what} of link {name} is {given.value} {given.unit}; give bytes/s above 0"
            )
    curves: list[CollectiveCurve] = []
    for collective in COLLECTIVES:
        reached = collectives.get(collective)
        if reached is None:
            reached = _reached(rate, fabric.share(collective), nodes)
        if mesh_of is None:
            curve = Curve((2.0**20,), (reached.value,), "bytes", "bytes/s", reached.source)
            curves.append(CollectiveCurve(collective, curve))
        else:
            curves += _mesh(collective, reached, mesh_of, fabric.latency_s.value)
    return LinkClass(name, fabric.latency_s, OVERLAP, CONTENTION, tuple(curves))


def with_link(profile: HardwareProfile, link: LinkClass) -> HardwareProfile:
    """`profile` with `link` in place of the link class of that name, or beside those it has."""
    others = tuple(item for item in profile.links if item.name != link.name)
    return replace(profile, links=(*others, link))


def _reached(rate: Constant, share: Curve, nodes: int) -> Constant:
    """The share of a rate that `nodes` nodes reach; assumed if one of the two figures is."""
    ratio = share.at(nodes)
    part = f"{ratio:.3g} of {rate.value / 1e9:.4g} GB/s"
    text = f"{part} at {nodes} nodes" if len(share.x) > 1 else part
    text += f"; share: {_bare(share.source)}; rate: {_bare(rate.source)}"
    origin = _ASSUMED if share.is_assumed or rate.is_assumed else "published, "
    return Constant(rate.value * ratio, "bytes/s", origin + text)


def _bare(source: str) -> str:
    return source.removeprefix(_ASSUMED)


def _mesh(
    collective: str, reached: Constant, mesh_of: int, latency_s: float
) -> list[CollectiveCurve]:
    """Timed curves of every group size, each with the wires that such a group has."""
    if type(mesh_of) is not int or not 2 <= mesh_of <= 64:
        raise InvalidValueError(f"mesh_of is {shown(mesh_of)}; give 2 to 64 GPUs")
    curves = []
    for size in range(2, mesh_of + 1):
        peers = 1 if collective in ("send_recv", "ring_exchange") else size - 1
        bandwidth = reached.value * peers / (mesh_of - 1)
        latency = latency_s * latency_steps(collective, size)
        seconds = tuple(
            latency + count * bus_factor(collective, size, 1) / bandwidth for count in _POINTS
        )
        source = (
            f"{_ASSUMED}{bandwidth / 1e9:.4g} GB/s, the {peers} wires of a group of {size}; rate: "
            f"{_bare(reached.source)}"
        )
        curve = Curve(_POINTS, seconds, "bytes", "s", source, "proportional")
        curves.append(CollectiveCurve(collective, curve, size))
    return curves
