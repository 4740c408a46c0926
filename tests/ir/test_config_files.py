"""Cluster, hardware and software files: reading, errors, and every figure of those shipped."""

import math
import shutil
from pathlib import Path

import pytest

from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import load_cluster, load_hardware, load_machine, load_software
from shardwise.ir.config_write import cluster_toml, hardware_toml, software_toml
from shardwise.ir.errors import FileFormatError, MismatchError
from shardwise.ir.link import COLLECTIVES
from shardwise.ir.span import Span

CONFIGS = Path(__file__).parents[2] / "configs"
CLUSTERS, HARDWARE, SOFTWARE = (
    sorted((CONFIGS / folder).glob("*.toml")) for folder in ("clusters", "hardware", "software")
)
ORIGINS = ("assumption: ", "data sheet, ", "measured, ", "published, ")


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def figures(profile):
    """Every sourced figure of a hardware or software profile with its path."""
    if hasattr(profile, "figures"):
        return list(profile.figures())
    return [("efficiency", profile.efficiency), ("launch_floor_s", profile.launch_floor_s)]


@named(HARDWARE)
def test_every_figure_of_the_hardware_files_has_a_source(path) -> None:
    profile = load_hardware(path)
    listed = figures(profile)
    assert len(listed) > 15
    for place, figure in listed:
        assert figure.source.strip(), place
        assert figure.source.startswith(ORIGINS), f"{place}: {figure.source}"
        assert figure.is_assumed == figure.source.startswith("assumption: "), place


@named(SOFTWARE)
def test_every_figure_of_the_software_files_has_a_source(path) -> None:
    for place, figure in figures(load_software(path)):
        assert figure.source.startswith(ORIGINS), place


@named([path for path in HARDWARE if path.stem == "cpu-gloo"])
def test_the_list_of_figures_leaves_none_of_the_file_out(path) -> None:
    """Each `source` key of the TOML text of a file that stands for itself is one figure."""
    assert len(figures(load_hardware(path))) == path.read_text().count("source = ")


@named(CLUSTERS)
def test_every_cluster_has_its_hardware_and_prices_for_all_collectives(path) -> None:
    cluster, hardware, software = load_machine(path)
    assert cluster.name == path.stem
    assert software.device == hardware.device
    assert hardware.rank_memory_bytes(cluster) > 2**30
    span = cluster.span(1, cluster.world_size)
    for kind in COLLECTIVES:
        times = [hardware.collective_s(kind, span, size) for size in (2**10, 2**20, 2**30)]
        assert 0 < times[0] < times[2] or (cluster.world_size == 1 and not any(times))
        assert all(math.isfinite(time) for time in times)


def test_the_names_that_documents_rely_on_are_there() -> None:
    assert {path.stem for path in CLUSTERS} >= {
        "local-2",
        "local-4",
        "h100-8x8",
        "dgx-a100-1x8",
    }
    assert {path.stem for path in HARDWARE} >= {"cpu-gloo", "h100-sxm", "a100-sxm-80"}
    assert {path.stem for path in SOFTWARE} >= {"torch-cpu", "torch-cuda"}
    assert load_cluster(CONFIGS / "clusters" / "h100-8x8.toml").world_size == 64
    assert load_cluster(CONFIGS / "clusters" / "local-4.toml").ranks_per_device == 2


def test_the_cpu_profile_says_what_was_measured() -> None:
    cpu = load_hardware(CONFIGS / "hardware" / "cpu-gloo.toml")
    two, four = Span("loopback", 2), Span("loopback", 4, None, 2)
    mega = 2**20
    for kind, size, span, milliseconds in (
        ("all_reduce", 64 * mega, two, 39.4),
        ("reduce_scatter", 64 * mega, two, 80),
        ("all_gather", 4 * mega, two, 4.0),
        ("send_recv", mega, two, 0.33),
        ("all_reduce", 16 * mega, four, 27.7),
        ("all_to_all", 64 * mega, four, 45.7),
    ):
        assert math.isclose(cpu.collective_s(kind, span, size), milliseconds / 1e3, rel_tol=1e-6)
    for side, giga in ((64, 73), (256, 95), (2048, 103)):
        rate = 2 * side**3 / cpu.compute_s("matmul", "float32", 2 * side**3) / 1e9
        assert math.isclose(rate, giga, rel_tol=1e-3)
    assert cpu.link("loopback").overlap.value == 0


