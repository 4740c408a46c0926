"""Rules of the repository that no linter checks: layers, packages, links, import cost, size."""

import configparser
import importlib
import re
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.imports import LAYERS, When, imports_of, violations

ROOT = Path(__file__).parents[1]
SKIPPED_FOLDERS = {"build", "dist", "out", "__pycache__", "node_modules"}


def files(*patterns: str) -> list[Path]:
    """The repository's own files of these names, each once: not behind links or in outputs."""
    found: list[Path] = []
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            hidden = path.name.startswith(".") and path.name != ".ci"
            if path.is_symlink() or hidden or path.name in SKIPPED_FOLDERS:
                continue
            if path.is_dir():
                pending.append(path)
            elif any(path.match(pattern) for pattern in patterns):
                found.append(path)
    return found


def code_of(*folders: str) -> list[Path]:
    """The Python files below these top-level folders."""
    return [path for path in files("*.py") if path.relative_to(ROOT).parts[0] in folders]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def plant(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# Layers


def test_no_layer_imports_what_it_must_not() -> None:
    assert [str(found) for found in violations(ROOT)] == []


@pytest.mark.parametrize(
    ("file", "line", "forbidden"),
    [
        ("ir/a.py", "import shardwise.planner.search", "shardwise.planner.search"),
        ("ir/a.py", "from shardwise.solvers import highs", "shardwise.solvers.highs"),
        ("ir/a.py", "from shardwise import runtime", "shardwise.runtime"),
        ("ir/a.py", "def f():\n    from shardwise.planner import x", "shardwise.planner.x"),
        ("ir/a.py", "class A:\n    import shardwise.planner as p", "shardwise.planner"),
        ("ir/a.py", "try:\n    import shardwise\nexcept ImportError: pass", "shardwise"),
        ("ir/a.py", "if TYPE_CHECKING:\n    from shardwise import Plan", "shardwise.Plan"),
        ("ir/sub/a.py", "from ...planner import x", "shardwise.planner.x"),
        ("ir/a.py", "import_module('shardwise.planner')", "shardwise.planner"),
        ("ir/a.py", "importlib.import_module('shardwise.cli')", "shardwise.cli"),
        ("ir/a.py", "from ..cli import main", "shardwise.cli.main"),
        ("ir/a.py", "import shardwise.irregular", "shardwise.irregular"),
        ("ir/a.py", "from ir.mesh import Mesh", "ir.mesh.Mesh"),
        ("ir/layout.py", "import torch.distributed", "torch.distributed"),
        ("ir/layout.py", "class A:\n    from torch import nn", "torch.nn"),
        ("ir/a.py", "import transformers", "transformers"),
        ("solvers/a.py", "from shardwise.planner.costs import t", "shardwise.planner.costs.t"),
        ("solvers/a.py", "def f():\n    import torch", "torch"),
        ("solvers/batcher.py", "import shardwise.solvers.highs", "shardwise.solvers.highs"),
        ("planner/a.py", "import shardwise.runtime.program", "shardwise.runtime.program"),
        ("planner/a.py", "import torch", "torch"),
        ("runtime/a.py", "from shardwise.planner import x", "shardwise.planner.x"),
        ("runtime/a.py", "from shardwise.solvers import highs", "shardwise.solvers.highs"),
        ("runtime/a.py", "from shardwise.solvers import *", "shardwise.solvers.*"),
        ("runtime/a.py", "import shardwise.solvers", "shardwise.solvers"),
        ("shardwise/__init__.py", "from shardwise.ir import plan", "shardwise.ir.plan"),
        ("runtime/a.py", "from pydantic import BaseModel", "pydantic.BaseModel"),
        ("planner/a.py", "def f():\n    import highspy", "highspy"),
        ("solvers/batcher.py", "import highspy", "highspy"),
        ("shardwise/cli.py", "import torch", "torch"),
        ("shardwise/cli.py", "if True:\n    import planner", "planner"),
    ],
)
def test_layer_test_catches(tmp_path: Path, file: str, line: str, forbidden: str) -> None:
    plant(tmp_path, file, f'"""A planted violation."""\n{line}\n')
    (found,) = violations(tmp_path)
    assert (found.file, found.name) == (file, forbidden)
    assert found.line == 2 + next(n for n, s in enumerate(line.splitlines()) if "import" in s)
    assert str(found).startswith(f"{file}:{found.line}: ")
    assert str(found).endswith(f": {forbidden}")


def test_layer_test_allows_what_is_allowed(tmp_path: Path) -> None:
    plant(tmp_path, "ir/a.py", "import sympy\nfrom shardwise.ir.mesh import Mesh\n")
    plant(tmp_path, "ir/b.py", "def f():\n    import torch\nif TYPE_CHECKING:\n    import torch\n")
    plant(tmp_path, "ir/trace_export.py", "import torch\n")
    plant(tmp_path, "solvers/a.py", "import shardwise.ir.mesh\nimport highspy\n")
    plant(tmp_path, "solvers/batcher.py", "from shardwise.ir import lengths\n")
    plant(tmp_path, "ir/b_schema.py", "import pydantic\n")
    plant(tmp_path, "planner/a.py", "from shardwise.solvers import highs\n")
    plant(tmp_path, "runtime/a.py", "import torch\nfrom shardwise.solvers import batcher\n")
    plant(tmp_path, "shardwise/cli.py", "def f():\n    from shardwise.planner import search\n")
    (tmp_path / "shardwise" / "ir").symlink_to("../ir")
    assert violations(tmp_path) == []


def test_code_outside_the_layers_imports_the_packages_by_their_full_name() -> None:
    outside = [path for path in files("*.py") if path.relative_to(ROOT).parts[0] not in LAYERS]
    bare = [
        f"{named(path)}:{item.line}: {item.name}"
        for path in outside
        for item in imports_of(path)
        if item.name.partition(".")[0] in LAYERS
    ]
    assert bare == []


# Import cost


def loaded_after(statement: str) -> set[str]:
    """The top-level modules loaded in a fresh interpreter after a statement."""
    code = f"{statement}\nimport sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_facade_is_light() -> None:
    heavy = {"torch", "pydantic", "sympy", "numpy", "typer", "transformers", "highspy"}
    assert loaded_after("import shardwise") & heavy == set()
    assert loaded_after("import shardwise.cli") & heavy == {"typer"}  # the probe does see it


def test_values_and_solvers_load_no_torch() -> None:
    modules = [
        f"shardwise.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}"
        for path in code_of("ir", "solvers")
        if not path.match("ir/trace*.py") and path.name != "__init__.py"
    ]
    loaded = loaded_after("".join(f"import {module}\n" for module in modules))
    assert loaded & {"torch", "transformers"} == set()


# Packages and links


def test_setup_cfg_lists_the_packages_on_the_disk() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = config["options"]["packages"].split()
    mapped = dict(
        re.split(r"\s*=\s*", row) for row in config["options"]["package_dir"].strip().splitlines()
    )
    on_disk = {}
    for init in files("__init__.py"):
        folder = named(init.parent)
        if folder.split("/")[0] in (*LAYERS, "shardwise"):
            name = folder.replace("/", ".")
            on_disk[name if folder.startswith("shardwise") else f"shardwise.{name}"] = folder
    assert mapped == on_disk
    assert sorted(packages) == sorted(on_disk)


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in code_of(*LAYERS)}
    assert [named(path) for path in folders if not (path / "__init__.py").exists()] == []


