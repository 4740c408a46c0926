"""Plans that people would write by hand, priced by the same tables, and the price of sharing."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.ir.certificate import Baseline
from shardwise.planner import menu
from shardwise.planner.candidates import SchemeTable
from shardwise.planner.score import score_found
from shardwise.planner.search import Found, Search


@dataclass(frozen=True)
class _Rival:
    name: str
    scheme: tuple[str, ...]
    implementation: str
    model_axis: bool | None
    """Whether the mesh has a model axis; None: either."""


_RIVALS = (
    _Rival("DDP", ("DDP",), "data", False),
    _Rival("ZeRO-2", ("ZeRO-2",), "data", False),
    _Rival("ZeRO-3", ("ZeRO-3",), "data", False),
    _Rival("Megatron TP+SP", ("TP", "TP+ZeRO-1"), "tensor_sequence", True),
    _Rival("Ulysses + ZeRO-3", ("ZeRO-3",), "ulysses", True),
)
"""One implementation and one scheme for all lengths; bucket edges, seats and recomputation are
chosen for each as freely as for our own plan, so a rival is never worse than what its users run."""


def baselines(search: Search) -> tuple[Baseline, ...]:
    """Every rival with its best mesh, or with what it lacks."""
    result = []
    for rival in _RIVALS:
        tables = _tables(search, lambda table, rival=rival: _is(table, rival))  # type: ignore[misc]
        if not tables:
            result.append(Baseline(rival.name, None, None, "no mesh of this cluster has its form"))
            continue
        answer = search.best(tables)
        if isinstance(answer, Found):
            request = search.request
            scored = score_found(answer, search.edges, request.lengths, request.tokens_per_step)
            note = f"{answer.mesh}, {answer.scheme.name}, {len(answer.bands)} buckets; {scored}"
            result.append(Baseline(rival.name, answer.step_s, float(answer.peak_bytes), note))
        else:
            limit = search.request.memory_limit_bytes_per_rank
            short = answer.needed_bytes - limit
            note = f"infeasible: {short} bytes short at length {answer.length}"
            result.append(Baseline(rival.name, None, float(answer.needed_bytes), note))
    return tuple(result)


def _is(table: SchemeTable, rival: _Rival) -> bool:
    has_axis = menu.model_size(table.activations.programs.mesh) > 1
    return (
        table.scheme.name in rival.scheme
        and table.implementations == (rival.implementation,)
        and rival.model_axis in (None, has_axis)
    )


def _tables(search: Search, keep: Callable[[SchemeTable], bool]) -> list[int]:
    return [i for i, table in enumerate(search.tables) if keep(table)]


def free_switching_price(search: Search, best: Found) -> float:
    """Expected step of the shared plan over that of independent optima, at least 1.

    Independent: every bucket of the plan picks its own mesh, scheme and option as if it were alone,
    and the step outside the slots costs what the cheapest scheme's costs.
    """
    alone = 0.0
    for band in best.bands:
        times = [
            search.counts.mean_slots(band.low, band.high, option.documents_per_slot) * price.time_s
            for table in search.tables
            for option, price in search.fitting(table, search.edges[band.high])
        ]
        alone += min(times)
    fixed = min(table.fixed_s for table in search.tables)
    return max(1.0, best.step_s / (alone + fixed))
