"""The command `shardwise`: small command functions, each loading its layer when called.

An error that a user can cause is one line on stderr and exit code 2; anything else is a bug of
ours and keeps its traceback.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file.")]


def main() -> None:
    """Run the command line and exit; the entry point of the distribution."""
    from shardwise.ir.errors import ShardwiseError

    try:
        app()
    except (ShardwiseError, OSError) as error:
        print("shardwise:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        from shardwise import __version__

        typer.echo(f"shardwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Plan how a PyTorch model is split over devices, per band of sequence lengths."""


Flags = Annotated[str | None, typer.Option(help="Your own plan, priced alike: 'tp=8 pp=4 ...'.")]
FlagsFile = Annotated[
    Path | None, typer.Option(help="The same from a Megatron script or torchtitan TOML.")
]
FlagsModel = Annotated[str | None, typer.Option(help="With flags: hf:config.json.")]
FlagsCluster = Annotated[Path | None, typer.Option(help="With flags: the plan's cluster.")]


def _beside(
    flags: str | None, flags_file: Path | None, model: str | None, cluster: Path | None
) -> tuple[str, Path] | None:
    """Model and cluster of the plan that flags state; None without flags."""
    from shardwise.ir.errors import InvalidValueError

    if flags is None and flags_file is None:
        if model is not None or cluster is not None:
            raise InvalidValueError("--model and --cluster go with --flags; give your own plan")
        return None
    if model is None or cluster is None:
        raise InvalidValueError("--flags needs --model hf:config.json and --cluster of the plan")
    return model, cluster


@app.command()
def explain(
    plan: PlanPath,
    flags: Flags = None,
    flags_file: FlagsFile = None,
    model: FlagsModel = None,
    cluster: FlagsCluster = None,
) -> None:
    """Print a plan: mesh, stages, parameters, and the strategies and prices of each bucket.

    With --flags or --flags-file: the prices of another plan beside it; see docs/prices.md.
    """
    from shardwise.ir import plan_file, plan_text

    made = plan_file.load(plan)
    beside = _beside(flags, flags_file, model, cluster)
    if beside is None:
        typer.echo(plan_text.render(made), nl=False)
        return
    from shardwise.planner.compare import compare

    typer.echo(
        str(compare(made, model=beside[0], cluster=beside[1], flags=flags, flags_file=flags_file))
    )


JobPath = Annotated[Path, typer.Argument(metavar="JOB.toml", help="A job file.")]


@app.command()
def lengths(
    corpus: Annotated[str, typer.Argument(help="stdlib, files, or module:function.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")],
    max_length: Annotated[int, typer.Option(help="Longer documents are split at it.")] = 8192,
    tokenizer: Annotated[str, typer.Option(help="bytes, or hf:DIR.")] = "bytes",
    field: Annotated[str, typer.Option(help="Key of the text in .jsonl files.")] = "text",
) -> None:
    """Measure the lengths of a corpus: print percentiles, write the histogram that `plan` reads."""
    from shardwise.ir.lengths import Lengths
    from shardwise.ir.lengths_file import write_lengths
    from shardwise.runtime.corpus import load_corpus

    found = load_corpus(corpus, tokenizer, max_length=max_length, field=field)
    histogram = Lengths.from_samples(found.lengths(), source=f"{corpus}, {tokenizer}")
    write_lengths(histogram, output)
    typer.echo(f"{corpus}: {found.describe()}")
    typer.echo(" percent of documents up to   of tokens in documents up to")
    for row in histogram.percentiles("S"):
        typer.echo(f"{row.percent:8g} {row.length:16d}   {row.token_length:26d}")
    typer.echo(f"wrote {output}")


@app.command(name="plan")
def plan_command(
    cluster: Annotated[Path, typer.Option(help="Cluster file.")],
    lengths: Annotated[Path, typer.Option(help="Length histogram (CSV).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Plan file to write.")],
    model: Annotated[
        str | None, typer.Argument(help="hf:config.json or module:function; or give --job.")
    ] = None,
    job: Annotated[Path | None, typer.Option(help="Job file: model, recipe, limits.")] = None,
    tokens_per_step: Annotated[int | None, typer.Option(help="Global tokens of a step.")] = None,
    compute_dtype: Annotated[str, typer.Option(help="Without --job.")] = "bfloat16",
    memory_limit: Annotated[int | None, typer.Option(help="Bytes per rank.")] = None,
) -> None:
    """Find the plan with the least expected step; print it and write it."""
    from shardwise.ir import plan_text
    from shardwise.ir.errors import InvalidValueError
    from shardwise.ir.training import TrainingSpec
    from shardwise.planner.command import batcher_line, plan_language_model

    spec, training = model, TrainingSpec(compute_dtype=compute_dtype)
    if job is not None:
        from shardwise.runtime.job_schema import load_job

        loaded = load_job(job)
        spec, training = model or loaded.model.spec, loaded.training
        if tokens_per_step is None:
            tokens_per_step = loaded.tokens_per_step
        if memory_limit is None:
            memory_limit = loaded.memory_limit_bytes_per_rank
    output.parent.mkdir(parents=True, exist_ok=True)
    if spec is None or tokens_per_step is None:
        raise InvalidValueError("give a model and --tokens-per-step, or a --job that has both")
    made = plan_language_model(
        spec,
        training=training,
        cluster=cluster,
        lengths=lengths,
        tokens_per_step=tokens_per_step,
        memory_limit_bytes_per_rank=memory_limit,
        say=typer.echo,
    )
    typer.echo(plan_text.render(made), nl=False)
    typer.echo(f"\n{batcher_line(made, lengths)}")
    made.save(output)
    typer.echo(f"wrote {output}")


@app.command(name="train")
def train_command(
    job: JobPath,
    plan: Annotated[Path, typer.Option(help="Plan file.")],
    resume: Annotated[Path | None, typer.Option(help="Folder of a checkpoint.")] = None,
) -> None:
    """Train a job under a plan; start it with torchrun, one process per rank."""
    from shardwise.runtime.launch import train

    train(job, plan, resume=resume, say=typer.echo)


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint (step-N).")],
    job: Annotated[Path, typer.Option(help="The job that saved it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
) -> None:
    """Write a checkpoint as safetensors and config.json, for transformers' from_pretrained."""
    from shardwise.runtime.launch import export as export_checkpoint

    count = export_checkpoint(checkpoint, job, output)
    typer.echo(f"wrote {count} weights to {output}")


@app.command(name="verify")
def verify_command(
    plan: PlanPath,
    job: Annotated[Path, typer.Option(help="Job file: the model of the plan.")],
) -> None:
    """Replay a plan on simulated ranks and compare it with one process; see docs/run.md."""
    from shardwise.ir import plan_file
    from shardwise.runtime.job_schema import load_job
    from shardwise.runtime.verify_command import verify_language_model

    made = plan_file.load(plan)
    report = verify_language_model(made, load_job(job).model.spec)
    typer.echo(str(report))
    if not report.passed:
        raise typer.Exit(1)


@app.command(name="price")
def price_command(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="A table of training runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")],
    configs: Annotated[
        Path | None, typer.Option(help="Folder of hardware/ and software/ profiles.")
    ] = None,
) -> None:
    """Predict time and memory of every row of a table of runs; see docs/prices.md."""
    from shardwise.planner.price_command import price_table

    typer.echo(str(price_table(runs, output, configs=configs)))
    typer.echo(f"wrote {output}")


@app.command(name="simulate")
def simulate_command(
    plan: PlanPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Chrome trace to write.")],
    lengths: Annotated[
        Path | None, typer.Option(help="The length histogram of the plan (CSV).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the global batches.")] = 0,
    step: Annotated[int, typer.Option(help="Which of them.")] = 0,
    flags: Flags = None,
    flags_file: FlagsFile = None,
    length: Annotated[int | None, typer.Option(help="With flags: tokens of a document.")] = None,
    model: FlagsModel = None,
    cluster: FlagsCluster = None,
) -> None:
    """Draw one step of a plan, print its time and write its trace (opens in ui.perfetto.dev).

    With --flags or --flags-file: a step of another plan, micro-batch by micro-batch.
    """
    from shardwise.ir import plan_file
    from shardwise.ir.errors import InvalidValueError

    made = plan_file.load(plan)
    if not (flags is None and flags_file is None) and (lengths is not None or seed or step):
        raise InvalidValueError(
            "--lengths, --seed and --step are of this plan's own steps; leave them out with --flags"
        )
    beside = _beside(flags, flags_file, model, cluster)
    if beside is None:
        if length is not None:
            raise InvalidValueError("--length and what it is of go with --flags; give your plan")
        if lengths is None:
            raise InvalidValueError("give --lengths, the length histogram of the plan")
        from shardwise.ir.lengths_file import read_lengths
        from shardwise.planner.simulate import simulate_step

        simulated = simulate_step(made, read_lengths(lengths), seed=seed, step=step)
        simulated.save_trace(output)
        typer.echo(f"{simulated}\nwrote {output}")
        return
    from shardwise.planner.compare import other_plan
    from shardwise.planner.simulate_flags import simulate_flags

    other = other_plan(made, model=beside[0], cluster=beside[1], flags=flags, flags_file=flags_file)
    theirs = simulate_flags(other, length)
    theirs.save_trace(output)
    typer.echo(f"{theirs}\nwrote {output}")


@app.command(name="profile")
def profile_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Hardware file to write.")],
    software: Annotated[
        Path | None, typer.Option(help="Software file to write (default: OUTPUT-software.toml).")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    cluster: Annotated[
        Path | None, typer.Option(help="Cluster file: its levels (default: as torchrun says).")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer repeats: coarser figures.")] = False,
) -> None:
    """Measure this machine on all ranks of torchrun; write what plans are priced with."""
    from shardwise.runtime.profile_command import profile

    profile(
        output,
        software_output=software,
        device=device,
        cluster=cluster,
        quick=quick,
        say=typer.echo,
    )
