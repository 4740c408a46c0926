"""Faults in the implementations of redistributions, library functions, parameters and steps.

Each is a function that takes a patch(object, name, replacement), and changes one thing. None stops
the program: only a comparison of numbers can find it. FAULTS pairs each with a plan of
tests/runtime/test_faults.py that runs the changed code.
"""

from dataclasses import replace

import torch

from shardwise.ir import decide
from shardwise.ir.axis_state import READ, WHOLE, Sharded
from shardwise.ir.layout import Partial, Replicate, Shard
from shardwise.runtime import library, pieces, redistribute
from shardwise.runtime.parameters import ParameterStore
from shardwise.runtime.program import Program
from shardwise.runtime.regather import Regather


def _step(name):
    """Patches one kind of collective step of the router."""

    def with_replacement(make):
        def fault(patch):
            kind = next(k for k in redistribute._STEPS if k == name)
            original = redistribute._STEPS[kind]
            steps = {**redistribute._STEPS, kind: make(original)}
            patch.setattr(redistribute, "_STEPS", steps)

        fault.__name__ = make.__name__
        return fault

    return with_replacement


@_step("all_reduce")
def reduction_dropped(original):
    return lambda router, x, step, shape: x


@_step("all_reduce")
def reduction_over_one_axis_of_several(original):
    def run(router, x, step, shape):
        return router.communicator.all_reduce(x.contiguous(), router.group(step.axes[:1]))

    return run


@_step("all_reduce")
def reduction_by_maximum(original):
    def run(router, x, step, shape):
        return router.communicator.all_reduce(x.contiguous(), router._members(step.axes), op="max")

    return run


@_step("reduce_scatter")
def scattered_without_a_sum(original):
    def run(router, x, step, shape):
        cuts = [(step.target.placement(a), router.mesh.axis(a).size) for a in step.axes]
        group = router.group(step.axes)
        return pieces.split(x, cuts)[group.index(router.rank)].contiguous()

    return run


@_step("reduce_scatter")
def scattered_to_the_next_rank(original):
    def run(router, x, step, shape):
        dim = step.target.placement(step.axes[-1]).dim
        count = x.shape[dim] // router.mesh.group_size(step.axes)
        return original(router, x.roll(count, dim), step, shape)

    return run


@_step("all_gather")
def gathered_in_another_order(original):
    def run(router, x, step, shape):
        whole = original(router, x, step, shape)
        return whole.roll(x.shape[step.source.placement(step.axes[0]).dim], 0)

    return run


@_step("all_to_all")
def exchanged_with_itself_only(original):
    def run(router, x, step, shape):
        send = router.communicator.all_to_all
        router.communicator.all_to_all = lambda packed, group: packed
        try:
            return original(router, x, step, shape)
        finally:
            router.communicator.all_to_all = send

    return run


@_step("slice")
def sliced_at_the_next_place(original):
    def run(router, x, step, shape):
        places = dict(router._places)
        axis = step.axes[0]
        router._places = places | {axis: (places[axis] + 1) % router.mesh.axis(axis).size}
        try:
            return original(router, x, step, shape)
        finally:
            router._places = places

    return run


@_step("mask")
def bias_added_on_every_rank(original):
    def run(router, x, step, shape):
        if isinstance(step.source.placement(step.axes[0]), Replicate):
            return x
        return original(router, x, step, shape)

    return run


def outer_blocks_forgotten(patch):
    original = pieces._intervals.__wrapped__

    def plain(cut, length, ranks, place):
        return original(Shard(cut.dim), length, ranks, place)

    patch.setattr(pieces, "_intervals", plain)


def _moved(backward):
    def fault(patch):
        patch.setattr(redistribute._Moved, "backward", staticmethod(backward))

    fault.__name__ = backward.__name__
    return fault


@_moved
def gradient_layouts_swapped(ctx, gradient):
    mesh, rank = ctx.router.mesh, ctx.router.rank
    ends = [ctx.target, ctx.source]
    shapes = [layout.local_shape(ctx.shape, mesh, rank) for layout in ends]
    if shapes[0] == shapes[1]:  # R' and R, P and R: a swap of others would not even run
        ends.reverse()
    return ctx.router.run(gradient, *ends, ctx.shape), None, None, None


@_moved
def gradient_of_the_target_is_taken_for_whole(ctx, gradient):
    without = [a for a, p in ctx.target.entries if not isinstance(p, Shard)]
    target = ctx.target.without(tuple(without))
    return ctx.router.run(gradient, target, ctx.source, ctx.shape), None, None, None


