"""What tokens cost, as the user says: none are known here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swe_trainers.config import build, nearest
from swe_trainers.errors import ConfigurationError

__all__ = ["Prices", "read_prices"]


@dataclass(frozen=True)
class Prices:
    """Dollars for a million tokens.

    Attributes:
        input: read.
        output: written.
        cached_input: read from the server's cache; None: as `input`.
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise ConfigurationError(f"{name}: got {price!r}, expected dollars for a million tokens")

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> float:
        """Dollars; `cached_tokens` are some of `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


def read_prices(path: Path, model: str) -> Prices:
    """A model's prices from a table: `{MODEL: {input: 1.25, output: 10, cached_input: 0.125}, …}` in YAML.

    Raises:
        ConfigurationError: the file cannot be read, has no such model, or says something else than prices.
    """
    try:
        table: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise ConfigurationError(f"--prices {path}: cannot be read: {reason}") from error
    if not isinstance(table, dict):
        raise ConfigurationError(f"--prices {path}: expected MODEL: {{input: …, output: …}}")
    if model not in table:
        raise ConfigurationError(f"--prices {path}: no model {model!r}{nearest(model, map(str, table))}")
    if not isinstance(table[model], dict):
        raise ConfigurationError(f"--prices {path}: {model}: expected {{input: …, output: …}}, got {table[model]!r}")
    return build(Prices, table[model], f"--prices {path}: {model}")
