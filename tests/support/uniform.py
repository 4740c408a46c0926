"""What tests of uniform plans price with: decoders by their sizes, machines of one GPU."""

from dataclasses import replace
from functools import lru_cache

from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.config_files import load_hardware, load_software
from shardwise.ir.curve import Constant
from shardwise.ir.decoder import AttentionKernel, DecoderShape
from shardwise.ir.training import TrainingSpec
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_plan import UniformPlan

MIXED = TrainingSpec(compute_dtype="bfloat16")
GPT = DecoderShape(8, 1024, 16, 16, 4096, False, 51200, positions=2048, tied=True)
LLAMA = DecoderShape(
    8, 1024, 16, 4, 2816, True, 32000, rotary=True, rms_norm=True, bias=False
)  # fmt: skip


def korthikanti(hidden: int, heads: int) -> DecoderShape:
    """One layer of GPT as in Korthikanti et al. 2022: unfused attention, dropout."""
    return DecoderShape(
        1, hidden, heads, heads, 4 * hidden, False, 51200, attention=AttentionKernel.UNFUSED,
        dropout=True, positions=2048, tied=True,
    )  # fmt: skip


@lru_cache
def profiles(gpu: str, nodes: int, software: str):
    """A device as its file has it, and a stack with scalars of its own: files' are fitted."""
    hardware = load_hardware(f"configs/hardware/{gpu}.toml", nodes=nodes)
    profile = replace(
        load_software(f"configs/software/{software}.toml"),
        efficiency=Constant(0.8, "ratio", "assumption: of tests"),
        launch_floor_s=Constant(7e-6, "s", "assumption: of tests"),
    )
    return hardware, profile


@lru_cache(maxsize=256)
def pricer(
    ranks: int = 8, gpu: str = "a100-sxm-80", *, per_node: int = 8, software: str = "megatron-core",
    training: TrainingSpec = MIXED, floor: bool = True, faster_links: float = 1.0,
) -> Pricer:  # fmt: skip
    """A pricer of `ranks` GPUs in nodes; `floor=False` without a launch floor."""
    nodes = max(1, ranks // per_node)
    hardware, profile = profiles(gpu, nodes, software)
    if not floor:
        profile = replace(profile, launch_floor_s=Constant(0.0, "s", "assumption: a limit"))
    levels = [Level("node", min(ranks, per_node), hardware.links[0].name)]
    if nodes > 1:
        levels.append(Level("cluster", nodes, hardware.links[-1].name))
    cluster = Cluster("machine", hardware.name, tuple(levels))
    if faster_links != 1.0:
        hardware = faster(hardware, faster_links)
    return Pricer(cluster, hardware, profile, training)


def faster(hardware, factor: float):
    """The profile with links of `factor` times the bandwidth."""
    links = []
    for link in hardware.links:
        curves = []
        for item in link.collectives:
            curve = item.curve
            scale = factor if curve.y_unit == "bytes/s" else 1 / factor
            curves.append(
                replace(item, curve=replace(curve, y=tuple(value * scale for value in curve.y)))
            )
        links.append(replace(link, collectives=tuple(curves)))
    return replace(hardware, links=tuple(links))


def plan(text: str, **more) -> UniformPlan:
    """A uniform plan of 2048 tokens and eight micro-batches unless it says otherwise."""
    made = UniformPlan.parse(text)
    given = {part.partition("=")[0] for part in text.split()}
    if "length" not in given:
        more.setdefault("sequence_length", 2048)
    if "micro_batches" not in given:
        more.setdefault("micro_batches", 8)
    return replace(made, **more)
