"""`shardwise verify`: from a plan and a model's name to a report.

The plan must be of the model that is named. A model or mesh that is too large for float64 copies
in one process is replaced by a small twin of the same architecture (`hf:` models only), on a
smaller mesh; the report says so.
"""

import json
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import nn

from shardwise.ir.errors import FileFormatError, UnsupportedError
from shardwise.ir.hugging_face_config import read_config
from shardwise.ir.plan import Plan
from shardwise.ir.trace_models import load_model
from shardwise.ir.trace_training import trace_of_plan
from shardwise.runtime.verify import verify
from shardwise.runtime.verify_project import MAX_RANKS, small_config
from shardwise.runtime.verify_report import VerifyReport

LARGEST: Final = 4_000_000
"""Parameters of a model that is replayed as it is; its copies take about 100 bytes for each."""
_SPREAD: Final = 0.1


def verify_language_model(plan: Plan, spec: str, *, seed: int = 0) -> VerifyReport:
    """Replay a plan of the language model that `spec` names (`hf:config.json`, `module:function`).

    Weights are random, biases and norms included, whatever the model's own initialisation leaves
    at zero or one. Raises MismatchError where the plan is of another model, UnsupportedError for a
    large model without a config to make a small one from, and what loading and tracing raise.
    """
    traced = trace_of_plan(load_model(spec), plan)
    plan.check_model(traced.fingerprint)
    count = traced.fingerprint.parameter_count
    if count <= LARGEST and plan.mesh.world_size <= MAX_RANKS:
        model = load_model(spec, weights="random", seed=seed)
        return verify(plan, spread(model, seed), seed=seed, notes=(f"model {spec}, whole",))
    kind, _, path = spec.partition(":")
    if kind != "hf":
        raise UnsupportedError(
            f"{spec} has {count} parameters and the plan {plan.mesh.world_size} ranks: up to "
            f"{LARGEST} and {MAX_RANKS} are replayed as they are; give a plan of a smaller model "
            "of the same architecture"
        )
    config = read_config(Path(path))
    small = small_config(config, plan.mesh)
    changes = ", ".join(
        f"{key} {config[key]} -> {value}"
        for key, value in small.items()
        if config[key] != value and not isinstance(value, list)
    )
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder) / "config.json"
        twin.write_text(json.dumps(small), encoding="utf-8")
        try:
            model = load_model(f"hf:{twin}", weights="random", seed=seed)
        except FileFormatError as error:
            raise UnsupportedError(
                f"{spec}: no small model of this architecture can be made ({error}); give a plan "
                "of a small one"
            ) from error
    note = f"model {spec}, as a small twin: {changes}"
    return verify(plan, spread(model, seed), seed=seed, notes=(note,))


def spread(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with noise on every parameter, so that none is zero, one or equal to another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * _SPREAD
            parameter.add_(noise.to(parameter.dtype))
    return model
