"""A model that decides by the values of its input, which no trace can follow."""

import torch
from torch import nn


class Gate(nn.Module):
    """Passes what sums to more than nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Gated(nn.Module):
    """input_ids, labels [B, S] -> loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.gate = Gate()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.gate(self.table(input_ids)) @ self.table.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def build() -> nn.Module:
    return Gated()
