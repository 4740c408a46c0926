"""Traces of many architectures: does it trace, is it exact, what is known of it, how long it takes.

    python -m benchmarks.trace_models [--only llama,gpt2] [--write docs/benchmarks/tracing.md]

Every model is built tiny from its configuration with random float64 weights, traced once, and
compared with the module itself at B in (1, 2) and three lengths, loss and gradients. Models that
fail are listed with the reason, and so is what operator rules cannot shard. Then the full-size
Llama-3-8B is traced in a fresh process without weights.
"""

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from benchmarks.trace_cases import CASES, TEXT, Case
from shardwise.ir.coverage import Coverage
from shardwise.ir.errors import ShardwiseError
from shardwise.ir.trace import TracedModel, trace
from shardwise.ir.trace_models import load_model
from shardwise.runtime.interpreter import interpret, module_values


@dataclass(frozen=True)
class Result:
    """What a case gave."""

    name: str
    parameters: int = 0
    operators: int = 0
    kinds: int = 0
    units: str = ""
    masks: str = ""
    trace_s: float = 0.0
    worst_loss: float | None = None
    worst_gradient: float | None = None
    covered: Coverage | None = None
    failure: str = ""


def build(case: Case, dtype: torch.dtype) -> nn.Module:
    """The case's model with random weights, norms and biases too, in training mode."""
    torch.manual_seed(0)
    model = _from_library(case, dtype) if case.config_class else _by_hand(case)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).train()


def _by_hand(case: Case) -> nn.Module:
    module, _, name = case.model.partition(":")
    made: nn.Module = getattr(importlib.import_module(module), name)()
    return made


def _from_library(case: Case, dtype: torch.dtype) -> nn.Module:
    import transformers

    values = dict(case.config)
    experts = values.pop("experts_implementation", None)
    options = {} if experts is None else {"experts_implementation": experts}
    model: nn.Module = getattr(transformers, case.model)._from_config(
        getattr(transformers, case.config_class)(**values),
        dtype=dtype,
        attn_implementation=case.attention,
        **options,
    )
    return model


