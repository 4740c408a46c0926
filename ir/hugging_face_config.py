"""A Hugging Face config.json as it is written; loads neither torch nor transformers."""

import json
from pathlib import Path

from shardwise.ir.errors import FileFormatError


def read_config(path: Path) -> dict[str, object]:
    """The values of a config.json; FileFormatError where it cannot be read or is no object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror}; give the path of a config.json") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON ({error}); give a config.json") from None
    if not isinstance(values, dict):
        raise FileFormatError(
            f"{path}: not an object, which has no model_type; give a Hugging Face config.json"
        )
    return values
