"""SoftwareProfile: what a training stack makes of a device, as two scalars with sources."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from shardwise.ir.cluster import PROFILE_NAME, check_profile_name
from shardwise.ir.curve import Constant, parse_checked
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, check_kind, shown

DEVICES: Final = ("cpu", "cuda", "xpu")
"""Kinds of device that profiles are for."""

_VERSIONS: Final = re.compile(r"[a-z][a-z0-9_-]*(?:(?:>=|<=|==|<|>)[0-9]+(?:\.[0-9]+)*,?)*(?<!,)")
_DEVICE: Final = re.compile(r"[a-z]+")


def check_device(device: object, what: str) -> None:
    """Raise InvalidValueError unless `device` is one of DEVICES."""
    if device not in DEVICES:
        raise InvalidValueError(
            f"device {shown(device)} of {what} is not known; use one of {', '.join(DEVICES)}"
        )


@dataclass(frozen=True, slots=True)
class SoftwareProfile:
    """A training stack on a kind of device: the share of the roofline it reaches, its floor.

    Text: `torch-cpu torch>=2.13,<2.14 cpu efficiency 1 ratio "..." floor 1.5e-05 s "..."`.
    Raises InvalidValueError for a bad name, version range or device, wrong units, or an
    efficiency that is not above 0 and at most 1.
    """

    name: str
    version_range: str
    """Package and versions, `torch>=2.13,<2.14`."""
    device: str
    """One of DEVICES."""
    efficiency: Constant
    """Share of the hardware's roofline that its operators reach, 0 to 1."""
    launch_floor_s: Constant
    """Least seconds of one operator in one pass (forward or backward), however small it is."""

    def __post_init__(self) -> None:
        check_profile_name(self.name, "a software profile")
        versions = self.version_range
        if not isinstance(versions, str) or not _VERSIONS.fullmatch(versions):
            raise InvalidValueError(
                f"version_range {shown(versions)} of {self.name} does not read like "
                "'torch>=2.13,<2.14'; write it so"
            )
        check_device(self.device, self.name)
        check_kind(self.efficiency, Constant, f"efficiency of {self.name}")
        check_kind(self.launch_floor_s, Constant, f"launch_floor_s of {self.name}")
        if self.efficiency.unit != "ratio" or self.launch_floor_s.unit != "s":
            raise InvalidValueError(
                f"{self.name} has efficiency in {self.efficiency.unit} and launch_floor_s in "
                f"{self.launch_floor_s.unit}; give a ratio and seconds"
            )
        if not 0 < self.efficiency.value <= 1:
            raise InvalidValueError(
                f"efficiency of {self.name} is {self.efficiency.value}; give above 0, at most 1"
            )

    def operator_s(self, roofline_s: float, ranks_per_device: int = 1) -> float:
        """Seconds of one operator and pass: the larger of roofline / efficiency and the floor.

        Ranks that share a device take turns, so both are multiplied by their number.
        """
        return ranks_per_device * max(roofline_s / self.efficiency.value, self.launch_floor_s.value)

    def digest(self) -> str:
        """SHA-256 of the text form, sources included, in hexadecimal."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def __str__(self) -> str:
        return (
            f"{self.name} {self.version_range} {self.device} efficiency {self.efficiency} "
            f"floor {self.launch_floor_s}"
        )

    @classmethod
    def parse(cls, text: str) -> "SoftwareProfile":
        """The inverse of `str`; raises ParseError."""
        form = '\'torch-cpu torch>=2.13 cpu efficiency 1 ratio "..." floor 1e-05 s "..."\''
        return parse_checked(text, form, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "SoftwareProfile":
        name = scanner.need(PROFILE_NAME, "the name of a profile")
        scanner.expect(" ")
        version_range = scanner.need(_VERSIONS, "a package and its versions")
        scanner.expect(" ")
        device = scanner.need(_DEVICE, "a device")
        scanner.expect(" efficiency ")
        efficiency = Constant.scan(scanner)
        scanner.expect(" floor ")
        return cls(name, version_range, device, efficiency, Constant.scan(scanner))