def batch(case: Case, rows: int, length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random inputs; a third of the labels of every text is ignored."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    sizes = {"B": rows, "S": length, "S_src": length, "S_tgt": length // 2 + 3}
    result = {}
    for name, shape in case.inputs.items():
        if isinstance(shape, str):
            text = shape.partition("[")[2][:-1]
            dims = [sizes.get(part.strip()) or int(part) for part in text.split(",")]
            result[name] = torch.randn(dims, generator=generator, dtype=dtype)
            continue
        dims = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
        high = 10 if name == "labels" and len(dims) == 1 else case.vocabulary
        value = torch.randint(2, high, dims, generator=generator)
        if name == "labels" and len(dims) == 2:
            value[:, : dims[1] // 3] = -100
        result[name] = value
    return result


def compare(case: Case, model: nn.Module, traced: TracedModel) -> tuple[float, float]:
    """Largest relative differences of loss and gradients between module and graph."""
    worst_loss = worst_gradient = 0.0
    values = module_values(model, traced.graph, traced.constants)
    parameters = [p for p in model.parameters() if p.requires_grad]
    lengths = case.lengths if any(name.startswith("S") for name in case.dims) else (0,)
    for rows in (1, 2):
        for length in lengths:
            given = batch(case, rows, length, torch.float64)
            model.zero_grad()
            outputs = model(**given)
            if case.loss is not None:
                wanted = case.loss(outputs, given)
            else:
                wanted = outputs if isinstance(outputs, torch.Tensor) else outputs.loss
            gradients = torch.autograd.grad(wanted, parameters, allow_unused=True)
            total, weight = interpret(traced.graph, {**values, **given})
            found = total / weight
            ours = torch.autograd.grad(found, parameters, allow_unused=True)
            error = abs(found.item() - wanted.item())
            worst_loss = max(worst_loss, error / (abs(wanted.item()) or 1.0))
            norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
            for mine, theirs in zip(ours, gradients, strict=True):
                if mine is None and theirs is None:
                    continue
                mine = torch.zeros_like(theirs) if mine is None else mine
                theirs = torch.zeros_like(mine) if theirs is None else theirs
                scale = max(float(theirs.abs().max()), 1e-5 * float(norm)) or 1.0
                worst_gradient = max(worst_gradient, float((mine - theirs).abs().max()) / scale)
    return worst_loss, worst_gradient


def run(case: Case) -> Result:
    """Trace and compare one case; never raises for a model that fails."""
    try:
        model = build(case, torch.float64)
        start = time.perf_counter()
        traced = trace(model, case.inputs, dims=case.dims, loss=case.loss, name=case.name)
        seconds = time.perf_counter() - start
        graph = traced.graph
        kinds = {operator.kind for operator in graph.operators}
        masks = sorted({f"{use.kind}{use.window or ''}" for use in traced.masks})
        loss, gradient = compare(case, model, traced)
        return Result(
            case.name, traced.fingerprint.parameter_count, len(graph.operators), len(kinds),
            str(traced.fingerprint).partition("units=")[2].partition(" ")[0], " ".join(masks),
            seconds, loss, gradient, traced.coverage(),
        )  # fmt: skip
    except ShardwiseError as error:
        return Result(case.name, failure=str(error))
    except Exception as error:
        reason = " ".join(str(error).split())
        return Result(case.name, failure=f"{type(error).__name__}: {reason[:300]}")


def full_size() -> dict[str, float]:
    """Time and memory of the trace of Llama-3-8B; run in a process of its own."""
    model = load_model("hf:configs/models/llama-3-8b.json", dtype="bfloat16")
    start, cpu = time.perf_counter(), time.process_time()
    traced = trace(model, TEXT, dims={"B": (1, 4096), "S": (1, 8192)}, name="Llama-3-8B")
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
        "rss_mb": _peak_resident_mb(),
        "operators": len(traced.graph.operators),
        "parameters": traced.fingerprint.parameter_count,
    }


def _peak_resident_mb() -> float:
    """Of this process alone: `ru_maxrss` would begin with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _line(result: Result) -> str:
    if result.covered is None:
        return f"{result.name}: {result.failure}"
    return (
        f"{result.name}: {result.operators} operators, loss {result.worst_loss:.1g}, gradient "
        f"{result.worst_gradient:.1g}, {result.covered}"
    )


FLOPS_TARGET, CALLS_TARGET = 0.995, 0.95
"""Shares that the rules are to cover of every model."""


def page(results: list[Result], full: Mapping[str, float]) -> str:
    """The page docs/benchmarks/tracing.md."""
    good = [(r, r.covered) for r in results if r.covered is not None]
    missed = [
        r.name for r, c in good if c.flops_share < FLOPS_TARGET or c.call_share < CALLS_TARGET
    ]
    made = datetime.now(tz=UTC).date()
    lines = [
        "# Tracing",
        "",
        "Written by `python -m benchmarks.trace_models --write docs/benchmarks/tracing.md` on "
        f"{made}: torch {torch.__version__}, {cpu_name()}, one thread; load "
        f"{os.getloadavg()[2]:.1f} on {os.cpu_count()} cores over 15 minutes (over 1 "
        "a core, wall times are too high). Tiny random models in "
        "float64; `loss` and `gradient` are the largest relative differences between the traced "
        "graph and the module at B = 1, 2 and three lengths (gradients per tensor, with a floor of "
        "1e-5 of the global norm).",
        "",
        "`FLOPs` and `calls` are the shares that some operator rule can shard, in %, rounded down "
        "(`ir/coverage.py`): of the forward FLOPs at one document of the largest length, and of "
        "the operators after normalisation, factories apart. "
        f"At least {FLOPS_TARGET:.1%} and {CALLS_TARGET:.0%} are wanted of every model; missed by "
        f"{', '.join(missed) or 'none'}.",
        "",
        f"Llama-3-8B, bfloat16, no weights, in a fresh process: {full['wall_s']:.1f} s wall "
        f"({full['cpu_s']:.1f} s CPU) from the built model to the normalised graph of "
        f"{full['operators']:.0f} operators, {full['rss_mb']:.0f} MB peak resident memory of the "
        "whole process, imports included.",
        "",
        f"{len(good)} of {len(results)} cases trace:",
        "",
        "| model | parameters | operators | kinds | units | masks | trace s | loss | gradient "
        "| FLOPs | calls |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r, covered in good:
        lines.append(
            f"| {r.name} | {r.parameters} | {r.operators} | {r.kinds} | {r.units} | {r.masks} | "
            f"{r.trace_s:.1f} | {r.worst_loss:.1g} | {r.worst_gradient:.1g} | "
            f"{_percent(covered.flops_share)} | {_percent(covered.call_share)} |"
        )
    lines += ["", "Operators that run whole on every rank:", ""]
    lines += ["| model | operators | FLOPs | why | where |", "|---|---|---|---|---|"]
    for r, covered in good:
        for one in covered.uncovered:
            why = "its rule keeps it whole" if one.has_rule else "no rule"
            share = one.flops_global / covered.flops_global
            lines.append(
                f"| {r.name} | {one.count} x `{one.kind}` | {share:.2%} | {why} | "
                f"{one.module_path} {one.source} |"
            )
    failed = [r for r in results if r.failure]
    if failed:
        lines += ["", "Not traced, with the reason:", "", "| model | reason |", "|---|---|"]
        lines += [f"| {r.name} | {r.failure.replace('|', '/')} |" for r in failed]
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{math.floor(share * 10000) / 100:g}"


def cpu_name() -> str:
    """The processor's model, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    """Run the cases and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of cases, comma-separated")
    parser.add_argument("--write", type=Path, help="file of the page")
    parser.add_argument(
        "--full-size", action="store_true", help="only the full-size trace, as JSON"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.full_size:
        print(json.dumps(full_size()))
        return
    wanted = {name.lower() for name in given.only.split(",") if name}
    results = []
    for case in CASES:
        if wanted and case.name.lower() not in wanted:
            continue
        result = run(case)
        results.append(result)
        print(_line(result), flush=True)
    if wanted and given.write is None:
        return
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trace_models", "--full-size"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = page(results, json.loads(done.stdout.splitlines()[-1]))
    if given.write is None:
        print(text)
    else:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
