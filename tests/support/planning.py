"""What planner tests plan with: a traced hand model, small clusters, lengths."""

from dataclasses import replace
from functools import lru_cache

from shardwise.ir import flops, saved_bytes
from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.config_files import load_machine
from shardwise.ir.fingerprint import ModelFingerprint
from shardwise.ir.lengths import Lengths
from shardwise.ir.trace import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.ir.units import find_templates
from shardwise.planner.search import Request
from tests.support.hand_model import hand_graph

TRAINING = TrainingSpec(compute_dtype="float64", master_dtype="float64", reduce_dtype="float64",
                        accumulate_dtype="float64")  # fmt: skip


@lru_cache
def traced_hand_model(layers=2, kv_heads=2):
    """The hand model as `trace` would give it, with costs."""
    graph, units = hand_graph(layers, kv_heads)
    graph = saved_bytes.annotated(flops.annotated(graph))
    templates = find_templates(graph, units)
    fingerprint = ModelFingerprint.of("HandModel", graph, units=units, templates=templates)
    return TracedModel(graph, units, templates, fingerprint, (), True, {})


@lru_cache
def machine(ranks=2):
    """A machine of CPU ranks over loopback."""
    _, hardware, software = load_machine("configs/clusters/local-2.toml")
    cluster = Cluster(f"local-{ranks}", hardware.name, (Level("machine", ranks, "loopback"),), None)
    return cluster, hardware, software


def lengths(*bins):
    """A histogram of (low, high, documents) bins."""
    text = " ".join(f"({a},{b}]:{n}:{n * (a + 1 + b) // 2}" for a, b, n in bins)
    return Lengths.parse(f'S empty=0 "test" {text}')


SOME = lengths((4, 64, 60), (64, 256, 30), (256, 1024, 8))


def request(ranks=2, *, limit=2 * 10**9, histogram=SOME, tokens=8192, **changes):
    """A request for the hand model."""
    one = Request(traced_hand_model(), *machine(ranks), TRAINING, histogram, tokens, limit)
    return replace(one, **changes)
