"""`shardwise price`: predict time and memory of every row of a run table.

Each row is read (planner/published_row.py), its machine is built from the profile of its GPU and
the fabric that it names (planner/published_machine.py), and its plan is priced
(planner/uniform_price.py). A row that cannot be priced keeps its cells and gets the reason.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardwise.ir.errors import ShardwiseError
from shardwise.ir.software import SoftwareProfile
from shardwise.planner.published_machine import Machines
from shardwise.planner.published_row import PublishedRun, read_row
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_price import UniformPrice, price_uniform

COLUMNS = ("predicted_iter_time_s", "predicted_peak_mem_gb", "predicted_oom", "price_note")
"""What a priced table adds."""
_TIGHT = "fits only if the allocator gives back cached blocks"
GB, GIB = 1e9, 2.0**30
MEMORY_KINDS = {
    "reserved": ("reserved",),
    "allocated": ("allocated", "active", "max_memory"),
    "device": ("nvidia-smi",),
}
"""Kind of a memory figure -> words that name it."""


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A row that was read, and its price."""

    run: PublishedRun
    price: UniformPrice


class RunPricer:
    """Prices rows; machines and decoders that rows share are built once."""

    def __init__(self, machines: Machines | None = None) -> None:
        self.machines = machines or Machines()

    def price(self, cells: Mapping[str, str], software: SoftwareProfile | None = None) -> PricedRun:
        """Price one row, with the software profile of its stack or another one.

        Raises ShardwiseError where it can't be priced, with the reason.
        """
        return self.price_run(read_row(cells), software)

    def price_run(self, run: PublishedRun, software: SoftwareProfile | None = None) -> PricedRun:
        """Price a row that was read."""
        machine = self.machines.of(run)
        pricer = Pricer(
            machine.cluster,
            machine.hardware,
            software or machine.software,
            run.training,
            run.linear_dtype,
            run.stack.blocking,
        )
        return PricedRun(run, price_uniform(run.shape, run.plan, pricer, run.buffers))

    def rows(
        self, rows: Iterator[Mapping[str, str]], say: Callable[[int], None] = lambda _: None
    ) -> Iterator[dict[str, str]]:
        """Every row with COLUMNS added; `say` is told the number of each."""
        for number, cells in enumerate(rows, 1):
            say(number)
            yield {**cells, **self.added(cells)}

    def added(self, cells: Mapping[str, str]) -> dict[str, str]:
        """The cells of COLUMNS for one row."""
        try:
            priced = self.price(cells)
        except ShardwiseError as error:
            reason = " ".join(str(error).split())
            return dict(zip(COLUMNS, ("", "", "", f"not priced: {reason}"), strict=True))
        price = priced.price
        return dict(
            zip(
                COLUMNS,
                (
                    f"{price.step_s:.6g}",
                    f"{memory_gb(price, cells.get('mem_kind') or ''):.4g}",
                    "no" if price.fits else "yes",
                    "; ".join(
                        (
                            *priced.run.notes,
                            *self.machines.of(priced.run).notes,
                            *([_TIGHT] if price.is_tight else []),
                        )
                    ),
                ),
                strict=True,
            )
        )


def memory_gb(price: UniformPrice, kind: str) -> float:
    """The peak as a column `mem_kind` words it: what an allocator reports leaves out context and
    process groups, what it has reserved and what the device shows is more than is live (at most
    the device). A text that names no kind is taken as what stacks log, the allocator's live peak;
    a blank one asks for what the device has to have. GiB where that is printed, else GB."""
    which = memory_kind(kind)
    live = price.peak_bytes - price.context_bytes
    reserved = max(live, min(price.reserved_bytes, price.capacity_bytes - price.context_bytes))
    size = {
        "device": reserved + price.context_bytes,
        "reserved": reserved,
        "allocated": live,
        "not said": live if kind.strip() else price.peak_bytes,
    }[which]
    return size / (GIB if "gib" in kind.lower() or which == "device" else GB)


def memory_kind(text: str) -> str:
    """What a column `mem_kind` is about: `reserved` or `allocated` of an allocator, `device` (its
    context included) or `not said`."""
    lower = text.lower()
    kinds = (kind for kind, words in MEMORY_KINDS.items() if any(word in lower for word in words))
    return next(kinds, "not said")
