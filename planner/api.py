"""`plan`: from a model, a machine and lengths to a plan. The planner's front door."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.ir.certificate import Baseline, LongDocuments
from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import read_lengths
from shardwise.ir.plan import Plan
from shardwise.ir.rest import check_trained
from shardwise.ir.software import SoftwareProfile
from shardwise.ir.traced_model import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.planner.assemble import assemble
from shardwise.planner.baselines import baselines, free_switching_price
from shardwise.planner.edges import last_edge
from shardwise.planner.menu import MAX_SEATS, model_size
from shardwise.planner.search import Request, Search, Shortfall, infeasible

if TYPE_CHECKING:
    from torch import nn

    from shardwise.ir.trace_export import LossFunction
    from shardwise.ir.trace_inputs import InputLike

Machine = tuple[Cluster, HardwareProfile, SoftwareProfile]


def plan(
    model: "nn.Module | TracedModel",
    inputs: "Mapping[str, InputLike] | None" = None,
    *,
    cluster: str | Path | Machine,
    lengths: str | Path | Lengths,
    tokens_per_step: int,
    training: TrainingSpec | None = None,
    loss: "LossFunction | None" = None,
    memory_limit_bytes_per_rank: int | None = None,
    software: str | None = None,
    long_documents: LongDocuments = LongDocuments.ERROR,
) -> Plan:
    """The plan with the least expected step of the executable menu, with its certificate.

    `model` is a torch module, on the meta device or with weights, and `inputs` says what it reads:
    names of arguments of its forward -> shapes, {"input_ids": ("B", "S"), "labels": ("B", "S")}. B
    is the number of documents, S the length that `lengths` are of; other sizes are ints. The model
    returns its mean loss, or `loss` makes it (see `shardwise.trace`). It is traced in the compute
    dtype of `training`. Or `model` is a trace already, with its inputs and loss.

    `cluster` is a cluster file (its hardware and software profiles lie beside it) or the three
    values; `lengths` is a histogram or its CSV file; `tokens_per_step` is global. The memory limit
    (bytes per rank) defaults to what a rank has.

    Raises InfeasibleError with the exact shortfall where nothing fits, UnsupportedError for several
    length dims, InvalidValueError where model, inputs and lengths do not fit each other,
    UntraceableModelError, FileFormatError and MismatchError for bad files.
    """
    machine = load_machine(cluster, software) if isinstance(cluster, str | Path) else cluster
    histogram = read_lengths(lengths) if isinstance(lengths, str | Path) else lengths
    spec = training or TrainingSpec()
    limit = machine[1].rank_memory_bytes(machine[0])
    if memory_limit_bytes_per_rank is not None:
        if not 0 < memory_limit_bytes_per_rank <= limit:
            raise InvalidValueError(
                f"memory limit {memory_limit_bytes_per_rank} bytes per rank: a rank of "
                f"{machine[0].name} has {limit}; give less"
            )
        limit = memory_limit_bytes_per_rank
    if isinstance(model, TracedModel):
        if inputs is not None or loss is not None:
            raise InvalidValueError(
                "plan(traced, ...) with inputs= or loss=: a trace has its own; leave them out, or "
                "give the torch module"
            )
        traced = model
    else:
        traced = _trace(model, inputs, loss, spec, histogram, machine[0])
    _check_ranges(traced, histogram, machine[0])
    check_trained(traced.graph, training or TrainingSpec())
    request = Request(traced, *machine, spec, histogram, tokens_per_step, limit)
    search = Search(request)
    best = search.best()
    if isinstance(best, Shortfall):
        raise infeasible(search, best)
    rivals: Sequence[Baseline] = baselines(search)
    return assemble(
        request,
        best,
        edges=search.edges,
        model_sizes=sorted({model_size(t.activations.programs.mesh) for t in search.tables}),
        bound_s=best.step_s,
        menu_strategies=len(search.tables),
        baselines=tuple(rivals),
        free_switching_price=free_switching_price(search, best),
        long_documents=long_documents,
    )


def _trace(
    model: object,
    inputs: "Mapping[str, InputLike] | None",
    loss: "LossFunction | None",
    training: TrainingSpec,
    lengths: Lengths,
    cluster: Cluster,
) -> TracedModel:
    """Trace a torch module for every slot that the search may ask for."""
    from torch import nn

    from shardwise.ir.trace_training import named_sizes, trace_for_training

    if not isinstance(model, nn.Module):
        raise InvalidValueError(
            f"plan({type(model).__name__}, ...): give a torch module with inputs=, or its trace"
        )
    if not inputs:
        raise InvalidValueError(
            f"plan({type(model).__name__}, ...) without inputs: say what the model reads, e.g. "
            'inputs={"input_ids": ("B", "S"), "labels": ("B", "S")}'
        )
    _check_sizes(named_sizes(inputs), lengths)
    return trace_for_training(
        model,
        inputs,
        compute_dtype=training.compute_dtype,
        longest=last_edge(lengths, cluster.world_size),
        loss=loss,
    )


def _check_sizes(names: Collection[str], lengths: Lengths) -> None:
    """Raise unless a model whose sizes have these names can be planned for these lengths."""
    shown = ", ".join(names) or "none that is named"
    if "B" not in names:
        raise InvalidValueError(
            f"the inputs have a fixed number of documents (sizes: {shown}): the search chooses how "
            "many a micro-batch has; give the batch size the name B in inputs="
        )
    missing = [dim for dim in lengths.dims if dim not in names]
    if missing:
        raise InvalidValueError(
            f"the lengths are of the dim {', '.join(missing)} and the inputs have the sizes "
            f"{shown}: give the length of a document that name in inputs="
        )
    if lengths.dims != ("S",):
        raise UnsupportedError(
            f"the histogram has the length dims {', '.join(lengths.dims)}: this version plans for "
            "one, S; give the lengths of the dim that dominates"
        )
    more = [name for name in names if name not in ("B", *lengths.dims)]
    if more:
        raise UnsupportedError(
            f"the inputs have the sizes {', '.join(more)}, which the lengths do not tell: this "
            "version plans for one length, S; make the others ints in inputs="
        )


def _check_ranges(traced: TracedModel, lengths: Lengths, cluster: Cluster) -> None:
    """Raise unless the trace holds for every slot that the search may ask for."""
    ranges = {symbol.name: symbol for symbol in traced.graph.symbols}
    _check_sizes(tuple(ranges), lengths)
    needed = {"S": last_edge(lengths, cluster.world_size), "B": MAX_SEATS * cluster.world_size}
    for name, most in needed.items():
        high = ranges[name].high
        if high is not None and high < most:
            what = "the longest document, padded," if name == "S" else "the largest slot"
            raise InvalidValueError(
                f"the trace holds for {name} up to {high} and {what} has {most}: trace with "
                f'dims={{"{name}": (1, {most})}}, if the model holds for that'
            )
