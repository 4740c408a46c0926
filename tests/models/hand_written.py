"""Models written by hand: what tracing must take without knowing any library."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

VOCABULARY, WIDTH, HEADS = 64, 32, 4


class Block(nn.Module):
    """Pre-norm block with a fused query-key-value product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """input_ids, labels [B, S] -> mean loss; logits are shifted by hand; the head is tied."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(128, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        x += self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))


class MLP(nn.Module):
    """x [B, 8], target [B, 4] -> mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers(x), target)


class Maker(nn.Module):
    """A module of one function of its inputs, with one trained vector `scale` of ones."""

    def __init__(self, function, width: int = 8, **buffers: torch.Tensor) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(width))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)
