"""What went wrong in a trace, said so that a user can act: module, source line, rule, remedy."""

import operator
import re
import traceback
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Final

from torch import nn

from shardwise.ir.errors import ParseError, ShardwiseError, UntraceableModelError
from shardwise.ir.expression import evaluate, free_names, parse_expression

_LIBRARY: Final = re.compile(
    r"[/\\]torch[/\\]|[/\\](shardwise[/\\])?ir[/\\]trace|[/\\]transformers[/\\]utils[/\\]|"
    r"[/\\](contextlib|functools)\.py$|^<"
)
_RAISED_AT: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_FIX: Final = re.compile(r"^\s*(\w+) = (.+)$", re.MULTILINE)
_GUARD: Final = re.compile(
    r"Not all values of (\w+) = .*? satisfy the generated guard (.+?)\.?$", re.M
)
_SIZE: Final = re.compile(r"L\['tensors'\]\[\d+\]\.size\(\)\[\d+\]")
_COMPARED: Final = re.compile(r"(.+?) (!=|==|<=|>=|<|>) (.+)")
_HOLDS: Final = {
    "!=": operator.ne, "==": operator.eq, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FEW: Final = 16
"""So many of the smallest sizes may be left out without asking."""
_READS: Final = re.compile(r"\.item\(|\.tolist\(|\b(int|float|bool)\(")
_RANGE: Final = re.compile(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")

_REMEDIES: Final = (
    (
        "DataDependentOutput",
        "a Python number is read from a tensor (.item(), int(), .tolist()); keep it a tensor",
    ),
    (
        "DynamicOutputShape",
        "a shape depends on the values of a tensor (nonzero, masked_select, unique); use "
        "torch.where or a fixed number of rows",
    ),
    (
        "Data dependent",
        "a Python number is read from a tensor (.item(), int(), .tolist()); keep it a tensor",
    ),
    (
        "GuardOnDataDependent",
        "control flow depends on the values of a tensor; compute both sides and choose with "
        "torch.where, or take the decision out of forward",
    ),
    (
        "Constraint",
        "the model does not hold for all these sizes; narrow them with dims=, or make a size fixed "
        "by giving an int in its place in inputs= (one trace per bucket)",
    ),
)


def explained(error: Exception, model: nn.Module, name: str) -> ShardwiseError:
    """The error to raise for what a trace raised; one line with module and source line."""
    if isinstance(error, ShardwiseError):
        return error
    module, place = blamed(error, model)
    kind = "Data dependent" if _READS.search(place) else type(error).__name__
    text = " ".join(_reason(error).split())
    remedy = next(
        (remedy for mark, remedy in _REMEDIES if mark in kind or mark in str(error)),
        "change this line so that torch.export can trace it, or move it out of forward",
    )
    owner = f"module {module}" if module else "the model"
    return UntraceableModelError(
        f"cannot trace {name}: {owner} at {place or 'an unknown line'}: {text}: {remedy}"
    )


def blamed(error: BaseException, model: nn.Module) -> tuple[str, str]:
    """The module (path and class) whose forward was running, and `file.py:12 (the line)`.

    The innermost frame that is neither torch's nor ours; where the traceback holds none (conditions
    on sizes are checked after the trace), the place that the message names.
    """
    names = {id(module): path for path, module in model.named_modules()}
    for one in _chain(error):
        module, place = "", ""
        frames = list(_frames(one.__traceback__))
        for frame, line in reversed(frames):
            file = frame.f_code.co_filename
            if not place and not _LIBRARY.search(file):
                summary = traceback.FrameSummary(file, line, frame.f_code.co_name)
                place = f"{PurePath(file).name}:{line} ({(summary.line or '').strip()})"
            owner = frame.f_locals.get("self")
            if place and isinstance(owner, nn.Module) and id(owner) in names:
                module = f"{names[id(owner)] or '(root)'} ({type(owner).__name__})"
                return module, place
        named = [found for found in _RAISED_AT.findall(str(one)) if not _LIBRARY.search(found[0])]
        if place and not named:
            return "", place
        if named:
            file, number, _ = named[-1]
            summary = traceback.FrameSummary(file, int(number), "")
            return module, f"{PurePath(file).name}:{number} ({(summary.line or '').strip()})"
    return "", ""


def narrowed(
    error: Exception, ranges: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]] | None:
    """Ranges of sizes, inside the given ones, for which the model may hold after such an error.

    What torch suggests, or else without the few smallest sizes for which a condition fails. None
    where neither is said: a size is to be fixed, or derived from another, or many sizes fail.
    """
    text = str(error)
    result = _suggested(text, ranges)
    if result is None or result == ranges:
        result = dict(ranges)
        for name, condition in _GUARD.findall(text):
            lowest = _lowest(condition, name, ranges[name]) if name in ranges else None
            if lowest is None:
                return None
            result[name] = (max(lowest, result[name][0]), result[name][1])
    valid = all(low <= high for low, high in result.values())
    return result if valid and result != ranges else None


def _suggested(text: str, ranges: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]] | None:
    """Ranges that torch suggests; None where it suggests to fix or derive a size."""
    result = dict(ranges)
    for name, fix in _FIX.findall(text.partition("Suggested fixes:")[2]):
        if name not in ranges:
            continue
        found = _RANGE.fullmatch(fix.strip())
        if found is None:
            return None
        low, high = ranges[name]
        result[name] = (
            max(low, int(found.group(1) or 0)), min(high, int(found.group(2) or high))
        )  # fmt: skip
    return result


def _lowest(condition: str, name: str, ends: tuple[int, int]) -> int | None:
    """The smallest size from which on a condition on one size holds, if few fail."""
    text = _SIZE.sub(name, condition).replace("max(", "Max(").replace("min(", "Min(")
    parts = _COMPARED.fullmatch(text)
    if parts is None:
        return None
    left, sign, right = parts.groups()
    try:
        sides = parse_expression(left), parse_expression(right)
    except ParseError:
        return None
    if not set(free_names(sides[0])) | set(free_names(sides[1])) <= {name}:
        return None
    low, high = ends
    failing = [
        size
        for size in range(low, high + 1)
        if not _HOLDS[sign](*(evaluate(side, {name: size}) for side in sides))
    ]
    if not failing:
        return low
    return None if failing[-1] - low >= _FEW else failing[-1] + 1


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    conditions = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    if "Constraints violated" in lines[0] and conditions:
        return _SIZE.sub("the size", conditions[0].partition("Specializations")[0])[:300]
    return lines[0][:300]


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, the first cause first."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found[::-1]


def _frames(traceback_: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames: list[tuple[FrameType, int]] = []
    while traceback_ is not None:
        frames.append((traceback_.tb_frame, traceback_.tb_lineno))
        traceback_ = traceback_.tb_next
    return frames
