"""The one lowering of a redistribution to collective steps: the planner prices these steps and
the runtime executes them.

The rules are tried in the order of `_RULES` until the layout is the target. Each makes progress
in one of: cuts that the target lacks, cuts that it still misses, addends in the wrong place. So
what shrinks the tensor comes first, what grows it last, and there is no pair of layouts that
has no lowering (docs/design/layouts.md has the argument).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.layout import Entry, Layout, Partial, Placement, Replicate, Select, Shard
from shardwise.ir.mesh import Mesh
from shardwise.ir.redistribution import CollectiveStep as CollectiveStep
from shardwise.ir.redistribution import StepKind


@lru_cache(maxsize=1 << 16)
def lower(source: Layout, target: Layout, mesh: Mesh) -> tuple[CollectiveStep, ...]:
    """Steps that turn `source` into `target`, () when they differ in spelling only.

    Layouts of the steps are normal forms on the mesh (`Layout.normalised(mesh)`), each step's
    target is the next one's source. Independent of shapes. Raises InvalidValueError for axes
    that the mesh lacks and for a Select with more or fewer intervals than its axis has ranks.
    """
    current, goal = source.normalised(mesh), target.normalised(mesh)
    _check(current, mesh)
    _check(goal, mesh)
    steps: list[CollectiveStep] = []
    while current != goal:
        step = _next_step(_State(current, goal, mesh))
        steps.append(step)
        current = step.target
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class _State:
    """Where a lowering stands."""

    current: Layout
    goal: Layout
    mesh: Mesh

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(sorted({*self.current.cut_dims, *self.goal.cut_dims}))

    def matched(self, dim: int) -> int:
        """Length of the common prefix of the cuts that `dim` has and shall have."""
        count = 0
        for have, want in zip(self.current.cuts(dim), self.goal.cuts(dim), strict=False):
            if have != want:
                break
            count += 1
        return count

    def becomes_partial(self, dim: int) -> bool:
        """Whether the first cut that does not match only lacks `partial`."""
        at = self.matched(dim)
        have, want = self.current.cuts(dim)[at : at + 1], self.goal.cuts(dim)[at : at + 1]
        return bool(have and want) and have == (_as_value(want[0]),)

    def wrong(self, dim: int) -> tuple[Entry, ...]:
        """Cuts of `dim` that must go before more can be added, outermost first."""
        start = self.matched(dim) + self.becomes_partial(dim)
        return self.current.cuts(dim)[start:]

    def missing(self, dim: int) -> tuple[Entry, ...]:
        """Cuts to be added to `dim`, outermost first; () while it has others that must go."""
        at = self.matched(dim)
        return self.goal.cuts(dim)[at:] if len(self.current.cuts(dim)) == at else ()

    def moves(self, axis: str) -> bool:
        """Whether the axis cuts a dim and shall cut another one."""
        have, want = self.current.placement(axis), self.goal.placement(axis)
        return _cut_dim(have) >= 0 and _cut_dim(want) >= 0 and _cut_dim(have) != _cut_dim(want)

    def step(
        self, kind: StepKind, axes: tuple[str, ...], *added: tuple[str, Placement]
    ) -> CollectiveStep:
        """The step over `axes`, which afterwards have the `added` entries only."""
        kept = self.current.without(axes).entries
        after = Layout((*kept, *added)).normalised(self.mesh)
        return CollectiveStep(kind, axes, self.current, after)


# --- rules: each returns its step, or None where it has none ----------------------------------


def _slice(state: _State) -> CollectiveStep | None:
    """R -> S wherever it can be appended innermost, all dims in one local step."""
    added: list[Entry] = []
    for dim in state.dims:
        added += _run(state, dim, lambda have: isinstance(have, Replicate))
    return state.step(StepKind.SLICE, _axes(added), *added) if added else None


def _mark_partial(state: _State) -> CollectiveStep | None:
    """A Select of values that shall be one of addends, once it is the innermost cut."""
    if state.current.op not in (None, "sum"):
        return None
    for dim in state.dims:
        if state.becomes_partial(dim) and not state.wrong(dim):
            entry = state.goal.cuts(dim)[state.matched(dim)]
            return state.step(StepKind.MASK, (entry[0],), entry)
    return None


def _reduce_scatter(state: _State) -> CollectiveStep | None:
    """P -> S where it can be appended innermost, a run of axes in one flat step."""
    for dim in state.dims:
        added = _run(state, dim, lambda have: isinstance(have, Partial))
        if added:
            return state.step(StepKind.REDUCE_SCATTER, _axes(added), *added)
    return None


def _all_reduce(state: _State) -> CollectiveStep | None:
    """P -> R for all axes at once (a layout has addends of one op only).

    Also where P -> S must wait, if the goal has addends of another op: those could not be made.
    """
    axes = tuple(
        axis
        for axis, have in state.current.entries
        if isinstance(have, Partial)
        and (
            state.goal.op not in (None, have.op)
            or (_cut_dim(state.goal.placement(axis)) < 0 and state.goal.placement(axis) != have)
        )
    )
    return state.step(StepKind.ALL_REDUCE, axes) if axes else None


def _all_to_all(state: _State) -> CollectiveStep | None:
    """S(i) -> S(j) for the longest innermost run of axes of i that is next on j, in order."""
    for i in state.dims:
        wrong = state.wrong(i)
        for start in range(len(wrong)):
            run = wrong[start:]
            for j in state.dims:
                added = state.missing(j)[: len(run)]
                if j == i or _axes(added) != _axes(run):
                    continue
                if not any(_is_partial_select(p) for _, p in (*run, *added)):
                    return state.step(StepKind.ALL_TO_ALL, _axes(run), *added)
    return None


def _remove_cut(state: _State) -> CollectiveStep | None:
    """Take away innermost cuts that stand in the way: gather them, or pad them to addends.

    Preference: addends of a Select (to be reduced while small), gathers that the target asks
    for (smaller groups first), padding to a Partial, gathers only made to let an axis move.
    """
    choices: list[tuple[tuple[int, int, int], CollectiveStep]] = []
    for dim in state.dims:
        wrong = state.wrong(dim)
        if not wrong:
            continue
        axis, placement = wrong[-1]
        if _pads(state, dim, wrong[-1]):
            order = 0 if _is_partial_select(placement) else 2
            step = state.step(StepKind.MASK, (axis,), (axis, Partial()))
        else:
            run = [wrong[-1]]
            for entry in reversed(wrong[:-1]):
                if _pads(state, dim, entry) or state.moves(entry[0]):
                    break
                run.insert(0, entry)
            order = 3 if state.moves(axis) else 1
            step = state.step(StepKind.ALL_GATHER, _axes(run))
        choices.append(((order, state.mesh.group_size(step.axes), dim), step))
    return min(choices, key=lambda choice: choice[0])[1] if choices else None


def _mask(state: _State) -> CollectiveStep | None:
    """R -> P, all axes in one local step, when nothing else is left."""
    added: list[Entry] = [
        (axis, want)
        for axis, want in state.goal.entries
        if isinstance(want, Partial) and isinstance(state.current.placement(axis), Replicate)
    ]
    return state.step(StepKind.MASK, _axes(added), *added) if added else None


_RULES: tuple[Callable[[_State], CollectiveStep | None], ...] = (
    _slice,
    _mark_partial,
    _reduce_scatter,
    _all_reduce,
    _all_to_all,
    _remove_cut,
    _mask,
)


def _next_step(state: _State) -> CollectiveStep:
    for rule in _RULES:
        step = rule(state)
        if step is not None:
            return step
    raise AssertionError(f"no rule leads from '{state.current}' to '{state.goal}'")


# --- internals --------------------------------------------------------------------------------


def _run(state: _State, dim: int, fits: Callable[[Placement], bool]) -> list[Entry]:
    """The next cuts of `dim` whose axes are in a state that `fits`, as cuts of values.

    A Select of addends ends the run: it is cut as values and marked before more is appended.
    """
    added: list[Entry] = []
    for entry in state.missing(dim):
        if not fits(state.current.placement(entry[0])):
            break
        added.append(_as_value(entry))
        if _is_partial_select(entry[1]):
            break
    return added


def _pads(state: _State, dim: int, entry: Entry) -> bool:
    """Whether the cut is left by zero padding: it holds addends, or addends are wanted.

    Not below a Select, whose copies of an element would come to hold different addends of it.
    """
    axis, placement = entry
    if _is_partial_select(placement):
        return True
    cuts = state.current.cuts(dim)
    above = cuts[: cuts.index((axis, placement))]
    return state.goal.placement(axis) == Partial("sum") and not any(
        isinstance(outer, Select) for _, outer in above
    )


def _axes(entries: Sequence[tuple[str, Placement]]) -> tuple[str, ...]:
    return tuple(axis for axis, _ in entries)


def _is_partial_select(placement: Placement) -> bool:
    return isinstance(placement, Select) and placement.partial


def _as_value(entry: Entry) -> Entry:
    axis, placement = entry
    return axis, replace(placement, partial=False) if isinstance(placement, Select) else placement


def _cut_dim(placement: Placement) -> int:
    return placement.dim if isinstance(placement, Shard | Select) else -1


def _check(layout: Layout, mesh: Mesh) -> None:
    for axis, placement in layout.entries:
        size = mesh.axis(axis).size
        if isinstance(placement, Select) and len(placement.intervals) != size:
            raise InvalidValueError(
                f"layout '{layout}' has {len(placement.intervals)} intervals for axis {axis} "
                f"of {size} ranks; give one interval for each rank"
            )
