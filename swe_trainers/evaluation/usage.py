"""Tokens that episodes used, and what they cost. Prices come from the user; none are known here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swe_trainers.config import Configuration, build, nearest
from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Prices", "Usage", "read_prices", "usage_of"]


@dataclass(frozen=True)
class Prices(Configuration):
    """Dollars per million tokens.

    Attributes:
        input: tokens read.
        output: tokens generated.
        cached_input: tokens read from the server's cache; None: as `input`.
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < math.inf:
                raise ConfigurationError(f"{name}: got {price!r}, expected dollars per million tokens")

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> float:
        """Dollars; `cached_tokens` are some of `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


@dataclass(frozen=True)
class Usage:
    """Tokens and time of an episode's actions.

    Attributes:
        requests: actions that were generated.
        prompt_tokens: read, those from a cache included.
        completion_tokens: generated.
        cached_tokens: of `prompt_tokens`, as far as the server reports them.
        unknown: requests whose tokens the server does not report.
        cost: in dollars, from the server or by the prices; None if the cost of one request is unknown.
        seconds: waiting for the model.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    unknown: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0


def usage_of(trajectory: Trajectory, prices: Prices | None, seconds: float) -> Usage:
    """The usage of an episode.

    Args:
        trajectory: the episode. A chat endpoint reports tokens in `Turn.notes`; else they are counted.
        prices: of tokens; a cost that the server reports takes precedence.
        seconds: waiting for the model.
    """
    requests = prompt = completion = cached = unknown = 0
    cost: float | None = 0.0
    for number, turn in enumerate(trajectory.turns):
        notes = turn.notes
        if "no_room" in notes:  # no action was generated
            continue
        requests += 1
        if turn.end > turn.start:
            sample_start = max(start for start in trajectory.sample_starts if start <= turn.start)
            read, wrote = turn.start - sample_start, turn.end - turn.start
            held = max(0, trajectory.turns[number - 1].end - sample_start) if number else 0
        elif "prompt_tokens" in notes:
            read, wrote, held = (notes[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached"))
        else:
            read, wrote, held, unknown = 0, 0, 0, unknown + 1
        stated = notes.get("cost")
        if stated is None and prices is not None and (turn.end > turn.start or "prompt_tokens" in notes):
            stated = prices.cost(read, wrote, held)
        cost = None if cost is None or stated is None else cost + stated
        prompt, completion, cached = prompt + read, completion + wrote, cached + held
    return Usage(requests, prompt, completion, cached, unknown, cost, seconds)


def read_prices(path: Path, model: str) -> Prices:
    """A model's prices from a table: `{MODEL: {input: 1.25, output: 10, cached_input: 0.125}, …}` in YAML.

    Raises:
        ConfigurationError: the file cannot be read, has no such model, or holds something else than prices.
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
