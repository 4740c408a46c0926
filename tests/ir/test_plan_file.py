"""Plan files: golden files are canonical, and whatever is wrong is one line with a path."""

import hashlib
import importlib.util
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.ir.errors import FileFormatError, MismatchError, ShardwiseError
from shardwise.ir.plan import Plan
from shardwise.ir.plan_file import load, loads, save
from shardwise.ir.plan_json import plan_to_plain
from shardwise.ir.plan_schema import PlanForm
from tests.support.plans import GOLDEN

ROOT = Path(__file__).parents[2]
FOUR = next(path for path in GOLDEN if path.stem == "four-ranks")
LARGE = next(path for path in GOLDEN if path.stem == "llama-3-8b-512-ranks")


def test_there_are_three_golden_plans() -> None:
    ranks = {path.stem: load(path).mesh.world_size for path in GOLDEN}
    assert ranks == {"one-rank": 1, "four-ranks": 4, "llama-3-8b-512-ranks": 512}
    assert len(load(FOUR).buckets) == 2
    assert len(load(LARGE).stages) == 4


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files_are_canonical(path: Path, tmp_path: Path) -> None:
    """Loading and saving one leaves every byte; so hand edits keep the one form."""
    plan = load(path)
    save(plan, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert Plan.load(str(path)) == plan
    assert "illustrative" in plan.covers.lower(), "their numbers must not be taken for results"


def test_the_digest_is_of_the_value_and_not_of_the_bytes() -> None:
    tree = json.loads(FOUR.read_bytes())
    shuffled = json.dumps(dict(reversed(tree.items())), indent=7).encode()
    assert loads(shuffled) == load(FOUR)
    assert loads(shuffled).digest() == load(FOUR).digest()
    compact = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    assert load(FOUR).digest() == hashlib.sha256(compact.encode()).hexdigest()


def test_written_keys_are_those_of_the_schema_in_its_order() -> None:
    plain = plan_to_plain(load(FOUR))
    assert list(plain) == list(PlanForm.model_fields)
    assert PlanForm.model_validate(plain).model_dump() == plain
    for key, value in plain.items():
        inner = value[0] if isinstance(value, list) else value
        if isinstance(inner, dict) and key != "strategies":
            form = PlanForm.model_validate(plain).__getattribute__(key)
            form = form[0] if isinstance(form, list) else form
            assert list(inner) == list(type(form).model_fields), key


def changed(path: Path, change: Callable[[Any], Any]) -> bytes:
    """The golden file with a change to its tree."""
    tree = json.loads(path.read_bytes())
    change(tree)
    return json.dumps(tree).encode()


def put(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for part in path[:-1]:
            tree = tree[part]
        tree[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for part in path[:-1]:
            tree = tree[part]
        del tree[path[-1]]

    return change


def rename(*path: str | int, to: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for part in path[:-1]:
            tree = tree[part]
        tree[to] = tree.pop(path[-1])

    return change


B1 = ("buckets", 1)
EDITS: list[tuple[Callable[[Any], None], str]] = [
    (
        put("version", value=2),
        r"at version: 2 is given and this shardwise reads version 1; use",
    ),
    (put("version", value="1"), r"at version: '1' is given and this"),
    (put("version", value=True), r"at version: True is given and this"),
    (drop("version"), r"at version: the key is missing; add it"),
    (
        put("speed", value=1),
        r"at speed: the key is unknown; delete it, known are version, model",
    ),
    (
        rename(*B1, "seats", to="seat"),
        r"at buckets\[1\]\.seat: the key is unknown; rename it to s",
    ),
    (drop(*B1, "seats"), r"at buckets\[1\]\.seats: the key is missing"),
    (
        put(*B1, "seats", value=-3),
        r"at buckets\[1\]\.seats: -3 is given, expected a number >= 1",
    ),
    (
        put(*B1, "seats", value="2"),
        r'at buckets\[1\]\.seats: "2" is given, expected an integer',
    ),
    (
        put(*B1, "seats", value=2.0),
        r"at buckets\[1\]\.seats: 2.0 is given, expected an integer",
    ),
    (put(*B1, "seats", value=True), r"at buckets\[1\]\.seats: true is given, expected an int"),
    (put(*B1, "seats", value=None), r"at buckets\[1\]\.seats: null is given, expected an int"),
    (put(*B1, value=[]), r"at buckets\[1\]: a list is given, expected an object"),
    (put("buckets", value={}), r"at buckets: an object is given, expected a list"),
    (put("mesh", value=["x0"]), r"at mesh: a list is given, expected a string"),
    (put("step_s", value=True), r"at step_s: true is given, expected a number"),
    (put("strategies", value=[]), r"at strategies: a list is given, expected an object"),
    (put("strategies", "layer.ts", value=3), r'at strategies\["layer\.ts"\]: 3 is given, exp'),
    (
        put("strategies", "layer.ts", value="ring"),
        r'at strategies\["layer\.ts"\]: cannot parse',
    ),
    (
        rename("strategies", "layer.ts", to="Layer"),
        r"at strategies\.Layer: strategy id 'Layer'",
    ),
    (put("mesh", value="x0=two@ib"), r"at mesh: mesh .* does not parse"),
    (put("groups", 0, value="x1"), r"at groups\[0\]: axis 'x1' is not in mesh"),
    (put("groups", 0, value=""), r"at groups\[0\]: axis '' is not in mesh"),
    (put("stages", 0, value="0-6"), r"at stages\[0\]: cannot parse '0-6' as a stage"),
    (put("model", "units", 1, value="layer*0"), r"at model\.units\[1\]: "),
    (put("model", "digest", value="12"), r"at model: .*digest"),
    (put("model", "parameter_count", value=-1), r"at model\.parameter_count: -1 is given"),
    (put("training", "optimizer", value="adamW"), r"at training: optimizer 'adamW'"),
    (put("training", "trainable", value=[]), r"at training: trainable"),
    (put("parameters", 3, "master", value="x0:Q"), r"at parameters\[3\]\.master: "),
    (put("parameters", 3, "accumulator", value=""), r"at parameters\[3\]\.accumulator: "),
    (put("parameters", 3, "accumulator", value="x0:P"), r"at parameters\[3\]: .* is Partial"),
    (
        put("parameters", 3, "pattern", value="{2:1}"),
        r"at parameters\[3\]\.pattern: .*is empty",
    ),
    (
        put("parameters", 3, "lifetime", value="ever"),
        r"at parameters\[3\]\.lifetime: .*use, mic",
    ),
    (put(*B1, "bucket", value="S(9,1]"), r"at buckets\[1\]\.bucket: "),
    (put(*B1, "padded", 0, value="S=x"), r"at buckets\[1\]\.padded\[0\]: cannot parse 'S=x'"),
    (put(*B1, "padded", value=["S=4096"]), r"at buckets\[1\]\.padded: no shape holds the long"),
    (put(*B1, "padded", value=[]), r"at buckets\[1\]\.padded: 0 shapes are given"),
    (put(*B1, "runs", 1, value="layer.ts*"), r"at buckets\[1\]\.runs\[1\]: cannot parse"),
    (put(*B1, "runs", 1, value="layer.ts*3"), r"at buckets\[1\]\.runs: they cover 5 units"),
    (
        put(*B1, "time_s", "coefficients", "T", value=-1),
        r"at buckets\[1\]\.time_s: the price at",
    ),
    (
        put(*B1, "time_s", "coefficients", "X Y", value=1),
        r"at buckets\[1\]\.time_s: cannot pars",
    ),
    (
        put(*B1, "time_s", "fit_error", value=-1),
        r"at buckets\[1\]\.time_s\.fit_error: -1 is giv",
    ),
    (
        put("status", value="optimal"),
        r"at status: 'optimal' is given; expected one of optimal_",
    ),
    (put("menu", value="full"), r"at menu: 'full' is given; expected one of executable, all"),
    (put("long_documents", value="keep"), r"at long_documents: .* error, split, drop"),
    (put("gap", value=0.5), r"at gap: 0.5 is given, but step_s / bound_s - 1 is 0.0030"),
    (put("bound_s", value=0), r"at bound_s: 0.0 is given; give a finite number > 0"),
    (put("covers", value=""), r"at covers: '' is given"),
    (put("baselines", 1, "name", value=""), r"at baselines\[1\]\.name: '' is given"),
    (put("baselines", 1, "step_s", value=-1), r"at baselines\[1\]\.step_s: -1.0 is given"),
    (
        put("baselines", 1, "peak_bytes_per_rank", value=0),
        r"at baselines\[1\]\.peak_bytes_per_rank: 0.0 is given",
    ),
    (put("baselines", 3, "note", value=""), r"at baselines\[3\]\.note: empty, and no step_s"),
    (put("priced_for", "cluster", value="c"), r"at priced_for\.cluster: "),
    (put("priced_for", "lengths_digest", value="x"), r"at priced_for\.lengths_digest: 'x' is"),
]


@pytest.mark.parametrize(("change", "message"), EDITS)
def test_hand_edits_are_one_line_with_path_and_remedy(
    change: Callable[[Any], None], message: str
) -> None:
    with pytest.raises(FileFormatError, match=f"^plan\\.json: {message}") as caught:
        loads(changed(FOUR, change), name="plan.json")
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith("(or write it again with `shardwise plan`)")
    assert len(text) < 900
    assert caught.value.__cause__ is None, "the chain would show pydantic's own page of errors"
    assert caught.value.__suppress_context__


def test_several_problems_are_counted() -> None:
    tree = json.loads(FOUR.read_bytes())
    tree["step_s"] = tree["bound_s"] = "fast"
    with pytest.raises(FileFormatError, match=r'step_s: "fast" .* a number \(1 more problems\)'):
        loads(json.dumps(tree).encode())


def test_a_truncated_file_says_where_it_ends() -> None:
    content = FOUR.read_bytes()
    cut = content.index(b'"seats": 1')
    with pytest.raises(
        FileFormatError, match=r"at buckets\[1\]\.seats: the file ends too early .truncated"
    ):
        loads(content[: cut + len('"seats": 1')])


@pytest.mark.parametrize("content", [b"[]", b"3", b'"x"', b"null", b"true", b"1.5"])
def test_another_top_level_is_refused(content: bytes) -> None:
    with pytest.raises(FileFormatError, match="at the top level: no object is given"):
        loads(content)


def test_a_plan_of_another_model_is_refused_with_the_remedy() -> None:
    with pytest.raises(MismatchError, match="'llama-3-8b' and this is 'llama-tiny'") as caught:
        load(LARGE).check_model(load(FOUR).model)
    assert "`shardwise plan --reprice`" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b")):
        with pytest.raises(FileFormatError, match=r"cannot be read .* give the path") as caught:
            load(path)
        assert "\n" not in str(caught.value)
    odd = tmp_path / "a\nb.json"
    odd.write_bytes(b"{}")
    with pytest.raises(FileFormatError) as caught:
        load(odd)
    assert "\n" not in str(caught.value)


def test_a_file_over_the_limit_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: takes no space
    with pytest.raises(FileFormatError, match="over the limit"):
        load(path)


def test_saving_replaces_at_once_and_keeps_the_old_file_on_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    load(FOUR).save(path)
    before = path.read_bytes()

    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ShardwiseError, match=r"cannot be written .No space left") as caught:
        save(load(LARGE), path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]
    monkeypatch.undo()
    save(load(LARGE), path)
    assert path.read_bytes() == LARGE.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_saved_files_have_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(load(FOUR), path)
    (tmp_path / "other").write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "plan.json", tmp_path, Path("a\0b")):
        with pytest.raises(ShardwiseError, match="cannot be written") as caught:
            save(load(FOUR), path)
        assert "\n" not in str(caught.value)


def test_the_reference_page_is_current() -> None:
    """`python docs/plan_file_page.py` writes it again."""
    spec = importlib.util.spec_from_file_location("page", ROOT / "docs" / "plan_file_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page()


def test_every_key_of_the_file_is_described() -> None:
    pending = [PlanForm]
    while pending:
        form = pending.pop()
        for name, field in form.model_fields.items():
            assert field.description and field.description[-1] in ".;", (form, name)
            assert field.is_required(), (form, name)
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
            pending += [kind for kind in kinds if hasattr(kind, "model_fields")]
