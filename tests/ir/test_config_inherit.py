"""Hardware files that say only how they differ from another one."""

import math
import shutil
from itertools import pairwise

import pytest

from shardwise.ir.config_files import load_hardware
from shardwise.ir.errors import FileFormatError
from shardwise.ir.fabric_kinds import CONTENTION
from tests.support.profiles import CONFIGS, hardware

SOURCE = 'source = "data sheet, made up"'


@pytest.fixture
def folder(tmp_path):
    shutil.copy(CONFIGS / "hardware" / "a100-sxm-80.toml", tmp_path)
    return tmp_path


def child(folder, text, name="part", base="a100-sxm-80"):
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\ninherits = "{base}"\n{text}', encoding="utf-8")
    return path


BASE = hardware("a100-sxm-80")


def test_a_file_that_changes_nothing_has_the_figures_of_its_base(folder) -> None:
    part = load_hardware(child(folder, ""))
    assert part.name == "part"
    assert part.device == BASE.device
    for (place, mine), (other, theirs) in zip(part.figures(), BASE.figures(), strict=True):
        assert place == other
        assert mine.is_assumed or mine == theirs == CONTENTION or place.endswith(".latency_s")
        assert str(mine).split('"')[0] == str(theirs).split('"')[0]
    assert part.memory_bytes.source == f"assumption: as a100-sxm-80: {BASE.memory_bytes.source}"
    assert "assumption: as a100-sxm-80: assumption" not in str(part)
    assert part.digest() != BASE.digest()


def test_figures_of_the_file_replace_those_of_the_base(folder) -> None:
    part = load_hardware(
        child(
            folder,
            f"memory_bytes = {{ value = 7e9, {SOURCE} }}\n"
            f"[peak_flops_per_s]\nfloat64 = {{ value = 1e12, {SOURCE} }}\n",
        )
    )
    assert part.memory_bytes.value == 7e9
    assert not part.memory_bytes.is_assumed
    assert part.peak("float64") == 1e12
    assert part.peak("bfloat16") == BASE.peak("bfloat16")
    assert part.memory_bandwidth.value == BASE.memory_bandwidth.value


def test_curves_are_inherited_at_equal_seconds_at_peak(folder) -> None:
    """A part of twice the peak is as inefficient at twice the FLOP."""
    text = f"[peak_flops_per_s]\nbfloat16 = {{ value = 624e12, {SOURCE} }}\n"
    part = load_hardware(child(folder, text))
    for flop in (1e7, 3e8, 5e9, 1e11):
        mine = part.compute_s("matmul", "bfloat16", 2 * flop)
        assert math.isclose(mine, BASE.compute_s("matmul", "bfloat16", flop), rel_tol=1e-3)
        assert part.compute_s("matmul", "float32", flop) == BASE.compute_s(
            "matmul", "float32", flop
        )
    assert part.curve("matmul").source.endswith("at equal seconds at peak")
    assert part.memory_s(1e6) == BASE.memory_s(1e6)


def test_a_curve_ends_where_the_file_says(folder) -> None:
    part = load_hardware(child(folder, f'[efficiency."matmul"]\nends_at = 0.5\n{SOURCE}\n'))
    mine, theirs = part.curve("matmul"), BASE.curve("matmul")
    assert mine.y[-1] == 0.5
    assert mine.x == theirs.x
    for low, high in zip(mine.y, theirs.y, strict=True):
        assert math.isclose(low / high, 0.5 / theirs.y[-1], rel_tol=1e-3)
    assert mine.source.startswith("assumption: the base's curve at equal seconds at peak, ending")
    assert mine.source.endswith("data sheet, made up")


def test_what_a_part_has_not_is_removed(folder) -> None:
    part = load_hardware(child(folder, 'removes = ["peak_flops_per_s.bfloat16"]\n'))
    assert [dtype for dtype, _ in part.peak_flops_per_s] == ["float16", "float32", "float64"]


def test_links_and_fabrics_replace_all_of_the_base(folder) -> None:
    rate = f"bytes_per_s_per_gpu = {{ value = 1e10, {SOURCE} }}"
    text = f'[[fabrics]]\nname = "pcie"\nkind = "direct"\n{rate}\n'
    assert [link.name for link in load_hardware(child(folder, text)).links] == ["pcie"]
    assert [link.name for link in load_hardware(child(folder, "links = []\n")).links] == [
        "nvlink",
        "ib",
    ]


