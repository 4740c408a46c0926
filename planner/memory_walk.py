"""What one rank holds at each moment of a unit's passes, beside what autograd keeps of the model.

A walk over the unit's steps, forward and then backward, that makes and frees storages where the
runtime and autograd do, each counted once:

forward     values live until the last step that reads them; what the unit reads, until its end.
            Operators add what they save; under recomputation nothing is saved the first time
backward    autograd runs what was recorded last first, so steps go in reverse. A step holds the
            gradients that reach it, makes those of its operands, then frees what it saved; the
            second gradient of a value is added to the first. A parameter's gradient is reduced
            and dropped as soon as it is made (runtime/emit.py calls uses where they are read)

What a parameter scheme decides (short-lived copies, their gathers, reductions of gradients) is
only named, by use. Tests compare the largest moment with what runs are seen to hold
(tests/planner/test_memory_walk.py).
"""

from functools import lru_cache

import sympy

from shardwise.ir.autograd_saves import Followed, UnitSaves
from shardwise.ir.flops import nbytes
from shardwise.ir.layout import Layout
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, Move, UnitProgram, Use, local_spec, made_by
from shardwise.ir.redistribution import StepKind
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.unit_programs import read_by
from shardwise.planner.backward_bytes import gradients_of
from shardwise.planner.moment import Moment, Sum, largest


@lru_cache(maxsize=1 << 12)
def route(
    spec: TensorSpec, source: Layout, target: Layout, mesh: Mesh
) -> tuple[tuple[sympy.Expr, ...], sympy.Expr]:
    """(what each step of a redistribution holds beside its first operand, size of the result).

    The result is 0 where it lies in the operand's storage. As runtime/redistribute.py does it: a
    gather joins what it has received, an exchange also packs what it sends.
    """
    held: list[sympy.Expr] = []
    own = sympy.S.Zero
    for step in lower(source, target, mesh):
        before, after = (nbytes(local_spec(spec, x, mesh)) for x in (step.source, step.target))
        if step.kind is StepKind.SLICE:
            copied = any(getattr(p, "outer", 1) != 1 for axis, p in step.target.entries)
            if copied:
                held.append(own + after)
                own = after
            continue
        if step.kind is StepKind.ALL_GATHER:
            held.append(own + 2 * after)
        elif step.kind is StepKind.REDUCE_SCATTER:
            held.append(own + before + after)
        elif step.kind is StepKind.ALL_TO_ALL:
            held += [own + 2 * before, own + before + after]
        else:
            held.append(own + after)
        own = after
    return tuple(held), own


