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

__all__ = [
    "ALGORITHMS",
    "BUILT_IN",
    "algorithm_classes",
    "algorithms_with",
    "alternative",
    "find_algorithm",
    "name_of",
]

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

_PREFERENCES = (
    "{reward_model} learns from pairs of episodes with different returns, and {ppo} or {grpo} from its scores"
)
_SUCCESSES = "{cloning} with minimum_return trains on recorded episodes that succeeded"
_ALTERNATIVES = {
    **dict.fromkeys(("dpo", "ipo", "kto", "orpo", "simpo"), _PREFERENCES),
    **dict.fromkeys(("sft", "bc"), "{cloning} trains on demonstrations"),
    **dict.fromkeys(("raft", "star"), _SUCCESSES),
    **dict.fromkeys(
        ("a2c", "a3c"), "{ppo} with epochs 1 and minibatches 1 makes one step on each batch, with a critic"
    ),
    "trpo": "{ppo} clips the ratio and, with stop_kl, ends an update early",
    **dict.fromkeys(("mcts", "vineppo"), "{monte_carlo_tree} estimates the value of a turn by rollouts from it"),
    **dict.fromkeys(("dqn", "sac"), "{ppo} trains in environments with discrete actions, through TextAdapter"),
}
"""What other libraries call an algorithm that is not here → what does the same here."""


def alternative(name: str, *, classes: bool = False) -> str | None:
    """What to use in the place of a well-known algorithm that is not here; None if the name is not known.

    Args:
        name: as a configuration or another library writes it: "dpo", "DPO", "DPOTrainer".
        classes: name algorithms by their classes, for a user in Python.
    """
    known = {key: path.partition(":")[2] if classes else key for key, path in BUILT_IN.items()}
    plain = name.lower().removesuffix("trainer").removesuffix("config")
    if plain in known and plain != name.lower():
        return f"Trainer(model, env, {known[plain]}(…))" if classes else known[plain]
    found = _ALTERNATIVES.get(plain)
    return found and found.format_map(known)


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


def algorithms_with(setting: str) -> dict[str, type[Algorithm]]:
    """The algorithms that have a hyperparameter of this name, by name."""
    return {name: kind for name, kind in algorithm_classes().items() if setting in kind.__dataclass_fields__}


def name_of(algorithm: Algorithm) -> str:
    """The name of an algorithm: that of `ALGORITHMS`, or its `module:Class`."""
    kind = type(algorithm)
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, known in ALGORITHMS.items() if known == path), path)