def gradient_of_a_replicated_value_not_summed(patch):
    """The rules' READ becomes WHOLE: 'gradient is Partial' turns into 'gradient is Replicate'."""
    original = decide.decide

    def changed(*args):
        return [
            replace(d, reads=tuple(WHOLE if s is READ else s for s in d.reads))
            for d in original(*args)
        ]

    patch.setattr("shardwise.ir.localise.decide", changed)


def bias_whole_beside_rows(patch):
    """The bias of a row-parallel product is added on every rank."""
    original = decide.decide

    def changed(operator, *rest):
        found = original(operator, *rest)
        if operator.kind != "aten.linear.default" or len(found[0].reads) < 3:
            return found
        return [
            replace(d, reads=(*d.reads[:2], WHOLE)) if isinstance(d.reads[1], Sharded)
            and d.reads[1].dim == 1 else d
            for d in found
        ]  # fmt: skip

    patch.setattr("shardwise.ir.localise.decide", changed)


def vocabulary_offset_of_another_rank(patch):
    original = library.VocabularyEmbedding.__init__

    def init(self, *args):
        original(self, *args)
        self.place = 0

    patch.setattr(library.VocabularyEmbedding, "__init__", init)


def tokens_of_other_ranks_not_zeroed(patch):
    patch.setattr(
        library.VocabularyEmbedding, "forward",
        lambda self, table, ids: table[(ids - self.place * len(table)).clamp(0, len(table) - 1)],
    )  # fmt: skip


def class_offset_of_another_rank(patch):
    original = library.VocabularyCrossEntropy.__init__

    def init(self, *args):
        original(self, *args)
        self.place = 1 - self.place

    patch.setattr(library.VocabularyCrossEntropy, "__init__", init)


def exponentials_not_summed_over_ranks(patch):
    original = library._ClassParallelCrossEntropy.forward

    def forward(ctx, logits, target, ignored, place, communicator, group):
        class Deaf:
            def all_reduce(self, x, group, op="sum"):
                return communicator.all_reduce(x, group, op=op) if op == "max" else x

        return original(ctx, logits, target, ignored, place, Deaf(), group)

    patch.setattr(library._ClassParallelCrossEntropy, "forward", staticmethod(forward))


def largest_logit_of_each_rank_alone(patch):
    original = library._ClassParallelCrossEntropy.forward

    def forward(ctx, logits, target, ignored, place, communicator, group):
        class Deaf:
            def all_reduce(self, x, group, op="sum"):
                return x if op == "max" else communicator.all_reduce(x, group, op=op)

        return original(ctx, logits, target, ignored, place, Deaf(), group)

    patch.setattr(library._ClassParallelCrossEntropy, "forward", staticmethod(forward))


def targets_missing_from_the_loss_gradient(patch):
    original = library._ClassParallelCrossEntropy.backward

    def backward(ctx, gradient):
        exponentials, total, local, here, valid = ctx.saved_tensors

        class Changed:
            saved_tensors = (exponentials, total, local, torch.zeros_like(here), valid)

        return original(Changed, gradient)

    patch.setattr(library._ClassParallelCrossEntropy, "backward", staticmethod(backward))


def ignored_rows_in_the_loss_gradient(patch):
    original = library._ClassParallelCrossEntropy.backward

    def backward(ctx, gradient):
        exponentials, total, local, here, valid = ctx.saved_tensors

        class Changed:
            saved_tensors = (exponentials, total, local, here, torch.ones_like(valid))

        return original(Changed, gradient)

    patch.setattr(library._ClassParallelCrossEntropy, "backward", staticmethod(backward))


def keys_of_other_heads(patch):
    """The local heads attend in the wrong order of keys: rows of the first head's are swapped."""
    original = library.AttentionOfLocalHeads.forward

    def forward(self, q, k, v, mask=None):
        return original(self, q, k, v.flip(2) if self.place else v, mask)

    patch.setattr(library.AttentionOfLocalHeads, "forward", forward)


def gradient_accumulated_twice(patch):
    original = ParameterStore.accumulate

    def accumulate(self, use, gradient):
        original(self, use, gradient)
        if use.parameter.endswith("down.weight"):
            original(self, use, gradient)

    patch.setattr(ParameterStore, "accumulate", accumulate)


def last_micro_batch_overwrites_the_sum(patch):
    original = ParameterStore.accumulate

    def accumulate(self, use, gradient):
        self.states[use.parameter].sum = None
        original(self, use, gradient)

    patch.setattr(ParameterStore, "accumulate", accumulate)