def test_the_links_point_at_the_folders() -> None:
    links = {
        path.name: path.readlink() for path in (ROOT / "shardwise").iterdir() if path.is_symlink()
    }
    assert links == {layer: Path("..") / layer for layer in LAYERS}


def test_a_folder_and_its_link_are_one_module() -> None:
    for layer in LAYERS:
        module = importlib.import_module(f"shardwise.{layer}")
        assert Path(str(module.__file__)).resolve() == ROOT / layer / "__init__.py"


def test_every_export_exists() -> None:
    for package in ("shardwise", *(f"shardwise.{layer}" for layer in LAYERS)):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None, f"{package}.{name}"


def test_the_facade_gives_what_it_declares() -> None:
    facade = importlib.import_module("shardwise")
    declared = {
        (item.name.rpartition(".")[2], item.name.rpartition(".")[0])
        for item in imports_of(ROOT / "shardwise" / "__init__.py")
        if item.when is When.TYPING
    }
    homes = dict(declared)
    assert vars(facade)["_HOMES"] == homes
    for name, home in homes.items():
        value = getattr(facade, name)
        assert value is getattr(importlib.import_module(home), name)
        assert value.__module__ == home, f"{name} is defined elsewhere"
        assert name in dir(facade)
    with pytest.raises(AttributeError, match="has no attribute 'Plam'"):
        getattr(facade, "Plam")  # noqa: B009 (mypy knows that there is none)


def test_no_module_is_named_like_the_standard_library() -> None:
    shadowing = {named(p) for p in code_of(*LAYERS) if p.stem in sys.stdlib_module_names}
    # Two are named for the value and the act that they hold; modules are run with -m only.
    known = {"ir/operator.py", "ir/trace.py"}
    assert shadowing <= known, "a file run by its path would find it first"


# Declared requirements


SHIPPED_WITH = {"pydantic_core": "pydantic"}
"""Modules of a distribution that another one always brings in its own exact version."""


def requirements(project: dict[str, object], *extras: str) -> set[str]:
    """Names of the distributions that an installation with these extras asks for."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict) and isinstance(project["dependencies"], list)
    rows = project["dependencies"] + [row for extra in extras for row in optional[extra]]
    return {re.split(r"[\[<>=~! ]", row)[0].lower() for row in rows} - {"shardwise"}


def test_every_import_is_a_declared_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {"shardwise", "tests", "benchmarks", "examples"}
    distributions = packages_distributions()
    undeclared = []
    for path in files("*.py"):
        tested = path.relative_to(ROOT).parts[0] not in (*LAYERS, "shardwise")
        declared = requirements(project, "hf", *(["test"] if tested else []))
        for item in imports_of(path):
            top = item.name.partition(".")[0]
            if top in sys.stdlib_module_names or top in own or top in LAYERS or not top:
                continue
            if not declared & {
                name.lower() for name in distributions.get(SHIPPED_WITH.get(top, top), [top])
            }:
                undeclared.append(f"{named(path)}:{item.line}: {top}")
    assert undeclared == []


def test_constraints_pin_every_declared_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    assert pinned == requirements(project, "hf", "test", "dev")


# Calm


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for path in files("*.py"):
        if not re.match(r'(#.*\n)*r?"""\S', path.read_text(encoding="utf-8")):
            silent.append(named(path))
    assert silent == []


def test_files_are_short() -> None:
    lines = {named(path): len(path.read_text("utf-8").splitlines()) for path in files("*.py")}
    for name, count in lines.items():
        if 400 < count <= 600:
            warnings.warn(f"{name} has {count} lines; over 400 is a question", stacklevel=1)
    assert {name: count for name, count in lines.items() if count > 600} == {}


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")
    found = [
        f"{named(path)}:{number}"
        for path in files("*.py", "*.md", "*.toml", "*.cfg", "*.csv", "Makefile", ".ci/run")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []
