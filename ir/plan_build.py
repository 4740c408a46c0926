"""From the checked form of a plan file to a Plan: texts parsed, every error with its path."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shardwise.ir.bucket import Bucket
from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun, check_strategy_id
from shardwise.ir.certificate import (
    Baseline,
    LongDocuments,
    Menu,
    PricedFor,
    Status,
    parse_word,
)
from shardwise.ir.cluster import Cluster
from shardwise.ir.errors import FileFormatError, InvalidValueError, ParseError
from shardwise.ir.fingerprint import ModelFingerprint, UnitRun
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.name_pattern import NamePattern
from shardwise.ir.parameter_choice import ParameterChoice, parse_lifetime
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.plan_json import TRAINING_KEYS
from shardwise.ir.plan_schema import (
    BucketForm,
    ModelForm,
    ParameterForm,
    PlanForm,
    PricedForForm,
    PricesForm,
    TrainingForm,
)
from shardwise.ir.prices import Prices
from shardwise.ir.strategy import Strategy
from shardwise.ir.strict_json import path_text
from shardwise.ir.training import TrainingSpec

Path = tuple[str | int, ...]
T = TypeVar("T")


def plan_of(form: PlanForm) -> Plan:
    """The plan that the form describes; raises FileFormatError, `at <JSON path>: <problem>`."""
    with _at("mesh"):
        mesh = Mesh.parse(form.mesh)
    model = _model(form.model)
    training = _training(form.training)
    stages = _each(form.stages, Stage.parse, "stages")
    parameters = tuple(
        _parameter(part, ("parameters", place)) for place, part in enumerate(form.parameters)
    )
    strategies = tuple(_strategy(*item) for item in form.strategies.items())
    buckets = tuple(_bucket(part, ("buckets", place)) for place, part in enumerate(form.buckets))
    baselines: list[Baseline] = []
    for place, part in enumerate(form.baselines):
        with _at("baselines", place, names_field=True):
            baselines.append(Baseline(part.name, part.step_s, part.peak_bytes_per_rank, part.note))
    priced_for = _priced_for(form.priced_for)
    with _at():
        status = parse_word(Status, form.status, "status")
        menu = parse_word(Menu, form.menu, "menu")
        long_documents = parse_word(LongDocuments, form.long_documents, "long_documents")
    try:
        return Plan(
            model=model,
            training=training,
            mesh=mesh,
            groups=tuple(tuple(group.split(",")) for group in form.groups),
            stages=stages,
            parameters=parameters,
            strategies=strategies,
            buckets=buckets,
            step_s=form.step_s,
            bound_s=form.bound_s,
            gap=form.gap,
            status=status,
            menu=menu,
            menu_strategies=form.menu_strategies,
            covers=form.covers,
            baselines=tuple(baselines),
            free_switching_price=form.free_switching_price,
            priced_for=priced_for,
            long_documents=long_documents,
            version=form.version,
        )
    except InvalidValueError as error:  # its message has the path already
        raise FileFormatError(str(error)) from None


@contextmanager
def _at(*path: str | int, names_field: bool = False) -> Iterator[None]:
    """Turn errors of values into errors of the file at `path`.

    `names_field` says that the messages begin with the field, as a path from there on; an empty
    path is the whole file, where they do.
    """
    try:
        yield
    except (InvalidValueError, ParseError) as error:
        if not path:
            raise FileFormatError(f"at {error}") from None
        mark = "." if names_field else ": "
        raise FileFormatError(f"at {path_text(path)}{mark}{error}") from None


def _each(texts: list[str], parse: Callable[[str], T], *path: str | int) -> tuple[T, ...]:
    values: list[T] = []
    for place, text in enumerate(texts):
        with _at(*path, place):
            values.append(parse(text))
    return tuple(values)


def _model(form: ModelForm) -> ModelFingerprint:
    units = _each(form.units, UnitRun.parse, "model", "units")
    with _at("model"):
        return ModelFingerprint(form.name, form.digest, form.parameter_count, units)


def _training(form: TrainingForm) -> TrainingSpec:
    with _at("training"):
        fields = {key: getattr(form, key) for key in TRAINING_KEYS}
        return TrainingSpec(**{**fields, "trainable": tuple(form.trainable)})


def _parameter(form: ParameterForm, path: Path) -> ParameterChoice:
    with _at(*path, "pattern"):
        NamePattern.parse(form.pattern)
    layouts: list[Layout] = []
    for what, text in (("master", form.master), ("accumulator", form.accumulator)):
        with _at(*path, what):
            layouts.append(Layout.parse(text))
    with _at(*path, "lifetime"):
        lifetime = parse_lifetime(form.lifetime)
    with _at(*path):
        return ParameterChoice(form.pattern, layouts[0], layouts[1], lifetime)


def _strategy(name: str, text: str) -> tuple[str, Strategy]:
    with _at("strategies", name):
        check_strategy_id(name)
        return name, Strategy.parse(text)


def _bucket(form: BucketForm, path: Path) -> BucketPlan:
    with _at(*path, "bucket"):
        bucket = Bucket.parse(form.bucket)
    padded = _each(form.padded, PaddedShape.parse, *path, "padded")
    runs = _each(form.runs, StrategyRun.parse, *path, "runs")
    time = _prices(form.time_s, (*path, "time_s"))
    peak = _prices(form.peak_bytes_per_rank, (*path, "peak_bytes_per_rank"))
    with _at(*path, names_field=True):
        return BucketPlan(bucket, form.batch_degree, form.seats, padded, runs, time, peak)


def _prices(form: PricesForm, path: Path) -> Prices:
    with _at(*path):
        return Prices(tuple(form.coefficients.items()), form.fit_error)


def _priced_for(form: PricedForForm) -> PricedFor:
    with _at("priced_for", "cluster"):
        cluster = Cluster.parse(form.cluster)
    with _at("priced_for", names_field=True):
        return PricedFor(
            cluster,
            form.hardware_digest,
            form.software_digest,
            form.lengths_digest,
            tokens_per_step=form.tokens_per_step,
            memory_limit_bytes_per_rank=form.memory_limit_bytes_per_rank,
        )
