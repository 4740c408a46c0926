"""One layer of a 22B GPT on eight A100: priced against Korthikanti et al. 2022, table 4.

    python -m benchmarks.layer_times --validation DIR [--write docs/benchmarks/layer-times.md]

DIR holds korthikanti-layer-times.csv. Nothing is fitted: the software has efficiency 1.
"""

import argparse
import csv
import platform
from dataclasses import replace
from datetime import date
from pathlib import Path

from benchmarks.page import put, table
from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.config_files import CONFIGS, load_hardware, load_software
from shardwise.ir.curve import Constant
from shardwise.ir.decoder import AttentionKernel, DecoderShape
from shardwise.ir.strategy import Recompute
from shardwise.ir.training import TrainingSpec
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_units import UniformUnits

RECOMPUTE = {"none": Recompute.NONE, "selective": Recompute.ATTENTION, "full": Recompute.LAYER}


def rows(path: Path) -> list[list[str]]:
    """Experiment, and per pass the published and the predicted milliseconds."""
    hardware = load_hardware(CONFIGS / "hardware" / "a100-sxm-80.toml")
    profile = load_software(CONFIGS / "software" / "megatron-lm-2021.toml")
    one = Constant(1.0, "ratio", "assumption: nothing is fitted here")
    software = replace(profile, efficiency=one)
    cluster = Cluster("one-node", hardware.name, (Level("node", 8, "nvlink"),))
    half = "float16"
    training = TrainingSpec("adamw", "float32", half, half, half)
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            hidden, heads = int(cells["hidden"]), int(cells["heads"])
            shape = DecoderShape(
                1, hidden, heads, heads, 4 * hidden, False, 51200, AttentionKernel.UNFUSED,
                dropout=True, positions=int(cells["seq_len"]), tied=True,
            )  # fmt: skip
            plan = UniformPlan(
                tensor=int(cells["tp"]),
                micro_batch=int(cells["micro_batch"]),
                sequence_length=int(cells["seq_len"]),
                sequence_parallel=cells["sequence_parallel"] == "yes",
                recompute=RECOMPUTE[cells["recompute"]],
            )
            layer = (
                UniformUnits(shape, Pricer(cluster, hardware, software, training)).costs(plan).layer
            )
            passes = (layer.forward_s, layer.backward_s, layer.forward_s + layer.backward_s)
            line = [cells["experiment"]]
            for name, seconds in zip(("forward", "backward", "combined"), passes, strict=True):
                line += [cells[f"{name}_ms"], f"{1e3 * seconds:.1f}"]
            line.append(f"{1e3 * passes[2] / float(cells['combined_ms']) - 1:+.1%}")
            found.append(line)
    return found


def main() -> None:
    """Print the table, or write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    head = ["experiment", "forward ms", "predicted", "backward ms", "predicted", "both ms",
            "predicted", "error"]  # fmt: skip
    text = (
        "# One layer of a 22B GPT\n\nKorthikanti et al. 2022 (arXiv:2205.05198), table 4: 8 A100, "
        "tensor parallel 8, 4 documents of 2048 tokens. Written by `python -m "
        "benchmarks.layer_times --validation DIR --write docs/benchmarks/layer-times.md`, "
        f"{date.today()}, Python {platform.python_version()}. Nothing is fitted: profile "
        "a100-sxm-80, software efficiency 1.\n\n"
    )
    found = rows(options.validation / "korthikanti-layer-times.csv")
    put(f"{text}{table(head, found)}\n", options.write)


if __name__ == "__main__":
    main()
