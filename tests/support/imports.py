"""Finds every import of a source file, and says which of them break the rules of the layers.

The rules: `ir` <- `solvers` <- `planner`; `runtime` imports `ir` and `solvers.batcher`, which
itself imports nothing of ours but `ir`. The facade `shardwise/` may import any layer, but not
while it is imported itself; no layer imports the facade. Of the layers, only `runtime` and
`ir/trace*.py` import torch at their top, and `solvers` has no torch at all. pydantic stands
only where files enter, and only `solvers` calls a solver.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path

LAYERS: dict[str, tuple[str, ...]] = {
    "ir": ("shardwise.ir",),
    "solvers": ("shardwise.ir", "shardwise.solvers"),
    "planner": ("shardwise.ir", "shardwise.solvers", "shardwise.planner"),
    "runtime": ("shardwise.ir", "shardwise.solvers.batcher", "shardwise.runtime"),
}
"""Per layer, what of ours it may import: these names and everything under them."""

FILE_RULES: dict[str, tuple[str, ...]] = {"solvers/batcher.py": ("shardwise.ir",)}
"""Files with a narrower rule than their layer's."""

LOADS_TORCH = ("runtime/*.py", "ir/trace*.py")
"""Patterns of the files that may import torch when they are imported themselves."""

USES_PYDANTIC = ("*_schema.py", "ir/form_errors.py")
"""Patterns of the files that may import pydantic at all."""

LOADED_WHERE_USED = ("transformers", "safetensors")
"""Packages of an extra: absent in a plain installation, so no module imports them on import."""


class When(StrEnum):
    """When an import statement runs."""

    IMPORT = "on import"
    CALL = "in a function"
    TYPING = "for types only"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name; `from a import b, c` is two, `a.b` and `a.c`."""

    line: int
    name: str
    when: When


@dataclass(frozen=True, slots=True)
class Violation:
    """A forbidden import; prints as `file:line: rule: name`."""

    file: str
    line: int
    rule: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.name}"


def imports_of(path: Path, package: str = "") -> Iterator[Import]:
    """Every import of a file, at any depth; relative imports start from `package`."""
    yield from _walk(ast.parse(path.read_text("utf-8"), str(path)).body, When.IMPORT, package)


def violations(root: Path) -> list[Violation]:
    """All forbidden imports of the layers and the facade of the repository at `root`."""
    found = []
    for folder in (*LAYERS, "shardwise"):
        package = folder if folder == "shardwise" else f"shardwise.{folder}"
        for path in sorted((root / folder).rglob("*.py")):  # follows no links
            file = path.relative_to(root).as_posix()
            nested = ".".join((package, *path.relative_to(root / folder).parent.parts))
            for item in imports_of(path, nested):
                if rule := _broken_rule(folder, file, item):
                    found.append(Violation(file, item.line, rule, item.name))
    return found


def _broken_rule(folder: str, file: str, item: Import) -> str:
    top = item.name.partition(".")[0]
    if top in LAYERS:
        return "written without `shardwise.`"
    if folder == "shardwise":
        layers = tuple(f"shardwise.{layer}" for layer in LAYERS)
        if item.when is When.IMPORT and (top == "torch" or _under(item.name, layers)):
            return "the facade loads layers and torch only inside functions"
        return ""
    if top == "shardwise" and not _under(item.name, FILE_RULES.get(file, LAYERS[folder])):
        return f"{file if file in FILE_RULES else folder} may not import"
    if top == "torch" and folder == "solvers":
        return "solvers knows no tensors"
    loads_torch = any(fnmatch(file, pattern) for pattern in LOADS_TORCH)
    if top == "torch" and item.when is When.IMPORT and not loads_torch:
        return "may import torch only inside functions"
    uses_pydantic = any(fnmatch(file, pattern) for pattern in USES_PYDANTIC)
    if top in ("pydantic", "pydantic_core") and not uses_pydantic:
        return "pydantic stands only where files enter"
    if top == "highspy" and (folder != "solvers" or file in FILE_RULES):
        return "only solvers may call a solver"
    if top in LOADED_WHERE_USED and item.when is When.IMPORT:
        return "of an optional extra, so only inside functions"
    return ""


def _under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _walk(nodes: list[ast.AST] | list[ast.stmt], when: When, package: str) -> Iterator[Import]:
    for node in nodes:
        match node:
            case ast.Import():
                yield from (Import(node.lineno, alias.name, when) for alias in node.names)
            case ast.ImportFrom():
                source = _absolute(node, package)
                yield from (Import(node.lineno, f"{source}.{a.name}", when) for a in node.names)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _imports_by_name(node):
                yield Import(node.lineno, name, when)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                inner = When.CALL if when is When.IMPORT else when
                yield from _walk(list(ast.iter_child_nodes(node)), inner, package)
            case ast.If() if _is_type_checking(node.test):
                yield from _walk(node.body, When.TYPING, package)
                yield from _walk(node.orelse, when, package)
            case _:
                yield from _walk(list(ast.iter_child_nodes(node)), when, package)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join((*base, node.module) if node.module else base)


def _imports_by_name(node: ast.Call) -> bool:
    return ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"
