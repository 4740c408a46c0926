"""The tables of docs/design/profiles.md: what each profile says, and how much of it is assumed.

    python benchmarks/profile_table.py --write docs/design/profiles.md

Replaces everything after the line `<!-- tables -->` of the page; without --write it prints.
A file that inherits counts what it inherits as assumptions, since its sources say so.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from shardwise.ir.config_files import load_hardware, load_software
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.span import Span

ROOT: Final = Path(__file__).parents[1]
MARK: Final = "<!-- tables -->\n"
ORIGINS: Final = ("data sheet", "published", "measured", "assumption")
GIBIBYTE: Final = 2.0**30
NODES: Final = 8
HARDWARE_HEAD: Final = (
    "| file | inherits | dtype | peak TFLOP/s | reached by 2^37 FLOP | memory GB | GB/s "
    "| inside a node GB/s | between nodes GB/s | figures | data sheet | published | measured "
    "| assumption |"
)
SOFTWARE_HEAD: Final = (
    "| file | versions | device | efficiency | launch floor us | data sheet | published | measured "
    "| assumption |"
)


def origins(figures: Iterable[Constant | Curve]) -> list[int]:
    """How many figures have each of ORIGINS at the beginning of their source."""
    counted = Counter(figure.source.split(",")[0].split(":")[0] for figure in figures)
    return [counted[origin] for origin in ORIGINS]


def reached(profile: HardwareProfile, position: int) -> str:
    """Link and GB/s of an all_gather of 1 GiB among 4 GPUs inside a node, or on 4 nodes."""
    if position >= len(profile.links):
        return "-"
    link = profile.links[position]
    seconds = link.seconds("all_gather", Span(link.name, 4), GIBIBYTE)
    return f"{link.name} {GIBIBYTE * 3 / 4 / seconds / 1e9:.4g}"


def hardware_row(path: Path) -> str:
    """One line of the hardware table."""
    profile = load_hardware(path, nodes=NODES)
    base = tomllib.loads(path.read_text(encoding="utf-8")).get("inherits", "-")
    dtype, peak = profile.peak_flops_per_s[0]
    size = 2.0**37
    counts = origins(figure for _, figure in profile.figures())
    cells = [
        path.stem,
        base,
        dtype,
        f"{peak.value / 1e12:.4g}",
        f"{size / profile.compute_s('matmul', dtype, size) / 1e12:.4g}",
        f"{profile.memory_bytes.value / 1e9:.4g}",
        f"{profile.memory_bandwidth.value / 1e9:.4g}",
        reached(profile, 0),
        reached(profile, 1),
        sum(counts),
        *counts,
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def software_row(path: Path) -> str:
    """One line of the software table."""
    profile = load_software(path)
    cells = [
        path.stem,
        profile.version_range,
        profile.device,
        f"{profile.efficiency.value:.4g}",
        f"{profile.launch_floor_s.value * 1e6:.4g}",
        *origins((profile.efficiency, profile.launch_floor_s)),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def tables() -> str:
    """Both tables in Markdown."""
    lines = ["", HARDWARE_HEAD, "|" + "---|" * HARDWARE_HEAD.count(" |")]
    lines += [hardware_row(path) for path in sorted((ROOT / "configs/hardware").glob("*.toml"))]
    lines += ["", SOFTWARE_HEAD, "|" + "---|" * SOFTWARE_HEAD.count(" |")]
    lines += [software_row(path) for path in sorted((ROOT / "configs/software").glob("*.toml"))]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Prints the tables, or puts them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    path = parser.parse_args(arguments).write
    if path is None:
        print(tables(), end="")
        return 0
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        print(f"{path}: has no line {MARK.strip()}; add it where the tables go", file=sys.stderr)
        return 1
    path.write_text(head + mark + tables(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
