"""A hardware file that says only how it differs from another: `inherits = "a100-sxm-80"`.

    name = "a800-sxm-80"
    inherits = "a100-sxm-80"        the file beside it; that one may inherit too
    removes = ["peak_flops_per_s.bfloat16"]     what the base has and this part has not

Figures given here replace those of the base; `links` and `fabrics`, if given, replace all of
the base's. What is inherited is an assumption about this part, and its source says so. Curves of
efficiency by FLOP are inherited at equal seconds at peak: FLOP are scaled by the ratio of the
peaks, because a call is inefficient for being short. `ends_at` scales the inherited curve so that
it ends at a published share of the peak:

    [efficiency."matmul"]
    ends_at = 0.81
    source = "published, ..."

Works on trees as `tomllib` reads them, before their form is checked.
"""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from shardwise.ir.cluster import PROFILE_NAME
from shardwise.ir.errors import FileFormatError
from shardwise.ir.scanner import shown

Tree = dict[str, Any]

_ASSUMED: Final = "assumption: "
_MAIN_DTYPES: Final = ("bfloat16", "float16", "float32")
"""The dtype that an efficiency key without a dtype is about: the first of these with a peak."""
_DIGITS: Final = 4
_TABLES: Final = ("peak_flops_per_s", "efficiency")
_MAX_BASES: Final = 4


def resolved(path: Path, tree: object, read: Callable[[Path], object]) -> object:
    """`tree` of the file at `path` with what it inherits; `read` reads a file's tree.

    A tree that inherits nothing comes back as it is. Raises FileFormatError for a base that is
    missing, inherits itself or has not what is removed or scaled.
    """
    return _resolved(path, tree, read, ())


def _resolved(
    path: Path, tree: object, read: Callable[[Path], object], seen: tuple[Path, ...]
) -> object:
    if not isinstance(tree, dict) or "inherits" not in tree:
        return tree
    name = tree["inherits"]
    if not isinstance(name, str) or not re.fullmatch(PROFILE_NAME, name):
        raise FileFormatError(
            f"{path}: at inherits: {shown(name)} is given, expected the name of a file beside it, "
            "without .toml"
        )
    base_path = path.parent / f"{name}.toml"
    if base_path in (*seen, path) or len(seen) >= _MAX_BASES:
        raise FileFormatError(
            f"{path}: at inherits: {name} inherits this file in turn, or the chain is over "
            f"{_MAX_BASES} files; name a file that stands for itself"
        )
    if not base_path.is_file():
        known = ", ".join(sorted(item.stem for item in path.parent.glob("*.toml")))
        raise FileFormatError(
            f"{path}: at inherits: there is no {name}.toml beside it; the folder has {known}"
        )
    base = _resolved(base_path, read(base_path), read, (*seen, path))
    if not isinstance(base, dict):
        raise FileFormatError(f"{path}: at inherits: {name}.toml is not a table; name another file")
    return _merged(path, tree, deepcopy(base), name)


def _merged(path: Path, tree: Tree, base: Tree, name: str) -> Tree:
    own = {key: value for key, value in tree.items() if key not in ("inherits", "removes")}
    base.pop("name", None)
    _remove(path, base, tree.get("removes", []))
    scales = _flop_scales(base, own)
    made: Tree = _assumed(base, name)
    for key, value in own.items():
        if key in _TABLES and isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = made[key] | value
        else:
            made[key] = value
    curves, own_curves = made.get("efficiency"), own.get("efficiency", {})
    if isinstance(curves, dict):
        for key, curve in curves.items():
            inherited = base.get("efficiency", {}).get(key)
            mine = own_curves.get(key) if isinstance(own_curves, dict) else None
            if isinstance(mine, dict) and "ends_at" in mine:
                curves[key] = _ending(path, key, mine, inherited, scales(key))
            elif mine is None and isinstance(curve, dict):
                curves[key] = _scaled(curve, scales(key))
    return made