def test_gpu_profiles_are_near_what_is_published() -> None:
    h100 = load_hardware(CONFIGS / "hardware" / "h100-sxm.toml")
    a100 = load_hardware(CONFIGS / "hardware" / "a100-sxm-80.toml")
    large = 2 * 8192**3
    for profile, tera in ((h100, 766), (a100, 271)):
        rate = large / profile.compute_s("matmul", "bfloat16", large) / 1e12
        assert abs(rate / tera - 1) < 0.02
    node = Span("nvlink", 8)
    giga = 2**30
    assert 350e9 < giga * 1.75 / h100.collective_s("all_reduce", node, giga) < 450e9
    assert 220e9 < giga * 1.75 / a100.collective_s("all_reduce", node, giga) < 240e9
    two_nodes = Span("ib", 16, node)
    one_rank_each = Span("ib", 2)
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        wide, narrow = (h100.collective_s(kind, s, giga) for s in (two_nodes, one_rank_each))
        assert wide < narrow
        assert wide >= h100.collective_s(kind, node, giga)


@named(HARDWARE)
def test_written_hardware_reads_back(path, tmp_path) -> None:
    profile = load_hardware(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(hardware_toml(profile), encoding="utf-8")
    assert load_hardware(copy) == profile
    assert type(profile).parse(str(profile)) == profile
    assert load_hardware(copy).digest() == profile.digest()


@named(SOFTWARE)
def test_written_software_reads_back(path, tmp_path) -> None:
    profile = load_software(path)
    copy = tmp_path / "copy.toml"
    copy.write_text(software_toml(profile), encoding="utf-8")
    assert load_software(copy) == profile


@named(CLUSTERS)
def test_written_clusters_read_back(path, tmp_path) -> None:
    copy = tmp_path / "copy.toml"
    for cluster in (load_cluster(path), load_cluster(path).limited(10**9)):
        copy.write_text(cluster_toml(cluster), encoding="utf-8")
        assert load_cluster(copy) == cluster
        assert Cluster.parse(str(cluster)) == cluster


def edited(tmp_path, path, old, new):
    """A copy of a shipped file with one piece of its text replaced."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    copy = tmp_path / path.name
    copy.write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy


CPU = CONFIGS / "hardware" / "cpu-gloo.toml"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("memory_bytes =", "memory_byte =", "at memory_byte: .*rename it to memory_bytes"),
        ("context_bytes =", "colour =", "at colour: .*known are name, device, memory_bytes"),
        ("latency_s =", "latencys =", r"at links\[0\].latencys: .*rename it to latency_s"),
        (
            "group_size = 2",
            "groups = 2",
            r"at links\[0\].collectives\[0\].groups: .*group_size",
        ),
        ('device = "cpu"', "device = 3", "at device: 3 is given, expected a string"),
        ('device = "cpu"', 'device = "tpu"', "device 'tpu' of cpu-gloo"),
        ("value = 131072", 'value = "131072"', "at group_bytes.value: .*expected a number"),
        ("value = 131072", "value = -1", "at group_bytes: .*not negative"),
        ("value = 131072", "value = nan", "at group_bytes"),
        ("value = 131072", "value = true", "at group_bytes.value"),
        ("value = 131072", "value = 2026-11-29", "at group_bytes.value"),
        ("float64 =", "float99 =", "dtype 'float99' is not known"),
        (
            'kind = "all_reduce"',
            'kind = "reduce"',
            r"at links\[0\].collectives\[0\]: collective",
        ),
        ("group_size = 2\n", "", r"at links\[0\].collectives\[0\]: .*give one form"),
        ("seconds =", "bus_bytes_per_s =", r"at links\[0\].collectives\[0\]: .*give one form"),
        ("flop =", "bytes =", "efficiency matmul of cpu-gloo is a curve bytes"),
        ("ratio = [", "ratio = [1, ", "efficiency.*one y for each x"),
        ("[links.collectives]]", "[links.collective]]", r"at links\[0\]"),
        ('name = "cpu-gloo"\n', "", "at name: the key is missing; add it"),
        ('source = "measured, VmRSS of 8', 'source = ""\n#', "not TOML .*line"),
        ('name = "loopback"', 'name = "Loop"', r"at links\[0\]: link 'Loop'"),
    ],
)
def test_bad_hardware_files_name_the_file_and_the_key(tmp_path, old, new, problem) -> None:
    path = edited(tmp_path, CPU, old, new)
    with pytest.raises(FileFormatError, match=problem) as error:
        load_hardware(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_figure_without_a_source_is_refused(tmp_path) -> None:
    text = CPU.read_text(encoding="utf-8")
    for index in range(text.count('source = "')):
        head, *rest = text.split('source = "')
        end = rest[index].index('"')
        rest[index] = rest[index][end:]
        path = tmp_path / "no-source.toml"
        path.write_text('source = "'.join([head, *rest]), encoding="utf-8")
        with pytest.raises(FileFormatError, match="source '' of"):
            load_hardware(path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("size = 8", "size = 0", r"at levels\[0\]: size of level node"),
        ("size = 8", "size = 8.0", r"at levels\[0\].size: 8.0 is given, expected an integer"),
        ("hardware =", "hardwares =", "at hardwares: .*rename it to hardware"),
        ('link = "ib"', 'link = "IB"', r"at levels\[1\]: link 'IB'"),
        ('name = "cluster"', 'name = "node"', "its own name"),
        ("\n[[levels]]", "memory_limit_bytes = 0\n\n[[levels]]", "memory_limit_bytes"),
    ],
)
def test_bad_cluster_files_name_the_key(tmp_path, old, new, problem) -> None:
    path = edited(tmp_path, CONFIGS / "clusters" / "h100-8x8.toml", old, new)
    with pytest.raises(FileFormatError, match=problem) as error:
        load_cluster(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version_range =", "version =", "at version: .*rename it to version_range"),
        ('device = "cpu"', 'device = "gpu"', "device 'gpu'"),
        ("value = 1,", "value = 2,", "efficiency of torch-cpu is 2"),
        ("value = 1,", "value = -1,", "at efficiency: "),
    ],
)
def test_bad_software_files_name_the_key(tmp_path, old, new, problem) -> None:
    path = edited(tmp_path, CONFIGS / "software" / "torch-cpu.toml", old, new)
    with pytest.raises(FileFormatError, match=problem):
        load_software(path)


def test_unreadable_files_are_named(tmp_path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path / "binary.toml", tmp_path):
        for load in (load_cluster, load_hardware, load_software):
            with pytest.raises(FileFormatError, match=r"give the path|not TOML") as error:
                load(path)
            assert str(path) in str(error.value)


@pytest.fixture
def machine(tmp_path):
    for folder in ("clusters", "hardware", "software"):
        shutil.copytree(CONFIGS / folder, tmp_path / folder)
    return tmp_path


def test_a_machine_takes_another_software_by_name(machine) -> None:
    path = machine / "clusters" / "dgx-a100-1x8.toml"
    assert load_machine(path)[2].name == "torch-cuda"
    assert load_machine(path, "megatron-deepspeed")[2].name == "megatron-deepspeed"
    with pytest.raises(MismatchError, match="torch-cpu is for cpu"):
        load_machine(path, "torch-cpu")
    with pytest.raises(FileFormatError, match=r"name one of .*megatron-deepspeed, .*torch-cpu"):
        load_machine(path, "torch-tpu")


def test_a_machine_without_its_hardware_takes_the_profile_that_comes_with_the_project(
    machine,
) -> None:
    (machine / "hardware" / "h100-sxm.toml").unlink()
    assert load_machine(machine / "clusters" / "h100-8x8.toml")[1].name == "h100-sxm"


def test_a_machine_of_unknown_hardware_is_told_what_there_is(machine) -> None:
    path = machine / "clusters" / "h100-8x8.toml"
    path.write_text(path.read_text().replace('"h100-sxm"', '"h101"'))
    with pytest.raises(FileFormatError, match=r"no hardware/h101.toml .* one of a100-pcie-40, "):
        load_machine(path)


def test_a_machine_with_a_link_that_its_hardware_lacks_is_refused(machine) -> None:
    path = machine / "clusters" / "h100-8x8.toml"
    path.write_text(path.read_text().replace('"ib"', '"ethernet"'))
    with pytest.raises(MismatchError, match="no link class 'ethernet'; it has nvlink, ib"):
        load_machine(path)


def test_a_machine_with_too_high_a_limit_is_refused(machine) -> None:
    path = machine / "clusters" / "local-2.toml"
    path.write_text("memory_limit_bytes = 999000000000\n" + path.read_text())
    with pytest.raises(MismatchError, match="lower it"):
        load_machine(path)