def test_a_base_may_inherit_too(folder) -> None:
    child(folder, f"memory_bytes = {{ value = 7e9, {SOURCE} }}\n", "first")
    part = load_hardware(child(folder, "", "second", "first"))
    assert part.memory_bytes.source == "assumption: as first: data sheet, made up"
    assert part.group_bytes.source.startswith("assumption: as first: as a100-sxm-80: published, ")


def test_the_base_may_change_and_so_does_the_digest(folder) -> None:
    path = child(folder, "")
    before = load_hardware(path).digest()
    base = folder / "a100-sxm-80.toml"
    base.write_text(base.read_text().replace("value = 616000000", "value = 616000001"))
    assert load_hardware(path).digest() != before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colour = 1\n", "at colour: the key is unknown"),
        ("peak_flops_per_s = 3\n", "at peak_flops_per_s: 3 is given, expected an object"),
        ("efficiency = []\n", "at efficiency: a list is given"),
        ("memory_bytes = 3\n", "at memory_bytes: 3 is given"),
        ('removes = ["peak_flops_per_s.bf16"]\n', "the base has no 'peak_flops_per_s.bf16'; it"),
        ('removes = ["links.nvlink"]\n', "at removes: the base has no 'links.nvlink'"),
        ("removes = [1]\n", "at removes: the base has no 1"),
        ("removes = 1\n", "at removes: 1 is given, expected a list"),
        ('[efficiency."matmul"]\nends_at = 2\nsource = "x"\n', "ends_at 2; give above 0"),
        ('[efficiency."matmul"]\nends_at = "a"\nsource = "x"\n', "ends_at 'a'; give above 0"),
        ('[efficiency."matmul"]\nends_at = 0.5\n', "ends_at needs a curve of the base and a sour"),
        ('[efficiency."matmul.int8"]\nends_at = 0.5\nsource = "x"\n', "needs a curve of the base"),
        ('[efficiency."matmul"]\nflop = [1.0]\n', "ratio: the key is missing"),
        ('[[fabrics]]\nname = "ib"\n', r"at fabrics\[0\].kind: the key is missing"),
        (
            '[[fabrics]]\nname = "ib"\nkind = "ring"\nbytes_per_s_per_gpu = '
            '{ value = 1.0, source = "x" }\n',
            r"at fabrics\[0\]: fabric 'ring' of link ib is not known",
        ),
    ],
)
def test_bad_files_name_the_file_and_the_key(folder, text, problem) -> None:
    path = child(folder, text)
    with pytest.raises(FileFormatError, match=problem) as error:
        load_hardware(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("a100", "there is no a100.toml beside it; the folder has a100-sxm-80, part"),
        ("part", "part inherits this file in turn"),
        ("../hardware/a100-sxm-80", "expected the name of a file beside it"),
        ("", "expected the name of a file beside it"),
    ],
)
def test_bad_bases_are_refused(folder, base, problem) -> None:
    with pytest.raises(FileFormatError, match=problem):
        load_hardware(child(folder, "", base=base))


def test_a_loop_of_files_is_refused(folder) -> None:
    child(folder, "", "first", "second")
    with pytest.raises(FileFormatError, match="second inherits this file in turn"):
        load_hardware(child(folder, "", "second", "first"))


def test_a_long_chain_of_files_is_refused(folder) -> None:
    names = ["a100-sxm-80", "first", "second", "third", "fourth", "fifth"]
    for base, name in pairwise(names):
        path = child(folder, "", name, base)
    assert load_hardware(folder / "fourth.toml").name == "fourth"
    with pytest.raises(FileFormatError, match="over 4 files"):
        load_hardware(path)


def test_a_fault_of_the_base_names_the_base(folder) -> None:
    (folder / "a100-sxm-80.toml").write_text("name = [")
    with pytest.raises(FileFormatError, match=r"a100-sxm-80.toml: not TOML"):
        load_hardware(child(folder, ""))