def _remove(path: Path, base: Tree, removes: object) -> None:
    """Takes dotted paths (`peak_flops_per_s.bfloat16`) out of `base`."""
    if not isinstance(removes, list):
        raise FileFormatError(f"{path}: at removes: {shown(removes)} is given, expected a list")
    for item in removes:
        table, _, key = item.partition(".") if isinstance(item, str) else ("", "", "")
        inside = base.get(table)
        if table not in _TABLES or not isinstance(inside, dict) or key not in inside:
            known = ", ".join(f"{part}.{key}" for part in _TABLES for key in base.get(part, {}))
            raise FileFormatError(
                f"{path}: at removes: the base has no {shown(item)}; it has {known}"
            )
        del inside[key]


def _assumed(value: Any, name: str) -> Any:
    """A copy in which every source says that it is the base's."""
    if isinstance(value, list):
        return [_assumed(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _assumed(item, name) for key, item in value.items()}
    source = made.get("source")
    if isinstance(source, str):
        made["source"] = f"{_ASSUMED}as {name}: {source.removeprefix(_ASSUMED)}"
    return made


def _flop_scales(base: Tree, own: Tree) -> Callable[[str], float]:
    """By efficiency key: peak of this part over that of the base, for the dtype it is about."""
    peaks, of_base = own.get("peak_flops_per_s"), base.get("peak_flops_per_s")
    if not isinstance(peaks, dict) or not isinstance(of_base, dict):
        return lambda key: 1.0

    def value(table: Tree, dtype: str) -> float | None:
        figure = table.get(dtype)
        number = figure.get("value") if isinstance(figure, dict) else None
        good = isinstance(number, int | float) and math.isfinite(number) and number > 0
        return float(number) if good and number is not None else None

    def scale(key: str) -> float:
        last = key.rpartition(".")[2]
        dtypes = [dtype for dtype in _MAIN_DTYPES if dtype in of_base]
        dtype = last if last in of_base else (dtypes or [last])[0]
        mine, theirs = value(peaks, dtype), value(of_base, dtype)
        return 1.0 if mine is None or theirs is None else mine / theirs

    return scale


def _scaled(curve: Tree, scale: float) -> Tree:
    flop = curve.get("flop")
    if scale == 1.0 or not isinstance(flop, list):
        return curve
    if not all(isinstance(item, int | float) for item in flop):
        return curve
    made = curve | {"flop": [float(f"{item * scale:.{_DIGITS}g}") for item in flop]}
    if isinstance(curve.get("source"), str):
        made["source"] = f"{curve['source']}; at equal seconds at peak"
    return made


def _ending(path: Path, key: str, mine: Tree, inherited: object, scale: float) -> Tree:
    """The inherited curve scaled to end at `ends_at`."""
    curve: Tree = inherited if isinstance(inherited, dict) else {}
    ratio = curve.get("ratio")
    target = mine["ends_at"]
    if not isinstance(ratio, list) or not ratio or set(mine) != {"ends_at", "source"}:
        raise FileFormatError(
            f"{path}: at efficiency.{shown(key)}: ends_at needs a curve of the base and a source, "
            "nothing else; give the points themselves"
        )
    numbers = [target, *ratio]
    if not all(isinstance(item, int | float) and 0 < item <= 1 for item in numbers):
        raise FileFormatError(
            f"{path}: at efficiency.{shown(key)}: ends_at {shown(target)}; give above 0, at most 1"
        )
    factor = target / ratio[-1]
    points = [min(1.0, float(f"{item * factor:.{_DIGITS}g}")) for item in ratio]
    source = mine["source"]
    text = source.removeprefix(_ASSUMED) if isinstance(source, str) else shown(source)
    return _scaled(curve, scale) | {
        "ratio": points,
        "source": f"{_ASSUMED}the base's curve at equal seconds at peak, ending at {text}",
    }
