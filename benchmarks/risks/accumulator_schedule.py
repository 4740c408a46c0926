"""Buckets, steps of slots and their documents in the accumulator experiment."""

from __future__ import annotations

import torch

from benchmarks.risks.accumulator_layout import Mesh
from benchmarks.risks.accumulator_model import Batch
from benchmarks.risks.accumulator_parameter import Bucket

ROLES_ONE_AXIS = {
    "data": ("batch",),
    "tensor_sequence": ("tensor_sequence",),
    "ulysses": ("sequence",),
    "tensor": ("tensor",),
    "replicate": ("replicate",),
}
ROLES_TWO_AXES = {
    "data": ("batch", "batch"),
    "tensor_sequence": ("tensor_sequence", "tensor_sequence"),
    "ulysses": ("sequence", "sequence"),
    "mixed": ("tensor_sequence", "batch"),
    "tensor": ("tensor", "batch"),
    "replicate": ("replicate", "batch"),
    "crossed": ("batch", "tensor_sequence"),
}
"""bucket -> role per axis (x0, then data). `crossed` cuts on data without x0: not a prefix."""

Documents = tuple[int, ...]
Schedule = tuple[tuple[tuple[str, Documents], ...], ...]
"""steps of slots of (bucket, tokens of each document)."""

FULL: Schedule = (
    (
        ("data", (5, 9, 12, 7, 3, 11, 8, 10)),
        ("tensor_sequence", (30, 17)),
        ("data", (6, 4, 9)),  # the last of 4 replicas is empty
        ("ulysses", (23,)),
        ("tensor_sequence", (19,)),
        ("mixed", (14, 20, 9)),
        ("tensor", (12, 5)),
    ),
    (
        ("ulysses", (16, 21)),
        ("replicate", (7, 9, 2)),
        ("mixed", (15, 13)),
        ("crossed", (18, 11)),
        ("data", (1,)),  # every replica but the first is empty
        ("tensor_sequence", (25,)),
    ),
    (("tensor_sequence", (29,)), ("mixed", (8, 13)), ("tensor", (10, 4, 6))),
    (("tensor_sequence", (21,)), ("crossed", (9, 16)), ("tensor_sequence", (12, 3))),
    (("tensor_sequence", (24, 6)), ("tensor_sequence", (27,))),
)
"""Steps 3 to 5 reach the working layouts S and P that follow from a step without `data`."""

DATA_MIXED: Schedule = (
    (("data", (5, 9, 12, 7)), ("mixed", (14, 20)), ("data", (6, 4, 9)), ("mixed", (22,))),
) * 3
DATA_ULYSSES: Schedule = (
    (("data", (5, 9, 12, 7)), ("ulysses", (31,)), ("data", (6, 4, 9)), ("ulysses", (22,))),
) * 3
MANY: Schedule = (FULL[0] + FULL[1] + FULL[0] + FULL[1] + FULL[0] + FULL[1],)
SCHEDULES = {
    "full": FULL,
    "data+mixed": DATA_MIXED,
    "data+ulysses": DATA_ULYSSES,
    "many": MANY,
}


def make_batch(
    documents: Documents, bucket: Bucket, mesh: Mesh, width: int, seed: tuple[int, int]
) -> Batch:
    """A micro-batch padded to the batch degree (masked dummies) and the sequence divisor."""
    degree = mesh.size(bucket.axes("batch"))
    divisor = mesh.size(bucket.axes("sequence", "tensor_sequence"))
    count = -(-len(documents) // degree) * degree
    length = -(-max(documents) // divisor) * divisor
    generator = torch.Generator().manual_seed(1000 * seed[0] + seed[1])
    x, target = torch.randn(2, count, length, width, generator=generator).double()
    mask = torch.zeros(count, length, dtype=torch.float64)
    for row, tokens in enumerate(documents):
        mask[row, :tokens] = 1
    return Batch(x, target, mask)
