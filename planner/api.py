"""`plan`: from a model, a machine and lengths to a plan. The planner's front door."""

from collections.abc import Sequence
from pathlib import Path

from shardwise.ir.certificate import Baseline, LongDocuments
from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import read_lengths
from shardwise.ir.plan import Plan
from shardwise.ir.software import SoftwareProfile
from shardwise.ir.trace import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.planner.assemble import assemble
from shardwise.planner.baselines import baselines, free_switching_price
from shardwise.planner.menu import model_size
from shardwise.planner.search import Request, Search, Shortfall, infeasible

Machine = tuple[Cluster, HardwareProfile, SoftwareProfile]


def plan(
    traced: TracedModel,
    *,
    cluster: str | Path | Machine,
    lengths: str | Path | Lengths,
    tokens_per_step: int,
    training: TrainingSpec | None = None,
    memory_limit_bytes_per_rank: int | None = None,
    software: str | None = None,
    long_documents: LongDocuments = LongDocuments.ERROR,
) -> Plan:
    """The plan with the least expected step of the executable menu, with its certificate.

    `traced` comes from `shardwise.ir.trace.trace`, in the compute dtype of `training`. `cluster` is
    a cluster file (its hardware and software profiles lie beside it) or the three values; `lengths`
    is a histogram or its CSV file; `tokens_per_step` is global. The memory limit (bytes per rank)
    defaults to what a rank has.

    Raises InfeasibleError with the exact shortfall where nothing fits, UnsupportedError for several
    length dims, FileFormatError and MismatchError for bad files.
    """
    machine = load_machine(cluster, software) if isinstance(cluster, str | Path) else cluster
    histogram = read_lengths(lengths) if isinstance(lengths, str | Path) else lengths
    limit = machine[1].rank_memory_bytes(machine[0])
    if memory_limit_bytes_per_rank is not None:
        if not 0 < memory_limit_bytes_per_rank <= limit:
            raise InvalidValueError(
                f"memory limit {memory_limit_bytes_per_rank} bytes per rank: a rank of "
                f"{machine[0].name} has {limit}; give less"
            )
        limit = memory_limit_bytes_per_rank
    request = Request(
        traced, *machine, training or TrainingSpec(), histogram, tokens_per_step, limit
    )
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
