"""Algorithms: one class in one file each, with its hyperparameters, its advantages, its loss and its update.

`BUILT_IN` is the only list of them. A new algorithm is a file here and a line there, a class of your own that a
configuration names as `module:Class`, or that of an installed package (entry points "swe_trainers.algorithms").
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from swe_trainers.errors import ConfigurationError
from swe_trainers.registry import search_path_hint, with_installed

if TYPE_CHECKING:
    from swe_trainers.algorithms.algorithm import Algorithm

__all__ = ["ALGORITHMS", "BUILT_IN", "algorithm_classes", "find_algorithm", "name_of"]

BUILT_IN = {
    "ppo": "swe_trainers.algorithms.ppo:PPO",
    "grpo": "swe_trainers.algorithms.grpo:GRPO",
    "dr_grpo": "swe_trainers.algorithms.grpo:DrGRPO",
    "dapo": "swe_trainers.algorithms.grpo:DAPO",
    "gspo": "swe_trainers.algorithms.grpo:GSPO",
    "rloo": "swe_trainers.algorithms.grpo:RLOO",
    "reinforce": "swe_trainers.algorithms.reinforce:REINFORCE",
    "reinforce_plus_plus": "swe_trainers.algorithms.reinforce:REINFORCEPlusPlus",
    "monte_carlo_tree": "swe_trainers.algorithms.tree:MonteCarloTree",
    "cloning": "swe_trainers.algorithms.cloning:Cloning",
    "reward_model": "swe_trainers.algorithms.reward_model:RewardModel",
}
"""`module:Class` of each algorithm of this package, by the name that a configuration uses."""

ALGORITHMS = with_installed("swe_trainers.algorithms", BUILT_IN)
"""The same, with those of installed packages."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of an algorithm.

    Args:
        name: one of `ALGORITHMS`, or `module:Class` for one of your own.
    Raises:
        ConfigurationError: there is no such class, or it is not an `Algorithm`.
    """
    from swe_trainers.algorithms.algorithm import Algorithm

    module, _, attribute = ALGORITHMS.get(name, name).partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"algorithm {name!r}: {error}{search_path_hint(module)}") from error
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigurationError(f"algorithm {name!r}: {attribute} is not a subclass of {Algorithm.__name__}")
    return found


def algorithm_classes() -> dict[str, type[Algorithm]]:
    """The class of each of `ALGORITHMS`, by name."""
    return {name: find_algorithm(name) for name in ALGORITHMS}


def name_of(algorithm: Algorithm) -> str:
    """The name of an algorithm: that of `ALGORITHMS`, or its `module:Class`."""
    kind = type(algorithm)
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in ALGORITHMS.items() if known == path), path)
