"""Strides as eager PyTorch gives them on CPU: is a reshape a view, how are results laid out.

All shapes and strides here are ints: the caller puts large distinct primes in the place of B and S,
so that two products are equal there exactly if they are equal as expressions (for sizes >= 2).
Sources: ATen `computeStride` (TensorUtils.cpp) and `TensorIterator::reorder_dimensions`.
"""

from collections.abc import Sequence

Shape = tuple[int, ...]


def contiguous(shape: Shape) -> Shape:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie in row-major order without gaps; dims of size 1 do not matter."""
    wanted = contiguous(shape)
    return all(
        size == 1 or have == want for size, have, want in zip(shape, strides, wanted, strict=True)
    )


def viewed(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of the view with shape `new`, or None where a reshape must copy."""
    if not shape:
        return (1,) * len(new)
    result = [0] * len(new)
    place = len(new) - 1
    base = strides[-1]
    in_old = in_new = 1
    for dim in range(len(shape) - 1, -1, -1):
        in_old *= shape[dim]
        ends = dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != in_old * base)
        if not ends:
            continue
        while place >= 0 and (in_new < in_old or new[place] == 1):
            result[place] = in_new * base
            in_new *= new[place]
            place -= 1
        if in_new != in_old:
            return None
        if dim > 0:
            base = strides[dim - 1]
            in_old = in_new = 1
    return tuple(result) if place == -1 else None


def pointwise(output: Shape, operands: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Strides of a new tensor that an elementwise operator makes from (shape, strides) operands."""
    same = [strides for shape, strides in operands if shape == output]
    if len(same) == len(operands) and len(set(same)) == 1 and is_dense(output, same[0]):
        return same[0]
    spread = [_broadcast(output, shape, strides) for shape, strides in operands]
    order = list(range(len(output) - 1, -1, -1))
    for i in range(1, len(order)):
        later = i
        for earlier in range(i - 1, -1, -1):
            decision = _compare(output, spread, order[earlier], order[later])
            if decision > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
            elif decision < 0:
                break
    strides, step = [0] * len(output), 1
    for dim in order:
        strides[dim] = step
        step *= output[dim]
    return tuple(strides)


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in some order of dims."""
    dims = sorted((k for k in range(len(shape)) if shape[k] != 1), key=lambda k: strides[k])
    step = 1
    for dim in dims:
        if strides[dim] != step:
            return False
        step *= shape[dim]
    return True


def _broadcast(output: Shape, shape: Shape, strides: Shape) -> Shape:
    lead = (0,) * (len(output) - len(shape))
    return lead + tuple(
        0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)
    )


def _compare(output: Shape, operands: Sequence[Shape], first: int, second: int) -> int:
    """1: the dims change places, -1: they stay, 0: no operand tells."""
    for strides in operands:
        a, b = strides[first], strides[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if output[first] > output[second]:
            return 1
    return 0
