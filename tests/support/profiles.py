"""The hardware and software profiles that are shipped, read once."""

from functools import cache
from pathlib import Path

from shardwise.ir.config_files import load_hardware, load_software
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.software import SoftwareProfile

CONFIGS = Path(__file__).parents[2] / "configs"
HARDWARE = tuple(sorted(path.stem for path in (CONFIGS / "hardware").glob("*.toml")))
SOFTWARE = tuple(sorted(path.stem for path in (CONFIGS / "software").glob("*.toml")))


@cache
def hardware(name: str) -> HardwareProfile:
    """`configs/hardware/<name>.toml`."""
    return load_hardware(CONFIGS / "hardware" / f"{name}.toml")


@cache
def software(name: str) -> SoftwareProfile:
    """`configs/software/<name>.toml`."""
    return load_software(CONFIGS / "software" / f"{name}.toml")
