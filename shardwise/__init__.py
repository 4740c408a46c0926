"""The facade: the names that users import, each loaded from its module when first asked for.

    from shardwise import Program, TrainingSpec, plan, verify

`import shardwise` loads no layer and no torch; `from shardwise import Plan` loads the module of
Plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.ir.bucket import Bucket as Bucket
    from shardwise.ir.cluster import Cluster as Cluster
    from shardwise.ir.errors import FileFormatError as FileFormatError
    from shardwise.ir.errors import InfeasibleError as InfeasibleError
    from shardwise.ir.errors import InvalidValueError as InvalidValueError
    from shardwise.ir.errors import MismatchError as MismatchError
    from shardwise.ir.errors import ParseError as ParseError
    from shardwise.ir.errors import ShardwiseError as ShardwiseError
    from shardwise.ir.errors import UnsupportedError as UnsupportedError
    from shardwise.ir.errors import UntraceableModelError as UntraceableModelError
    from shardwise.ir.hardware import HardwareProfile as HardwareProfile
    from shardwise.ir.layout import Layout as Layout
    from shardwise.ir.lengths import Lengths as Lengths
    from shardwise.ir.mesh import Mesh as Mesh
    from shardwise.ir.plan import Plan as Plan
    from shardwise.ir.software import SoftwareProfile as SoftwareProfile
    from shardwise.ir.trace import trace as trace
    from shardwise.ir.traced_model import TracedModel as TracedModel
    from shardwise.ir.training import TrainingSpec as TrainingSpec
    from shardwise.planner.api import plan as plan
    from shardwise.runtime.program import Program as Program
    from shardwise.runtime.verify import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Bucket": "shardwise.ir.bucket",
    "Cluster": "shardwise.ir.cluster",
    "FileFormatError": "shardwise.ir.errors",
    "HardwareProfile": "shardwise.ir.hardware",
    "InfeasibleError": "shardwise.ir.errors",
    "InvalidValueError": "shardwise.ir.errors",
    "Layout": "shardwise.ir.layout",
    "Lengths": "shardwise.ir.lengths",
    "Mesh": "shardwise.ir.mesh",
    "MismatchError": "shardwise.ir.errors",
    "ParseError": "shardwise.ir.errors",
    "Plan": "shardwise.ir.plan",
    "Program": "shardwise.runtime.program",
    "ShardwiseError": "shardwise.ir.errors",
    "SoftwareProfile": "shardwise.ir.software",
    "TracedModel": "shardwise.ir.traced_model",
    "TrainingSpec": "shardwise.ir.training",
    "UnsupportedError": "shardwise.ir.errors",
    "UntraceableModelError": "shardwise.ir.errors",
    "plan": "shardwise.planner.api",
    "trace": "shardwise.ir.trace",
    "verify": "shardwise.runtime.verify",
}
"""The module of every name of the facade; the same table as the imports above (tested)."""


def __getattr__(name: str) -> object:
    """Load a name of the facade; from then on it is an ordinary attribute."""
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