class UnitWalk:
    """The moments of one unit of a program.

    `counted` are the values that the unit reads and that count elsewhere: as kept, as inputs of the
    program, or as constants.
    """

    def __init__(
        self,
        unit: UnitProgram,
        saves: UnitSaves,
        mesh: Mesh,
        gradients: frozenset[str],
        counted: frozenset[str],
    ) -> None:
        self.unit, self.saves, self.mesh, self.gradients = unit, saves, mesh, gradients
        self.counted = counted
        self.uses = {step.name for step in unit.steps if isinstance(step, Use)}
        self.moments: list[Moment] = []
        self.last_read: dict[str, int] = {}
        self.first_saved: dict[str, int] = {}
        for index, one in enumerate(saves.steps):
            for name in (*one.reads, *one.writes):
                self.last_read[name] = index
            for name in one.saved:
                self.first_saved.setdefault(name, index)
        for name in unit.writes:
            self.last_read[saves.roots[name][0]] = len(saves.steps)
        self.own = {n for n in self.first_saved if n not in self.uses and n not in unit.reads}
        """Storages that autograd keeps of this unit's making."""

    def run(self, *, again: bool) -> tuple[Moment, ...]:
        """The largest moments of both passes; `again` says whether the unit is recomputed."""
        if again:
            self._forward(Sum(), len(self.saves.steps), saving=False, holding=False)
        else:
            before = Sum({key: -count for key, count in self._kept().items()})
            self._forward(before, len(self.saves.steps), saving=True, holding=False)
        self._backward(again=again)
        return largest(self.moments)

    def _kept(self) -> Sum:
        """What the unit adds to what is kept when it is not recomputed."""
        kept = Sum()
        for name in self.own:
            kept.add(self.saves.storages[name])
        for one in self.saves.steps:
            kept.add(one.extra)
        return kept

    def _note(self, now: Sum, opened: set[str], gathering: str | None = None) -> None:
        self.moments.append(Moment(Sum(now), frozenset(opened), gathering))

    def _forward(self, now: Sum, stop: int, *, saving: bool, holding: bool) -> None:
        """From `now`, what is alive before; `holding` where saved copies of parameters stay."""
        storages = self.saves.storages
        alive = {n for n in self.unit.reads if n not in self.counted and n in storages}
        for name in alive:
            now.add(storages[name])
        opened: set[str] = set()
        for index, one in enumerate(self.saves.steps[:stop]):
            if isinstance(one.step, Use):
                self._note(now, opened, one.step.name)
                opened.add(one.step.name)
            for size in self._forward_extras(one):
                self._note(Sum(now).add(size), opened)
            for name in one.writes:
                if name not in alive and name not in self.unit.reads and name not in self.uses:
                    now.add(storages[name])
                    alive.add(name)
            now.add(one.extra)
            self._note(now, opened)
            if not saving:
                now.add(one.extra, -1)
            for name in [n for n in alive if self.last_read[n] <= index]:
                if name not in self.unit.reads and not (saving and name in self.own):
                    alive.discard(name)
                    now.add(storages[name], -1)
            for name in [n for n in opened if self.last_read[n] <= index]:
                if not (holding and name in self.first_saved):
                    opened.discard(name)

    def _forward_extras(self, one: Followed) -> tuple[sympy.Expr, ...]:
        """What a step holds at times beside its operands, its results included."""
        step = one.step
        if isinstance(step, Move):
            return route(step.spec, step.source.forward, step.target.forward, self.mesh)[0]
        if isinstance(step, Call) and step.library == "vocabulary_embedding":
            return (2 * self.saves.storages[one.writes[0]],)
        if isinstance(step, Call) and step.library == "vocabulary_cross_entropy":
            # beside what it saves: largest, picked, sums sent, and two on the way to the loss
            logits = local_spec(step.operand_specs[0], step.reads[0].forward, self.mesh)
            rows = nbytes(TensorSpec(logits.shape[:1], logits.dtype))
            return (one.extra + 6 * rows + nbytes(TensorSpec(logits.shape[:1], "bool")),)
        return ()

    def _backward(self, *, again: bool) -> None:
        """Steps in reverse; a recomputation runs when the first saved tensor is asked for."""
        now = Sum()
        grads = _Gradients(now)
        for name in self.unit.writes:
            if name in self.gradients:
                grads.put(name, self.saves.roots[name][1])
        opened: set[str] = set()
        waiting = again
        for index in reversed(range(len(self.saves.steps))):
            one = self.saves.steps[index]
            step = one.step
            outputs = [name for name in made_by(step) if name in grads.of]
            if waiting and (one.saved or one.extra != 0):
                waiting = False
                self._forward(Sum(now), self.saves.last + 1, saving=True, holding=True)
                for key, count in self._kept().items():
                    now[key] = now.get(key, 0.0) + count
                opened |= {name for name in self.first_saved if name in self.uses}
            if isinstance(step, Use):
                if outputs:
                    self.moments.append(Moment(Sum(now), frozenset(opened), reducing=step.name))
                    grads.drop(step.name)
                opened.discard(step.name)
                continue
            if outputs:
                for name in one.saved:
                    if name in self.uses and name not in opened:
                        self._note(now, opened, name)
                        opened.add(name)
                self._step_back(one, outputs[0], grads, now, opened)
            for name in outputs:
                grads.drop(name)
            now.add(one.extra, -1)
            for name in {n for n in one.saved if self.first_saved[n] == index}:
                if name in self.own:
                    now.add(self.saves.storages[name], -1)
                elif again:
                    opened.discard(name)

    def _step_back(
        self, one: Followed, source: str, grads: "_Gradients", now: Sum, opened: set[str]
    ) -> None:
        """Gradients of a step's operands, from that of its first result."""
        step = one.step
        if isinstance(step, Move):
            held, own = route(step.spec, step.target.gradient, step.source.gradient, self.mesh)
            for size in held:
                self._note(Sum(now).add(size), opened)
            made = [(step.value, own if own != 0 else None)]
        else:
            assert isinstance(step, Call)
            needs = [name in self.gradients for name in read_by(step)]
            sizes, temporary = gradients_of(step, needs, self.mesh)
            made = [
                (name, size)
                for name, size, need in zip(read_by(step), sizes, needs, strict=True)
                if need
            ]
            both = Sum(now).add(temporary)
            for _, size in made:
                both.add(size or sympy.S.Zero)
            self._note(both, opened)
        for name, size in made:
            total = grads.add(name, size, source)
            if total is not None:
                self._note(Sum(now).add(total).add(size or sympy.S.Zero), opened)
                grads.drop(name)
                grads.put(name, total)


class _Gradients:
    """Gradients of values that are alive, by the storage that they lie in."""

    def __init__(self, now: Sum) -> None:
        self.now = now
        self.of: dict[str, int] = {}
        """Value -> its gradient's storage."""
        self._sizes: dict[int, sympy.Expr] = {}

    def put(self, name: str, size: sympy.Expr) -> None:
        """A gradient in memory of its own."""
        self.of[name] = storage = len(self._sizes)
        self._sizes[storage] = size
        self.now.add(size)

    def drop(self, name: str) -> None:
        """A gradient has been used; its storage goes with the last."""
        storage = self.of.pop(name)
        if storage not in self.of.values():
            self.now.add(self._sizes[storage], -1)

    def add(self, name: str, size: sympy.Expr | None, source: str) -> sympy.Expr | None:
        """Give a value a gradient, without a size in the storage of that of `source`.

        A second one is added to the first in place, unless others share it: then the size of the
        sum is returned.
        """
        if name not in self.of:
            if size is None:
                self.of[name] = self.of[source]
            else:
                self.put(name, size)
            return None
        storage = self.of[name]
        shared = sum(other == storage for other in self.of.values()) > 1
        return self._sizes[storage] if shared else None
