"""What is timed on one device: products, attention and operators that memory bounds."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import torch

from shardwise.runtime.profile_families import FAMILIES
from shardwise.runtime.profile_operator import Work, backward_case, forward_case, work
from shardwise.runtime.profile_samples import Case, Group, Planned

HEAD_SIZES: Final = (8, 16, 32, 64, 128)
"""In the first dtype; of others those in OTHER_HEAD_SIZES."""
OTHER_HEAD_SIZES: Final = (16, 64, 128)
ELEMENTS: Final = tuple(4**i for i in range(5, 13))
"""Of the largest operand of a memory-bound operator: 1 Ki to 16 Mi."""
PRODUCTS: Final = (
    (32, 16, 16), (128, 64, 64), (512, 64, 64), (512, 64, 176), (2048, 64, 176), (2048, 256, 256),
    (2048, 256, 1024), (2048, 768, 3072), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (16384, 8192, 28672),
)  # fmt: skip
"""Rows, width before and width after: as layers of growing models ask for them."""
LENGTHS: Final = (32, 96, 192, 384, 768, 1536, 3072, 6144, 12288)


def product_groups(dtypes: Sequence[str], device: torch.device) -> Iterator[Group]:
    """Products by FLOP of one of the three that a linear layer needs, forward and backward."""
    for dtype in dtypes:
        yield Group(f"matmul {dtype}", tuple(_product(dtype, *shape, device) for shape in PRODUCTS))


@lru_cache
def product_bytes(dtype: str) -> dict[float, int]:
    """Bytes that a product of PRODUCTS moves, by its FLOP."""
    works = [_linear(dtype, *shape) for shape in PRODUCTS]
    return {float(one.forward_flops): one.forward_bytes for one in works}


def _linear(dtype: str, rows: int, before: int, after: int) -> Work:
    return work(
        "linear.default",
        [f"{dtype}[{rows}, {before}]", f"{dtype}[{after}, {before}]"],
        f"{dtype}[{rows}, {after}]",
    )


def _product(dtype: str, rows: int, before: int, after: int, device: torch.device) -> Planned:
    one = _linear(dtype, rows, before, after)
    key, x = f"matmul.{dtype}", float(one.forward_flops)

    def build() -> Case:
        forward = forward_case(key, x, [one], device)
        backward = backward_case(key, x, [one], device)

        def run() -> None:
            forward.run()
            backward.run()

        return Case(key, x, run, 3 * forward.calls)

    return Planned(key, x, build)


def attention_groups(dtypes: Sequence[str], heads: int, device: torch.device) -> Iterator[Group]:
    """Causal attention by FLOP, per head size: of `heads` heads, one on cpu."""
    for dtype in dtypes:
        for size in HEAD_SIZES if dtype == dtypes[0] else OTHER_HEAD_SIZES:
            for kind in ("attention", "attention.backward"):
                cases = (_attention(kind, dtype, size, n, heads, device) for n in LENGTHS)
                yield Group(f"{kind} {dtype} head size {size}", tuple(cases))


def _attention(
    kind: str, dtype: str, size: int, length: int, heads: int, device: torch.device
) -> Planned:
    text = f"{dtype}[1, {heads}, {length}, {size}]"
    one = work("scaled_dot_product_attention.default", [text] * 3, text, None, 0.0, True)
    key = f"{kind}.d{size}.{dtype}"
    make = forward_case if kind == "attention" else backward_case
    x = float(one.forward_flops if kind == "attention" else one.backward_flops)
    return Planned(key, x, lambda: make(key, x, [one], device))


def memory_groups(dtype: str, device: torch.device) -> Iterator[Group]:
    """Operators that memory bounds, by bytes moved, forward and backward."""
    for name, family in FAMILIES.items():
        for backward in (False, True):
            if backward and name in ("memory", "memory.cat"):
                continue  # they hand their gradient on, or views of it

            sizes = ELEMENTS if name == "memory" else ELEMENTS[:-1]
            cases = (_memory(name, family(dtype, n), device, backward) for n in sizes)
            yield Group(name + " backward" * backward, tuple(cases))


def _memory(name: str, works: Sequence[Work], device: torch.device, backward: bool) -> Planned:
    sizes = [one.backward_bytes if backward else one.forward_bytes for one in works]
    x = sum(sizes) / len(sizes)
    make, key = (backward_case, f"{name}.backward") if backward else (forward_case, name)
    return Planned(key, x, lambda: make(key, x, works, device))
