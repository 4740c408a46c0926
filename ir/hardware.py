"""HardwareProfile: the measured or data-sheet curves of one device and of its link classes.

The roofline of an operator is max(compute, memory): FLOP over the peak times the efficiency
of its kind at that many FLOP, and bytes moved over the bandwidth times the efficiency at that
many bytes. A call of few FLOP is inefficient mostly because it is short, so one curve by FLOP
serves all shapes of matmul; thin shapes are held back by the memory side.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardwise.ir.cluster import PROFILE_NAME, Cluster, check_profile_name
from shardwise.ir.curve import Constant, Curve, parse_checked
from shardwise.ir.dtype import check_dtype
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.link import LinkClass
from shardwise.ir.scanner import Scanner, check_kind, check_kinds, check_pairs, shown
from shardwise.ir.software import check_device
from shardwise.ir.span import Span

WORK: Final = ("matmul", "attention", "memory")
"""First word of an efficiency key: what bounds the operator. matmul and attention go by FLOP,
memory by bytes moved. More words may follow after dots; a missing key falls back to its
shorter forms."""

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
_WORD: Final = re.compile(r"[a-z][a-z0-9_]*")
_UNITS: Final = {
    "memory_bytes": "bytes",
    "memory_bandwidth": "bytes/s",
    "context_bytes": "bytes",
    "group_bytes": "bytes",
}


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """One device and its links; every figure has a unit and a source.

    Text: one line per figure. Raises InvalidValueError for bad names, wrong units, an
    efficiency over 1, repeated keys, or a missing efficiency curve for one of WORK.
    """

    name: str
    device: str
    """cpu or cuda."""
    memory_bytes: Constant
    """Of one device, all of it."""
    memory_bandwidth: Constant
    """Bytes per second that efficiencies of `memory` are shares of."""
    context_bytes: Constant
    """Per rank, before the first tensor: runtime, libraries, device context."""
    group_bytes: Constant
    """Per process group and rank, once it has communicated."""
    peak_flops_per_s: tuple[tuple[str, Constant], ...]
    """(dtype, peak): what efficiencies of matmul and attention are shares of."""
    efficiency: tuple[tuple[str, Curve], ...]
    """(key, share of the peak by FLOP or bytes of one call)."""
    links: tuple[LinkClass, ...]
    processors: Constant | None = None
    """Multiprocessors that each compute a tile of a product at a time; None where that is not how
    products are computed (cpu)."""

    def __post_init__(self) -> None:
        check_profile_name(self.name, "a hardware profile")
        check_device(self.device, self.name)
        for field, unit in _UNITS.items():
            constant: Constant = getattr(self, field)
            check_kind(constant, Constant, f"{field} of {self.name}")
            if constant.unit != unit:
                raise InvalidValueError(
                    f"{field} of {self.name} is in {constant.unit}; give it in {unit}"
                )
        if self.processors is not None and (
            not isinstance(self.processors, Constant)
            or self.processors.unit != "count"
            or not self.processors.value >= 1
        ):
            raise InvalidValueError(
                f"processors of {self.name} are {shown(self.processors)}; give a Constant that is "
                "a count of at least 1"
            )
        if self.memory_bytes.value == 0 or self.memory_bandwidth.value == 0:
            raise InvalidValueError(f"{self.name} has no memory; give bytes and bandwidth")
        check_kinds(self.links, LinkClass, f"links of {self.name}")
        check_pairs(self.peak_flops_per_s, Constant, f"peaks of {self.name}")
        check_pairs(self.efficiency, Curve, f"efficiencies of {self.name}")
        for dtype, peak in self.peak_flops_per_s:
            check_dtype(dtype)
            if peak.unit != "FLOP/s" or peak.value == 0:
                raise InvalidValueError(
                    f"peak {dtype} of {self.name} is {peak.value} {peak.unit}; give FLOP/s"
                )
        for key, curve in self.efficiency:
            self._check_efficiency(key, curve)
        for what, names in (
            ("peak", [dtype for dtype, _ in self.peak_flops_per_s]),
            ("efficiency", [key for key, _ in self.efficiency]),
            ("link", [link.name for link in self.links]),
        ):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise InvalidValueError(
                    f"{self.name} has more than one {what} for {', '.join(repeated)}; keep one"
                )
        missing = [work for work in WORK if work not in dict(self.efficiency)]
        if missing or not self.peak_flops_per_s:
            raise InvalidValueError(
                f"{self.name} lacks {', '.join(missing) or 'peaks'}; give a peak for one dtype "
                f"or more, and an efficiency for each of {', '.join(WORK)}"
            )

    def _check_efficiency(self, key: object, curve: Curve) -> None:
        if not isinstance(key, str) or not _KEY.fullmatch(key) or key.split(".")[0] not in WORK:
            raise InvalidValueError(
                f"efficiency key {shown(key)} of {self.name}: it begins with one of "
                f"{', '.join(WORK)}, and has .words after it; rename it"
            )
        unit = "bytes" if key.startswith("memory") else "FLOP"
        if (curve.x_unit, curve.y_unit, curve.end) != (unit, "ratio", "clamp"):
            raise InvalidValueError(
                f"efficiency {key} of {self.name} is a curve {curve.x_unit} -> {curve.y_unit} "
                f"{curve.end}; give {unit} -> ratio clamp"
            )
        if max(curve.y) > 1:
            raise InvalidValueError(
                f"efficiency {key} of {self.name} reaches {max(curve.y)}, more than the peak; "
                "raise the peak"
            )

    def peak(self, dtype: str) -> float:
        """Peak FLOP per second of a dtype; raises UnsupportedError if the profile has none."""
        for name, constant in self.peak_flops_per_s:
            if name == check_dtype(dtype):
                return constant.value
        known = ", ".join(name for name, _ in self.peak_flops_per_s)
        raise UnsupportedError(
            f"{self.name} has no peak for {dtype} (known: {known}); add it to the hardware file"
        )

    def curve(self, key: str) -> Curve:
        """The efficiency curve of `key`, or of the longest dotted beginning of it that there
        is.

        Raises InvalidValueError for a key whose first word is not one of WORK.
        """
        curves = dict(self.efficiency)
        part = key
        while part not in curves:
            part, dot, _ = part.rpartition(".")
            if not dot:
                raise InvalidValueError(
                    f"efficiency key {shown(key)} is not known; name what bounds the operator "
                    f"first: {', '.join(WORK)}"
                )
        return curves[part]

    def compute_s(self, key: str, dtype: str, flops: float) -> float:
        """Seconds to compute `flops` in one call of kind `key` (matmul or attention)."""
        if flops == 0:
            return 0.0
        if key.split(".")[0] == "memory":
            raise InvalidValueError(f"{key} goes by bytes, not FLOP; ask memory_s")
        return flops / (self.peak(dtype) * self.curve(f"{key}.{dtype}").at(flops))

    def memory_s(self, moved_bytes: float, key: str = "memory") -> float:
        """Seconds to move `moved_bytes` (read once and written once) in one call of kind
        `key`."""
        if moved_bytes == 0:
            return 0.0
        if key.split(".")[0] != "memory":
            raise InvalidValueError(f"{key} goes by FLOP, not bytes; ask compute_s")
        return moved_bytes / (self.memory_bandwidth.value * self.curve(key).at(moved_bytes))

    def roofline_s(self, key: str, dtype: str, flops: float, moved_bytes: float) -> float:
        """Seconds of one call: the larger of compute and memory; `memory...` keys have no
        compute."""
        if key.split(".")[0] == "memory":
            return self.memory_s(moved_bytes, key)
        return max(self.compute_s(key, dtype, flops), self.memory_s(moved_bytes))

    def link(self, name: str) -> LinkClass:
        """The link class of that name; raises MismatchError listing those there are."""
        for link in self.links:
            if link.name == name:
                return link
        known = ", ".join(link.name for link in self.links) or "none"
        raise MismatchError(f"{self.name} has no link class {shown(name)}; it has {known}")

    def collective_s(self, kind: str, span: Span, message_bytes: float) -> float:
        """Seconds of one collective among the members of `span`.

        The slowest link bounds it, or the links inside its units do: a hierarchical collective
        passes the whole message through both.
        """
        if span.size == 1:
            return 0.0
        seconds = self.link(span.link).seconds(kind, span, message_bytes)
        if span.inner is None or kind in ("send_recv", "ring_exchange"):
            return seconds
        return max(seconds, self.collective_s(kind, span.inner, message_bytes))

    def rank_memory_bytes(self, cluster: Cluster) -> int:
        """Bytes that one rank of `cluster` may use: its limit, else its part of the device.

        Raises MismatchError if the limit is over that part, the cluster is of another
        hardware, or it has a link class that the profile lacks.
        """
        if cluster.hardware != self.name:
            raise MismatchError(
                f"cluster {cluster.name} is made of {cluster.hardware}, not {self.name}; "
                "load the hardware file that it names"
            )
        for level in cluster.levels:
            self.link(level.link)
        part = int(self.memory_bytes.value) // cluster.ranks_per_device
        limit = cluster.memory_limit_bytes
        if limit is not None and limit > part:
            raise MismatchError(
                f"memory limit {limit} bytes is over the {part} bytes that a rank of "
                f"{cluster.name} has on {self.name}; lower it"
            )
        return part if limit is None else limit

    def figures(self) -> Iterator[tuple[str, Constant | Curve]]:
        """Every figure of the profile with its path, in a fixed order."""
        for field in _UNITS:
            yield field, getattr(self, field)
        if self.processors is not None:
            yield "processors", self.processors
        for dtype, constant in self.peak_flops_per_s:
            yield f"peak_flops_per_s.{dtype}", constant
        for key, curve in self.efficiency:
            yield f"efficiency.{key}", curve
        for link in self.links:
            for field in ("latency_s", "overlap", "contention"):
                yield f"links.{link.name}.{field}", getattr(link, field)
            for item in link.collectives:
                place = (
                    "" if item.group_size is None else f".{item.group_size}.{item.ranks_per_device}"
                )
                yield f"links.{link.name}.{item.kind}{place}", item.curve

    def digest(self) -> str:
        """SHA-256 of the text form, sources included, in hexadecimal."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.name} {self.device}"]
        lines += [f"{field} {getattr(self, field)}" for field in _UNITS]
        if self.processors is not None:
            lines.append(f"processors {self.processors}")
        lines += [f"peak {dtype} {constant}" for dtype, constant in self.peak_flops_per_s]
        lines += [f"efficiency {key} {curve}" for key, curve in self.efficiency]
        lines += [f"link {link}" for link in self.links]
        return "\n".join(lines)

    @classmethod
    def parse(cls, text: str) -> "HardwareProfile":
        """The inverse of `str`; raises ParseError."""
        form = "'name device' and one line per figure"
        return parse_checked(text, form, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "HardwareProfile":
        name = scanner.need(PROFILE_NAME, "the name of a profile")
        scanner.expect(" ")
        device = scanner.need(_WORD, "a device")
        constants = {}
        for field in _UNITS:
            scanner.expect(f"\n{field} ")
            constants[field] = Constant.scan(scanner)
        processors = Constant.scan(scanner) if scanner.take("\nprocessors ") else None
        peaks: list[tuple[str, Constant]] = []
        while scanner.take("\npeak "):
            dtype = scanner.need(_WORD, "a dtype")
            scanner.expect(" ")
            peaks.append((dtype, Constant.scan(scanner)))
        curves: list[tuple[str, Curve]] = []
        while scanner.take("\nefficiency "):
            key = scanner.need(_KEY, "a key")
            scanner.expect(" ")
            curves.append((key, Curve.scan(scanner)))
        links = []
        while scanner.take("\nlink "):
            links.append(LinkClass.scan(scanner))
        return cls(
            name,
            device,
            constants["memory_bytes"],
            constants["memory_bandwidth"],
            constants["context_bytes"],
            constants["group_bytes"],
            tuple(peaks),
            tuple(curves),
            tuple(links),
            processors,
        )
