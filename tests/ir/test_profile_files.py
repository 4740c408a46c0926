"""The shipped hardware and software profiles: sources, sane orders, and the published runs."""

import math
from itertools import pairwise

import pytest

from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import load_hardware, load_machine
from shardwise.ir.curve import Constant
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.fabric import fabric_link, with_link
from shardwise.ir.fabric_kinds import CONTENTION, FABRIC_KINDS, OVERLAP
from shardwise.ir.gpu_names import gpu_profile, known_gpus
from shardwise.ir.link import COLLECTIVES
from shardwise.ir.link_text import inter_link_kind, inter_link_rate
from shardwise.ir.span import Span
from tests.support.profiles import CONFIGS, HARDWARE, SOFTWARE, hardware, software

GIGA = 1 << 30
GPUS = known_gpus()
ORIGINS = ("assumption: ", "data sheet, ", "measured, ", "published, ")
WITHOUT_BFLOAT16 = ("v100-sxm2-16", "v100-sxm2-32", "t4")
WITH_FLOAT8 = [name for name in GPUS if name[0] in "bghm" and not name.startswith("max")]

RUNS = [
    ("V100-SXM2-32GB", 4, "Omni-Path (Jean Zay V100 partition, 4 x 100 Gb/s per node)"),
    ("A100-SXM-80GB", 8, "Omni-Path, 4 x 100 Gb/s per node"),
    ("A100-SXM-80GB", 8, "400 Gb/s per node"),
    ("H100-SXM-80GB", 8, "800 Gb/s per node"),
    ("A100-SXM-80GB", 8, "RoCE, 4 x 100 Gb/s per node"),
    ("A800-80GB", 8, "not stated"),
    ("H800-SXM-80GB", 8, "8 x 100 Gb/s NICs per node"),
    ("A100-SXM-40GB", 8, "RoCE 1600 Gb/s per node"),
    ("MI300X-192GB", 8, "none (single node)"),
    ("MI325X-256GB", 8, "not stated"),
    ("H200-SXM-141GB", 8, "RDMA 400 Gb/s per GPU"),
    ("B200-SXM", 8, "not stated"),
    ("A100-80GB", 1, "none"),
    ("H100-SXM-80GB", 8, "EFA (AWS p5), 3200 Gb/s per node (per playbook; not in the svg)"),
    ("H100-SXM-96GB-HBM2e-500W", 8, "RDMA 400 Gb/s per GPU"),
    ("A100-SXM-80GB", 8, "InfiniBand, 800 Gb/s per node (repo config)"),
]
"""GPU, GPUs in a node and network of the published runs, one row for each that differs."""


def sources(profile):
    return [(place, figure.source) for place, figure in profile.figures()]


@pytest.mark.parametrize("name", HARDWARE)
def test_every_figure_says_where_it_comes_from(name) -> None:
    for nodes in (1, 8, 4096):
        profile = load_hardware(CONFIGS / "hardware" / f"{name}.toml", nodes=nodes)
        assert profile.name == name
        for place, source in sources(profile):
            assert source.startswith(ORIGINS), place
            assert len(source) > 20, place
            assert source.count("assumption: ") == source.startswith("assumption: "), place


@pytest.mark.parametrize("kind", sorted(FABRIC_KINDS))
def test_every_figure_of_the_fabrics_says_where_it_comes_from(kind) -> None:
    fabric = FABRIC_KINDS[kind]
    for figure in (fabric.latency_s, *(fabric.share(item) for item in COLLECTIVES)):
        assert figure.source.startswith(ORIGINS)
    for constant in (OVERLAP, CONTENTION):
        assert constant.source.startswith(ORIGINS)


@pytest.mark.parametrize("name", SOFTWARE)
def test_software_is_neutral_or_says_why_not(name) -> None:
    profile = software(name)
    assert profile.name == name
    for figure in (profile.efficiency, profile.launch_floor_s):
        assert figure.source.startswith(ORIGINS)
    assert 0 < profile.launch_floor_s.value < 1e-3
    if profile.efficiency.value != 1:
        assert not profile.efficiency.is_assumed


@pytest.mark.parametrize("name", GPUS)
def test_figures_of_a_part_fit_together(name) -> None:
    profile = hardware(name)
    assert 12e9 < profile.memory_bytes.value < 300e9
    assert 0.2e12 < profile.memory_bandwidth.value <= 8e12
    peaks = {dtype: constant.value for dtype, constant in profile.peak_flops_per_s}
    assert ("bfloat16" not in peaks) == (name in WITHOUT_BFLOAT16)
    assert peaks["float16"] == peaks.get("bfloat16", peaks["float16"])
    assert peaks["float64"] <= peaks["float32"] < peaks["float16"]
    assert ("float8_e4m3fn" in peaks) == (name in WITH_FLOAT8)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        if dtype in peaks:
            assert abs(peaks[dtype] / peaks["bfloat16"] - 2) < 0.01
    inside, between = profile.links
    assert between.name == "ib"
    assert inside.name in ("nvlink", "pcie", "xgmi", "xelink")


@pytest.mark.parametrize("name", GPUS)
def test_links_inside_a_node_are_faster(name) -> None:
    inside, between = hardware(name).links
    for kind in COLLECTIVES:
        near, far = (link.seconds(kind, Span(link.name, 4), GIGA) for link in (inside, between))
        assert near < far