def gradient_reduced_from_another_layout(patch):
    original = ParameterStore.accumulate

    def accumulate(self, use, gradient):
        left = use.layout.gradient
        summed = left.without(tuple(a for a, p in left.entries if isinstance(p, Partial)))
        layout = replace(use.layout, gradient=summed)
        original(self, replace(use, layout=layout), gradient)

    patch.setattr(ParameterStore, "accumulate", accumulate)


def sums_of_the_step_not_reduced(patch):
    original = ParameterStore.gradients

    def gradients(self, scale):
        for state in self.states.values():
            state.stored = state.stored.without(
                tuple(a for a, p in state.stored.entries if not isinstance(p, Shard))
            )
        return original(self, scale)

    patch.setattr(ParameterStore, "gradients", gradients)


def scale_missing(patch):
    original = ParameterStore.gradients
    patch.setattr(ParameterStore, "gradients", lambda self, scale: original(self, 1.0))


def weight_of_the_last_slot_only(patch):
    original = Program.run_slot

    def run_slot(self, bucket, batch):
        self._weight = 0.0
        return original(self, bucket, batch)

    patch.setattr(Program, "run_slot", run_slot)


def copies_stale_after_the_step(patch):
    patch.setattr(Program, "refresh", lambda self: None)


def another_parameter_gathered_again(patch):
    """Backward opens the first copy of the same shape that it sees."""
    original = Regather._unpack

    def unpack(self, saved):
        if not isinstance(saved, torch.Tensor) and saved.use.parameter.endswith("q.weight"):
            other = saved.use.parameter.replace("q.weight", "o.weight")
            layout = saved.use.layout
            use = replace(saved.use, parameter=other, name=f"{saved.use.name}_wrong", layout=layout)
            return original(self, replace(saved, use=use))
        return original(self, saved)

    patch.setattr(Regather, "_unpack", unpack)


def view_of_a_gathered_copy_forgotten(patch):
    original = Regather._pack

    def pack(self, tensor):
        note = original(self, tensor)
        if isinstance(note, torch.Tensor) or len(note.stride) < 2 or note.shape[0] != note.shape[1]:
            return note
        return replace(note, stride=note.stride[::-1])

    patch.setattr(Regather, "_pack", pack)


def gathered_copy_kept_over_steps(patch):
    """ZeRO-3's copies, kept as if they lived for ever."""
    original, kept = ParameterStore.compute_copy, {}

    def compute_copy(self, use):
        key = id(self), use.parameter, use.layout
        if key not in kept:
            kept[key] = original(self, use)
        return kept[key]

    patch.setattr(ParameterStore, "compute_copy", compute_copy)


def norm_counts_replicas(patch):
    """The clipping norm counts a replicated gradient once on every rank."""

    def square_sum(locals_, layouts, router):
        total = sum((x.double().square().sum() for x in locals_.values()), torch.zeros(()))
        return router.sum_over_world(total)

    patch.setattr("shardwise.runtime.program.square_sum", square_sum)


FAULTS = [
    ("two", reduction_dropped), ("zero3", reduction_over_one_axis_of_several),
    ("two", reduction_by_maximum), ("two", scattered_without_a_sum),
    ("zero3", scattered_to_the_next_rank), ("zero3", gathered_in_another_order),
    ("two", exchanged_with_itself_only), ("two", sliced_at_the_next_place),
    ("two", bias_added_on_every_rank), ("zero3", outer_blocks_forgotten),
    ("two", gradient_layouts_swapped), ("two", gradient_of_the_target_is_taken_for_whole),
    ("ddp", gradient_of_a_replicated_value_not_summed), ("ddp", bias_whole_beside_rows),
    ("two", vocabulary_offset_of_another_rank), ("two", tokens_of_other_ranks_not_zeroed),
    ("two", class_offset_of_another_rank), ("ddp", exponentials_not_summed_over_ranks),
    ("ddp", largest_logit_of_each_rank_alone), ("ddp", targets_missing_from_the_loss_gradient),
    ("ddp", ignored_rows_in_the_loss_gradient), ("ddp", keys_of_other_heads),
    ("two", gradient_accumulated_twice), ("zero1", last_micro_batch_overwrites_the_sum),
    ("two", gradient_reduced_from_another_layout), ("ddp", sums_of_the_step_not_reduced),
    ("ddp", scale_missing), ("ddp", weight_of_the_last_slot_only),
    ("zero1", copies_stale_after_the_step),
    ("two", another_parameter_gathered_again), ("two", view_of_a_gathered_copy_forgotten),
    ("again", gathered_copy_kept_over_steps), ("zero1", norm_counts_replicas),
]  # fmt: skip
