"""A decoder with everything that a distributed program can get wrong, as small as it can be.

Fewer key heads than ranks, a tied table, positions, biases, layer norms with random weights.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.trace_language import trace_language_model

VOCABULARY, WIDTH, HEADS, KEY_HEADS, HEAD, LONGEST = 24, 16, 4, 1, 4, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q = nn.Linear(WIDTH, HEADS * HEAD)
        self.k = nn.Linear(WIDTH, KEY_HEADS * HEAD)
        self.v = nn.Linear(WIDTH, KEY_HEADS * HEAD)
        self.o = nn.Linear(HEADS * HEAD, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            part(h).view(batch, length, -1, HEAD).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, HEADS * HEAD))
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    """input_ids, labels [B, S] -> mean loss."""

    def __init__(self, layers=2):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids, labels):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.table(input_ids) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def build(seed=0, layers=2):
    """The model with random weights everywhere, norms and biases included."""
    torch.manual_seed(seed)
    model = Decoder(layers)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.3)
    return model


def traced(model, dtype="float32"):
    return trace_language_model(model, compute_dtype=dtype, longest=LONGEST)