@pytest.mark.parametrize("name", GPUS)
def test_more_work_takes_longer_and_less_of_it_is_less_efficient(name) -> None:
    profile = hardware(name)
    dtypes = [dtype for dtype, _ in profile.peak_flops_per_s]
    for key in ("matmul", "attention"):
        for dtype in dtypes:
            times = [profile.compute_s(key, dtype, 2.0**power) for power in range(10, 45)]
            for low, high in pairwise(times):
                assert high >= low * (1 - 1e-3), (key, dtype)
            ratios = [profile.curve(f"{key}.{dtype}").at(2.0**power) for power in range(10, 45)]
            assert all(0 < ratio <= 1 for ratio in ratios)
            assert ratios == sorted(ratios)


ORDERS = [
    ("memory", ["a100-sxm-40", "a100-sxm-80", "h100-sxm-96", "h200", "b200", "mi300x", "mi325x"]),
    ("bandwidth", ["t4", "v100-sxm2-32", "a100-sxm-40", "a100-pcie-80", "a100-sxm-80"]),
    ("bandwidth", ["h100-pcie", "h100-sxm-96", "h100-sxm", "h200", "mi300x", "mi325x", "b200"]),
    ("matmul", ["t4", "v100-sxm2-32", "a100-sxm-80", "h100-pcie", "h100-sxm-96", "h100-sxm"]),
    ("matmul", ["a100-pcie-80", "a100-sxm-80", "mi300x", "h100-sxm", "b200", "gb200"]),
    ("nvlink", ["v100-sxm2-32", "a800-sxm-80", "a100-sxm-80", "h100-sxm", "b200"]),
    ("nvlink", ["h800-sxm", "h100-sxm"]),
    ("network", ["t4", "a100-pcie-80", "a100-sxm-80", "h100-sxm", "b300"]),
]


def quality(name, what):
    """A figure of which more is better."""
    profile = hardware(name)
    inside, between = (link.name for link in profile.links)
    size = 2.0 * 8192**3
    return {
        "memory": lambda: profile.memory_bytes.value,
        "bandwidth": lambda: profile.memory_bandwidth.value,
        "matmul": lambda: 1 / profile.compute_s("matmul", "float16", size),
        "nvlink": lambda: 1 / profile.collective_s("all_gather", Span(inside, 4), GIGA),
        "network": lambda: 1 / profile.collective_s("all_reduce", Span(between, 2), GIGA),
    }[what]()


@pytest.mark.parametrize(("what", "names"), ORDERS)
def test_parts_are_in_the_order_that_everyone_knows(what, names) -> None:
    values = [quality(name, what) for name in names]
    assert values == sorted(values)
    assert len(set(values)) == len(values)


def test_what_a_part_cannot_compute_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="v100-sxm2-32 has no peak for bfloat16"):
        hardware("v100-sxm2-32").compute_s("matmul", "bfloat16", 1e9)


def test_large_matmuls_reach_what_was_published() -> None:
    """TFLOP/s of 2**37 FLOP: OpenXLA's tables for H100 and B200, ml-engineering's for A100."""
    for name, tera in (("a100-sxm-80", 271), ("h100-sxm", 766), ("b200", 1417)):
        seconds = hardware(name).compute_s("matmul", "bfloat16", 2**37)
        assert abs(2**37 / seconds / 1e12 / tera - 1) < 0.01


def test_a_capped_h100_is_slower_by_the_cube_root_of_its_power() -> None:
    for key, size in (("matmul", 1e13), ("attention", 1e13)):
        capped, full = (
            hardware(name).compute_s(key, "bfloat16", size) for name in ("h100-sxm-96", "h100-sxm")
        )
        assert math.isclose(capped / full, (700 / 500) ** (1 / 3), rel_tol=1e-3)


@pytest.mark.parametrize(("gpu", "gpus_per_node", "text"), RUNS)
@pytest.mark.parametrize("nodes", [1, 2, 48])
def test_every_published_network_can_be_priced(gpu, gpus_per_node, text, nodes) -> None:
    """From the words of a row to seconds of a collective over its cluster."""
    name = gpu_profile(gpu)
    profile = load_hardware(CONFIGS / "hardware" / f"{name}.toml", nodes=nodes)
    rate = inter_link_rate(text, gpus_per_node)
    if rate is not None:
        stated = Constant(rate, "bytes/s", f"published, {text}")
        kind = inter_link_kind(text) or "infiniband"
        profile = with_link(profile, fabric_link("ib", kind, stated, nodes=nodes))
    inside, between = (link.name for link in profile.links)
    text = f"row {name} node:{gpus_per_node}@{inside} cluster:{nodes}@{between}"
    cluster = Cluster.parse(text)
    for size in {gpus_per_node, cluster.world_size}:
        for kind in COLLECTIVES:
            seconds = profile.collective_s(kind, cluster.span(1, size), GIGA)
            assert (seconds > 0) == (size > 1)
            assert math.isfinite(seconds)


def test_a_cluster_of_more_nodes_reaches_less(tmp_path) -> None:
    """The nodes of the cluster reach the fabrics of its hardware file."""
    for folder in ("clusters", "hardware", "software"):
        (tmp_path / folder).mkdir()
        for path in (CONFIGS / folder).glob("*.toml"):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "clusters" / "h100-8x8.toml"
    few = load_machine(path)[1]
    path.write_text(
        path.read_text().replace('name = "cluster"\nsize = 8', 'name = "cluster"\nsize = 128')
    )
    many = load_machine(path)[1]
    span = Span("ib", 64, Span("nvlink", 8))
    ratio = many.collective_s("reduce_scatter", span, 64 * GIGA) / few.collective_s(
        "reduce_scatter", span, 64 * GIGA
    )
    assert math.isclose(ratio, 345 / 260, rel_tol=0.01)
