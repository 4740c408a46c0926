"""Library functions that replace one operator on one axis; each communicates on its own.

| name | replaces | operands on the axis | result |
|---|---|---|---|
| vocabulary_embedding | embedding | table rows sharded, ids whole | an addend |
| vocabulary_cross_entropy | summed cross-entropy | classes sharded, targets whole | whole |
| attention_of_local_heads | attention | query heads sharded, the rest whole | heads sharded |

Sources: Shoeybi et al. 2019, section 3 (vocabulary); grouped-query attention maps query head h to
key head h // (H / H_kv) (Ainslie et al. 2023).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.operator import Operator
from shardwise.runtime.collective_call import Group
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.redistribute import Router


class VocabularyEmbedding(nn.Module):
    """Rows of the local part of a table; ids of other ranks give zeros, so the sum is the
    lookup."""

    def __init__(self, router: Router, axis: str, operator: Operator) -> None:
        super().__init__()
        padding = argument(operator, 2, "padding_idx", -1)
        assert isinstance(padding, int)
        self.place, self.padding = router.place(axis), padding

    def forward(self, table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """table [V/p, d], ids [...] global -> [..., d], an addend."""
        local = ids - self.place * table.shape[0]
        elsewhere = (local < 0) | (local >= table.shape[0])
        rows = F.embedding(local.masked_fill(elsewhere, 0), table)
        if self.padding >= 0:  # the row is read like any other, and gets no gradient
            rows = torch.where((ids == self.padding).unsqueeze(-1), rows.detach(), rows)
        return rows.masked_fill(elsewhere.unsqueeze(-1), 0)


class _ClassParallelCrossEntropy(torch.autograd.Function):
    """sum over valid rows of logsumexp(logits) - logits[target]; classes are sharded."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        ignore_index: int,
        place: int,
        communicator: Communicator,
        group: Group,
    ) -> torch.Tensor:
        classes = logits.shape[1]
        largest = communicator.all_reduce(logits.amax(1).contiguous(), group, op="max")
        shifted = logits - largest.unsqueeze(1)
        valid = target != ignore_index
        local = target - place * classes
        here = valid & (local >= 0) & (local < classes)
        picked = shifted.gather(1, local.masked_fill(~here, 0).unsqueeze(1)).squeeze(1)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(1), picked.masked_fill(~here, 0)])
        total, chosen = communicator.all_reduce(sums, group)
        ctx.save_for_backward(exponentials, total, local, here, valid)
        result: torch.Tensor = (total.log() - chosen).masked_fill(~valid, 0).sum()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        exponentials, total, local, here, valid = ctx.saved_tensors
        gradient = exponentials / total.unsqueeze(1)
        rows = here.nonzero(as_tuple=True)[0]
        gradient[rows, local[rows]] -= 1
        gradient.masked_fill_(~valid.unsqueeze(1), 0).mul_(gradients[0])
        return gradient, None, None, None, None, None


class VocabularyCrossEntropy(nn.Module):
    """Summed cross-entropy over classes that are sharded: three messages of one number a row."""

    def __init__(self, router: Router, axis: str, operator: Operator) -> None:
        super().__init__()
        ignored = argument(operator, 4, "ignore_index", -100)
        assert isinstance(ignored, int)
        self.place, self.ignore_index = router.place(axis), ignored
        self.communicator, self.group = router.communicator, router.group((axis,))

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """logits [N, C/p], target [N] global -> scalar, whole."""
        result: torch.Tensor = _ClassParallelCrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits, target, self.ignore_index, self.place, self.communicator, self.group
        )
        return result


class AttentionOfLocalHeads(nn.Module):
    """Attention of the local query heads over the key heads that they attend to."""

    def __init__(self, router: Router, axis: str, operator: Operator) -> None:
        super().__init__()
        self.place, self.parts = router.place(axis), router.mesh.axis(axis).size
        self.options: dict[str, Any] = {
            "dropout_p": argument(operator, 4, "dropout_p", 0.0),
            "is_causal": argument(operator, 5, "is_causal", False),
            "scale": argument(operator, 6, "scale", None),
        }

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q [B, H/p, S, D], k and v [B, H_kv, S, D] -> [B, H/p, S, D]."""
        local, kv_heads = q.shape[1], k.shape[1]
        ratio = local * self.parts // kv_heads
        wanted = [(self.place * local + head) // ratio for head in range(local)]
        first, last = wanted[0], wanted[-1]
        count = last - first + 1
        even = local % count == 0 and wanted == [
            first + head // (local // count) for head in range(local)
        ]
        if even:
            k, v = k.narrow(1, first, count), v.narrow(1, first, count)
        else:
            index = torch.tensor(wanted, device=k.device)
            k, v = k.index_select(1, index), v.index_select(1, index)
        return F.scaled_dot_product_attention(
            q, k, v, mask, enable_gqa=k.shape[1] != local, **self.options
        )


def argument(operator: Operator, position: int, keyword: str, default: object) -> object:
    """A non-tensor argument of the operator that a library function replaces."""
    if position < len(operator.args):
        return operator.args[position]
    return dict(operator.kwargs).get(keyword, default)


LIBRARY: Mapping[str, Callable[[Router, str, Operator], nn.Module]] = {
    "vocabulary_embedding": VocabularyEmbedding,
    "vocabulary_cross_entropy": VocabularyCrossEntropy,
    "attention_of_local_heads": AttentionOfLocalHeads,
}
"""Name in a `Call` -> module of (router, axis, operator)."""
