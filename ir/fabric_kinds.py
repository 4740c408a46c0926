"""What each kind of fabric makes of the rate of its wires: shares, latencies, with their sources.

The share of the rate that a collective reaches falls with the number of nodes. Between nodes a
rate is that of the network cards of one GPU; inside a node (`direct`) it is the rate without the
overhead of the protocol (NCCL counts 20 of the 25 GB/s of an NVLink), and all shares are 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from shardwise.ir.curve import Constant, Curve


@dataclass(frozen=True, slots=True)
class FabricKind:
    """Constants of one kind of fabric; shares are curves from nodes to a ratio of the rate."""

    name: str
    latency_s: Constant
    """Of one step of a tree."""
    all_reduce: Curve
    reduce_scatter: Curve
    all_gather: Curve
    point_to_point: Curve
    """send_recv, ring_exchange and all_to_all."""
    broadcast: Curve

    def share(self, collective: str) -> Curve:
        """The curve of a collective of `link.COLLECTIVES`."""
        shares = {
            "all_reduce": self.all_reduce,
            "reduce_scatter": self.reduce_scatter,
            "all_gather": self.all_gather,
            "broadcast": self.broadcast,
        }
        return shares.get(collective, self.point_to_point)


OVERLAP: Final = Constant(
    0.8,
    "ratio",
    "assumption: about what collectives hid behind compute over rate-limited links between CPU "
    "ranks (59 to 91 % measured)",
)
CONTENTION: Final = Constant(
    1.2,
    "ratio",
    "published, Hetu-Galvatron's slow-down coefficient of 1.1 to 1.3 for computation beside "
    "communication, its middle",
)


def _shares(nodes: tuple[float, ...], ratio: tuple[float, ...], source: str) -> Curve:
    return Curve(nodes, ratio, "ratio", "ratio", source)


_NODES: Final = (2, 4, 8, 16, 32, 64, 128)
_DECLINE: Final = (0.94, 0.9, 0.8625, 0.8, 0.75, 0.7, 0.65)

_INFINIBAND: Final = FabricKind(
    "infiniband",
    Constant(
        1.4e-5,
        "s",
        "published, NCCL src/graph/tuning.cc: hardware latency of a network hop, Simple protocol",
    ),
    all_reduce=_shares(
        (3, 32),
        (0.96, 0.85),
        "published, github.com/NVIDIA/nccl-tests issue 119: 96 of 100 GB/s over 3 nodes of 4 HDR "
        "cards; github.com/NVIDIA/nccl issue 1218: 340 of 400 GB/s over 32 nodes of H100",
    ),
    reduce_scatter=_shares(
        _NODES,
        _DECLINE,
        "published, github.com/NVIDIA/nccl issue 1229: 360, 345, 320, 300, 280, 260 GB/s over 4 to "
        "128 nodes of H100, of the 400 GB/s of eight 400 Gb/s cards; 2 nodes: nccl-tests issue "
        "290, 46 to 48 of 50 GB/s for a card",
    ),
    all_gather=_shares(
        _NODES,
        _DECLINE,
        "assumption: as reduce_scatter over the same ring (NVIDIA/nccl issue 1218 saw 200 of 400 "
        "GB/s for 2 GB over 32 nodes, which the hops of the ring explain in part)",
    ),
    point_to_point=_shares(
        (2,),
        (0.94,),
        "published, github.com/NVIDIA/nccl-tests issue 290: 46 to 48 of 50 GB/s for a card of NDR",
    ),
    broadcast=_shares(_NODES, _DECLINE, "assumption: as reduce_scatter, a ring too"),
)


def _like_infiniband(name: str, reason: str, factor: float = 1.0) -> FabricKind:
    """InfiniBand's constants times `factor`, as assumptions for another fabric."""

    def assumed(curve: Curve) -> Curve:
        ratio = tuple(share * factor for share in curve.y)
        return Curve(curve.x, ratio, "ratio", "ratio", f"assumption: {reason}")

    return FabricKind(
        name,
        Constant(_INFINIBAND.latency_s.value, "s", "assumption: as infiniband"),
        assumed(_INFINIBAND.all_reduce),
        assumed(_INFINIBAND.reduce_scatter),
        assumed(_INFINIBAND.all_gather),
        assumed(_INFINIBAND.point_to_point),
        assumed(_INFINIBAND.broadcast),
    )


def _efa() -> FabricKind:
    base = _like_infiniband(
        "efa",
        "InfiniBand's decline with the nodes, times the 0.66 that all_reduce over 4 nodes shows",
        0.592 / 0.9,
    )
    all_reduce = _shares(
        (3, 4),
        (0.635, 0.592),
        "published, github.com/NVIDIA/nccl issue 527: 31.8 and 29.6 of 50 GB/s over 3 and 4 "
        "p4d.24xlarge (newer instances may do better)",
    )
    latency = Constant(
        1.3e-5,
        "s",
        "published, github.com/dstackai/dstack pull 3961: 8 bytes over 2 nodes of 8 take 51 "
        "microseconds, 4 steps of a tree",
    )
    return FabricKind(
        "efa",
        latency,
        all_reduce,
        base.reduce_scatter,
        base.all_gather,
        base.point_to_point,
        base.broadcast,
    )


def _direct() -> FabricKind:
    whole = _shares((1,), (1,), "assumption: each collective reaches the rate of the wires")
    latency = Constant(
        1.3e-5,
        "s",
        "assumption: as H100 over NVLink, whose 64 KiB all_reduce of 2 and 8 GPUs takes 15 and 40 "
        "microseconds (OpenXLA collective_interpolator_data.h, key sm_90)",
    )
    return FabricKind("direct", latency, whole, whole, whole, whole, whole)


FABRIC_KINDS: Final[Mapping[str, FabricKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _INFINIBAND,
            _like_infiniband(
                "roce",
                "as infiniband: Meta tuned a RoCE cluster to equal one of InfiniBand "
                "(arXiv:2407.21783, section 3.3.1); untuned ones reach 0.4 to 0.75 (NVIDIA/nccl "
                "issues 495 and 2409)",
            ),
            _like_infiniband("omni_path", "as infiniband, nothing is published for collectives"),
            _like_infiniband("slingshot", "as infiniband, nothing is published for collectives"),
            _like_infiniband(
                "ethernet", "TCP through host memory, half of what infiniband makes of a rate", 0.5
            ),
            _efa(),
            _direct(),
        )
    }
)
"""Kind by name. `direct` is for links inside a node (NVLink, PCIe, xGMI, Xe Link)."""
