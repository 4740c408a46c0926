"""The closing lines of a run: docs/run.md says what each means."""

from statistics import median

from shardwise.runtime.train import Trainer


def summary(trainer: Trainer) -> str:
    """What was trained, what was executed, predicted against measured time and peak."""
    totals, plan = trainer.totals, trainer.plan
    if not totals.steps:
        return f"nothing to train: step {trainer.step} of {trainer.job.steps} is done already"
    lines = [
        f"trained {totals.steps} steps, {totals.documents} documents, {totals.tokens} tokens; loss "
        f"{totals.losses[0]:.4f} -> {totals.losses[-1]:.4f}",
        f"corpus: {trainer.corpus.describe()}",
    ]
    if totals.dropped:
        lines[-1] += f", {totals.dropped} too long for the plan dropped"
    if totals.evaluations:
        step, loss = totals.evaluations[-1]
        lines.append(
            f"held out: the last {len(trainer.held_out)} documents of the corpus; loss {loss:.4f} "
            f"after step {step}"
        )
    lines += [
        "slots executed: " + ", ".join(f"{n} x {name}" for name, n in sorted(totals.slots.items())),
        f"{totals.switches} switches, {totals.switch_bytes} bytes moved by them",
    ]
    pairs = zip(totals.predicted_slots_s, totals.slots_s, strict=True)
    ratios = [predicted / measured for predicted, measured in pairs]
    slots_s, step_s = sum(totals.slots_s), sum(totals.step_s)
    lines += [
        f"slots: predicted {sum(totals.predicted_slots_s):.2f} s, measured {slots_s:.2f} s (median "
        f"predicted/measured of a step {median(ratios):.2f})",
        f"steps: predicted {plan.step_s:.3f} s on average, measured {step_s / totals.steps:.3f} s, "
        f"of them {(step_s - slots_s) / totals.steps:.3f} s outside slots",
        peak_line(trainer),
    ]
    return "\n".join(lines)


def peak_line(trainer: Trainer) -> str:
    """Predicted and measured peak of this rank."""
    predicted = max(bucket.largest_peak_bytes() for bucket in trainer.plan.buckets)
    peak, base = trainer.meter.largest, trainer.meter.base
    start = f"peak per rank: predicted {predicted / 1e6:.0f} MB, measured "
    if peak is None or base is None:
        return f"{start}unknown here"
    return (
        f"{start}{peak / 1e6:.0f} MB, of them {base / 1e6:.0f} MB before the first step and "
        f"{(peak - base) / 1e6:.0f} MB above that"
    )
