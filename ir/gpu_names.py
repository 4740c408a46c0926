"""From the names that publications give to GPUs to hardware profiles.

`gpu_profile("A100-SXM4-80GB")` is "a100-sxm-80". Case and punctuation don't matter, nor does a
vendor before the name. Names that don't say which of several parts is meant are not known
("A100" has 40 or 80 GB), except where nearly all published runs mean one: "H100" is the SXM5 part
of 80 GB, "A100-80GB" the SXM4 part.
"""

import difflib
import re
from collections.abc import Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from shardwise.ir.errors import UnsupportedError
from shardwise.ir.scanner import shown

_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "v100-sxm2-16": ("V100-SXM2-16GB", "V100-SXM2-16", "V100-16GB", "Tesla V100-SXM2-16GB"),
        "v100-sxm2-32": ("V100-SXM2-32GB", "V100-SXM2-32", "V100-32GB", "Tesla V100-SXM2-32GB"),
        "a100-sxm-40": ("A100-SXM-40GB", "A100-SXM4-40GB", "A100-SXM-40", "A100-40GB"),
        "a100-sxm-80": ("A100-SXM-80GB", "A100-SXM4-80GB", "A100-SXM-80", "A100-80GB"),
        "a100-pcie-40": ("A100-PCIE-40GB", "A100-PCIE-40", "A100 40GB PCIe"),
        "a100-pcie-80": ("A100-PCIE-80GB", "A100-PCIE-80", "A100 80GB PCIe"),
        "a800-sxm-80": ("A800-SXM-80GB", "A800-SXM4-80GB", "A800-80GB", "A800-SXM-80", "A800"),
        "h100-sxm": (
            "H100-SXM-80GB",
            "H100-SXM5-80GB",
            "H100 80GB HBM3",
            "H100-SXM",
            "H100-SXM5",
            "H100-80GB",
            "H100",
        ),
        "h100-pcie": ("H100-PCIE-80GB", "H100-PCIE", "H100 PCIe 80GB"),
        "h100-sxm-96": ("H100-SXM-96GB-HBM2e-500W", "H100-SXM-96GB", "H100-SXM-96", "H100-96GB"),
        "h800-sxm": ("H800-SXM-80GB", "H800-SXM5-80GB", "H800-80GB", "H800-SXM", "H800"),
        "h200": ("H200-SXM-141GB", "H200-SXM5-141GB", "H200-141GB", "H200-SXM", "H200"),
        "b200": ("B200-SXM", "B200-SXM-180GB", "B200-180GB", "B200-192GB", "B200"),
        "b300": ("B300-SXM", "B300-SXM-288GB", "B300-288GB", "B300"),
        "gb200": ("GB200", "GB200-NVL72", "GB200-186GB"),
        "gb300": ("GB300", "GB300-NVL72", "GB300-288GB"),
        "mi300x": ("MI300X", "MI300X-192GB", "Instinct MI300X", "AMD Instinct MI300X"),
        "mi325x": ("MI325X", "MI325X-256GB", "Instinct MI325X", "AMD Instinct MI325X"),
        "t4": ("T4", "T4-16GB", "Tesla T4"),
        "max-1550-tile": (
            "Max-1550-tile",
            "Data Center GPU Max 1550 (one tile)",
            "Intel Data Center GPU Max 1550, one tile",
            "PVC-tile",
        ),
    }
)
"""By profile: the names as they are printed."""

_VENDORS: Final = ("nvidia", "amd", "intel")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_PROFILES: Final[Mapping[str, str]] = MappingProxyType(
    {_plain(name): profile for profile, names in _NAMES.items() for name in (profile, *names)}
)


def known_gpus() -> tuple[str, ...]:
    """The profiles that names lead to, in the order of the registry."""
    return tuple(_NAMES)


def gpu_profile(name: str) -> str:
    """The hardware profile (`configs/hardware/<profile>.toml`) of a GPU as published.

    Raises UnsupportedError for an unknown name, with the nearest known one.
    """
    plain = _plain(name) if isinstance(name, str) else ""
    for vendor in ("", *_VENDORS):
        if plain.startswith(vendor) and plain.removeprefix(vendor) in _PROFILES:
            return _PROFILES[plain.removeprefix(vendor)]
    printed = {_plain(item): item for items in _NAMES.values() for item in items}
    if not plain:
        raise UnsupportedError(
            f"gpu {shown(name)} is not a name; give one like {next(iter(_NAMES.values()))[0]}"
        )
    near = max(printed, key=lambda item: _likeness(plain, item))
    raise UnsupportedError(
        f"gpu {shown(name)} has no hardware profile; the nearest known name is {printed[near]} "
        f"({_PROFILES[near]}): use it if that is meant, or add a file to configs/hardware"
    )


def _likeness(first: str, second: str) -> tuple[int, float]:
    """Characters that both begin with, then the share of all that they have in common."""
    pairs = zip(first, second, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same, difflib.SequenceMatcher(None, first, second).ratio()
