"""Do all ranks answer the same, bit for bit?"""

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from shardwise.runtime.collective_call import name_ranks


class RanksDisagreeError(AssertionError):
    """Some ranks computed something else; names them, and the first place that differs."""


def assert_ranks_agree(results: list[Any]) -> None:
    """Raise RanksDisagreeError unless every rank's result is the same, bit for bit.

    Looks into dicts, sequences and dataclasses; tensors with their dtype and shape. The
    majority is taken to be right; of two halves, the one that holds the lower rank.
    """
    classes: list[list[int]] = []
    for rank, result in enumerate(results):
        for ranks in classes:
            if _difference(results[ranks[0]], result, "result") is None:
                ranks.append(rank)
                break
        else:
            classes.append([rank])
    if len(classes) < 2:
        return
    usual, *odd = sorted(classes, key=lambda ranks: (-len(ranks), ranks[0]))
    parts = [
        f"{name_ranks(ranks)} from {name_ranks(usual)} at "
        f"{_difference(results[usual[0]], results[ranks[0]], 'result')}"
        for ranks in odd
    ]
    raise RanksDisagreeError(f"ranks disagree: {'; '.join(parts)}")


def _difference(a: Any, b: Any, where: str) -> str | None:
    """Say where b is not a and how; None when it is."""
    if type(a) is not type(b):
        return f"{where}: {type(b).__name__}, not {type(a).__name__}"
    if isinstance(a, torch.Tensor):
        return _tensor_difference(a, b, where)
    if is_dataclass(a) and not isinstance(a, type):
        names = [field.name for field in fields(a)]
        items = [(f".{n}", getattr(a, n), getattr(b, n)) for n in names]
    elif isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: keys {list(b)}, not {list(a)}"
        items = [(f"[{key!r}]", a[key], b[key]) for key in a]
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{where}: {len(b)} items, not {len(a)}"
        items = [(f"[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        return None if a == b or (a != a and b != b) else f"{where}: {b!r}, not {a!r}"
    found = (_difference(x, y, where + step) for step, x, y in items)
    return next((difference for difference in found if difference), None)


def _tensor_difference(a: torch.Tensor, b: torch.Tensor, where: str) -> str | None:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{where}: {b.dtype}{list(b.shape)}, not {a.dtype}{list(a.shape)}"
    bits_a, bits_b = _bits(a), _bits(b)
    wrong = (bits_a != bits_b).any(dim=1)
    if not wrong.any():
        return None
    first = int(wrong.nonzero()[0])
    one, other = a.reshape(-1)[first].item(), b.reshape(-1)[first].item()
    return (
        f"{where}: {int(wrong.sum())} of {wrong.numel()} elements, "
        f"the first at flat index {first}: {other!r}, not {one!r}"
    )


def _bits(x: torch.Tensor) -> torch.Tensor:
    flat = x.detach().reshape(-1).contiguous()
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())
