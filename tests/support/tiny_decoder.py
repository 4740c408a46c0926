"""A decoder of some thousand weights that traces fast, and plans by hand for it.

`tests.support.tiny_decoder:build` is a model that a job file can name.
"""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.bucket import Band, Bucket
from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun
from shardwise.ir.certificate import LongDocuments, Menu, PricedFor, Status
from shardwise.ir.cluster import Cluster
from shardwise.ir.localise import localise
from shardwise.ir.mesh import DATA, Mesh
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.prices import Prices
from shardwise.ir.strategy import Recompute
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.training import TrainingSpec
from shardwise.planner.menu import model_size, strategy
from shardwise.planner.scheme import SCHEMES, choices, tensor_dims

VOCABULARY, WIDTH, HEADS, LAYERS = 64, 32, 4, 2
LONGEST = 64
"""Of the documents that plans by hand hold."""
BANDS = ((0, 16, "data", 2), (16, LONGEST, "ulysses", 1))
"""Two buckets of two strategies: low, high, implementation, seats."""


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        h = self.norm(x)
        q, k, v = (
            part(h).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    """input_ids, labels [B, S] -> mean loss; every position predicts the label after its own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        targets = F.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def build():
    return Decoder()


def build_other():
    """Another model with the same names."""
    model = Decoder()
    model.layers = model.layers[:1]
    return model


_TRACED = {}


def traced():
    """The trace of the decoder, made once a process."""
    if not _TRACED:
        with torch.device("meta"):
            model = build()
        _TRACED[0] = trace_language_model(model, compute_dtype="float32", longest=LONGEST)
    return _TRACED[0]


def plan_of(
    mesh,
    scheme="ZeRO-3",
    bands=BANDS,
    *,
    found=None,
    training=None,
    long_documents=LongDocuments.ERROR,
):
    """A plan by hand, of the decoder unless a trace is given; prices are made up."""
    found, mesh = found or traced(), Mesh.parse(mesh)
    training = training or TrainingSpec()
    units = len(found.units)
    strategies, buckets = {}, []
    for low, high, name, seats in bands:
        name = name if model_size(mesh) > 1 else "data"
        strategies[name] = strategy(name, mesh, Recompute.NONE)
        data = mesh.axis(DATA).size if DATA in mesh.axis_names else 1
        degree = mesh.world_size if name == "data" else data
        buckets.append(
            BucketPlan(
                Bucket((Band("S", low, high),)),
                degree,
                seats,
                (PaddedShape((("S", high),)),),
                (StrategyRun(name, units),),
                Prices((("T", 1e-6),)),
                Prices((("1", 1e6),)),
            )
        )
    dims = {}
    if model_size(mesh) > 1:
        tensor = strategy("tensor_sequence", mesh, Recompute.NONE)
        dims = tensor_dims(localise(found.graph, found.units, mesh, [tensor] * units))
    rest = next(one for one in SCHEMES if one.name == scheme)
    names = mesh.axis_names
    groups = (*((name,) for name in names), *((names,) if len(names) > 1 else ()))
    return Plan(
        model=found.fingerprint,
        training=training,
        mesh=mesh,
        groups=groups,
        stages=(Stage(0, units),),
        parameters=choices(found.graph, mesh, rest, dims),
        strategies=tuple(strategies.items()),
        buckets=tuple(buckets),
        step_s=1.0,
        bound_s=1.0,
        gap=0.0,
        status=Status.FEASIBLE,
        menu=Menu.EXECUTABLE,
        menu_strategies=len(strategies),
        covers="nothing: written by hand",
        baselines=(),
        free_switching_price=1.0,
        priced_for=PricedFor(
            Cluster.parse(f"c h machine:{mesh.world_size}@l"),
            *("0" * 64,) * 3,
            tokens_per_step=256,
            memory_limit_bytes_per_rank=10**9,
        ),
        long_documents=long_documents,
    )


def documents(count=40, longest=LONGEST, seed=3):
    """Token arrays of 2 to `longest` tokens, short ones and long ones alike often."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    lengths = [int(draw(2, 17 if index % 2 else longest + 1, 1)) for index in range(count)]
    lengths[0] = longest
    return [draw(0, VOCABULARY, length).numpy() for length in lengths]


def corpus():
    """`tests.support.tiny_decoder:corpus` of a job file."""
    return documents()


JOB = """\
[model]
spec = "tests.support.tiny_decoder:build"
seed = 5

[data]
corpus = "tests.support.tiny_decoder:corpus"
max_length = 64

[training]
steps = 4
tokens_per_step = 256
learning_rate = 1e-2
warmup_steps = 2
schedule = "cosine"

[run]
folder = "FOLDER"
"""


def write_job(folder: Path, changes=()):
    """A job file in a folder; `changes` are (old, new) texts of JOB."""
    text = JOB.replace("FOLDER", str(folder / "run"))
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "job.toml"
    path.write_text(text)
    return path
