"""What transformers' config classes supply where a config.json is silent."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("config-classes.toml")


@cache
def config_class(model_type: str) -> Mapping[str, Any] | None:
    """What the config class of this model_type supplies; None where eagle3lab has not written it down."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tables.get(model_type)
