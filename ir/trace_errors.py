"""What went wrong in a trace, said so that a user can act: module, source line, rule, remedy."""

import re
import traceback
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Final

from torch import nn

from shardwise.ir.errors import ShardwiseError, UntraceableModelError

_LIBRARY: Final = re.compile(
    r"[/\\]torch[/\\]|[/\\](shardwise[/\\])?ir[/\\]trace|[/\\]transformers[/\\]utils[/\\]|"
    r"[/\\](contextlib|functools)\.py$|^<"
)
_RAISED_AT: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_FIX: Final = re.compile(r"^\s*(\w+) = (.+)$", re.MULTILINE)
_RANGE: Final = re.compile(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")

_REMEDIES: Final = (
    (
        "GuardOnDataDependent",
        "control flow depends on the values of a tensor; compute both sides and choose with "
        "torch.where, or take the decision out of forward",
    ),
    (
        "DataDependentOutput",
        "a Python number is read from a tensor (.item(), int(), float(), .tolist()); keep it a tensor",
    ),
    (
        "DynamicOutputShape",
        "a shape depends on the values of a tensor (nonzero, masked_select, unique); use torch.where "
        "or a fixed number of rows",
    ),
    (
        "Data dependent",
        "a Python number is read from a tensor (.item(), int(), float(), .tolist()); keep it a tensor",
    ),
    (
        "Constraint",
        "the model does not hold for all these sizes; narrow them with dims=, or make a size fixed by "
        "giving an int in its place in inputs= (one trace per bucket)",
    ),
)


def explained(error: Exception, model: nn.Module, name: str) -> ShardwiseError:
    """The error to raise for what a trace raised; one line with module and source line."""
    if isinstance(error, ShardwiseError):
        return error
    module, place = blamed(error, model)
    kind = type(error).__name__
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
        if named and not (place and module):
            file, number, _ = named[-1]
            summary = traceback.FrameSummary(file, int(number), "")
            return module, f"{PurePath(file).name}:{number} ({(summary.line or '').strip()})"
    return "", ""


def narrowed(error: Exception, names: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]] | None:
    """Ranges of sizes that torch suggests after an error about them; None where it suggests none.

    Only ranges inside the given ones count; a suggestion to fix or derive a size is none.
    """
    marks = "Suggested fixes:"
    text = str(error)
    if marks not in text:
        return None
    result = dict(names)
    changed = False
    for name, fix in _FIX.findall(text.partition(marks)[2]):
        if name not in names:
            continue
        found = _RANGE.fullmatch(fix.strip())
        if found is None:
            return None
        low = max(names[name][0], int(found.group(1) or 0))
        high = min(names[name][1], int(found.group(2) or names[name][1]))
        if low > high:
            return None
        changed = changed or (low, high) != names[name]
        result[name] = (low, high)
    return result if changed else None


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Constraints violated" in lines[0]:
        return " ".join(line for line in lines[:2] if "For more information" not in line)[:300]
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
