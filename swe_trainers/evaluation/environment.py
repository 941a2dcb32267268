"""The episodes of an evaluation: the environment by id, its parameters, and its instances."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from swe_trainers.config import named, similar
from swe_trainers.errors import ConfigurationError
from swe_trainers.registry import search_path_hint
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.environments import make_text_env
from swe_trainers.rollout.settings import EpisodeStart
from swe_trainers.run_config import WrapperConfig

__all__ = ["Item", "choose_items", "instance_ids", "make_environment", "parameters"]

_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+))?")


@dataclass(frozen=True)
class Item:
    """One planned episode.

    Attributes:
        instance_id: of the task; if the environment does not name its instances, the number of the episode.
        sample: number among the episodes of the same instance, from 0.
        seed: of the environment; samples of one instance start from the same state.
        stream: entropy of the sampling, if it happens in this process.
        named: pass the instance's id to `reset`.
    """

    instance_id: str
    sample: int
    seed: int
    stream: tuple[int, ...]
    named: bool

    @property
    def start(self) -> EpisodeStart:
        """Arguments of the reset."""
        return EpisodeStart(self.seed, {"instance_id": self.instance_id} if self.named else None, stream=self.stream)


def parameters(name: str) -> frozenset[str] | None:
    """Names of the constructor's parameters; None if it accepts any.

    Raises:
        ConfigurationError: no such environment, or it cannot be imported.
    """
    module, _, rest = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        entry = gymnasium.spec(rest).entry_point
        creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        taken = inspect.signature(creator).parameters.values() if creator is not None else ()
    except (gymnasium.error.Error, ImportError, AttributeError, ValueError) as error:
        reason = str(error).splitlines()[0] + search_path_hint(module)
        raise ConfigurationError(f"--env {name}: {reason}") from error
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken):
        return None
    return frozenset(each.name for each in taken)


def make_environment(
    name: str,
    arguments: Mapping[str, Any],
    *,
    adapter: bool,
    adapter_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[WrapperConfig] = (),
) -> gymnasium.Env[str, str]:
    """A text environment with its wrappers; `adapter` wraps one with numbers in `TextAdapter`.

    Raises:
        ConfigurationError: no such environment or wrapper, or arguments that it does not take.
    """

    def wrapped(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        for wrapper in wrappers:
            env = named(wrapper.name, "wrapper")(env, **wrapper.kwargs)
        return TextAdapter(env, **(adapter_kwargs or {})) if adapter else env

    return make_text_env(name, arguments, wrapped, hint="--adapter text")


def instance_ids(env: gymnasium.Env[str, str]) -> tuple[str, ...] | None:
    """The instances of an environment, in the order of its dataset; None if it does not name them."""
    if not env.has_wrapper_attr("instance_ids"):
        return None
    return tuple(str(name) for name in env.get_wrapper_attr("instance_ids"))


def choose_items(
    known: Sequence[str] | None,
    *,
    instances: Sequence[str] = (),
    select: str | None = None,
    episodes: int | None = None,
    samples: int = 1,
    seed: int = 0,
) -> list[Item]:
    """Plan the episodes: every instance once before any is repeated.

    Args:
        known: the environment's instances; None if it does not name them.
        instances: ids to evaluate; empty for all.
        select: a slice of those: `:50`, `100:200`, `::10`.
        episodes: how many, for an environment that does not name its instances; each has its own seed.
        samples: episodes of each instance.
        seed: an episode's seeds are a function of this, its place and its sample.
    Raises:
        ConfigurationError: no such instance, no slice, nothing is left, or an option that would have no effect.
    """
    if known is None:
        if instances or select is not None:
            raise ConfigurationError(
                "--instance, --slice: this environment does not name its instances. Try: --episodes"
            )
        names = [f"episode-{number:05d}" for number in range(episodes or 100)]
    else:
        if episodes is not None:
            raise ConfigurationError(
                "--episodes: this environment names its instances. Try: --slice, --instance, --samples"
            )
        names = _chosen(known, instances, select)
    seeds = np.random.SeedSequence([seed, 0]).generate_state(len(names)).tolist()
    draws = np.random.SeedSequence([seed, 1]).generate_state(len(names) * samples).tolist()
    return [
        Item(name, sample, seeds[place], (draws[sample * len(names) + place],), known is not None)
        for sample in range(samples)
        for place, name in enumerate(names)
    ]


def _chosen(known: Sequence[str], instances: Sequence[str], select: str | None) -> list[str]:
    for name in instances:
        if name not in known:
            raise ConfigurationError(
                f"--instance {name}: not among the {len(known)} of the dataset{similar(name, known)}"
            )
    names = list(dict.fromkeys(instances)) or list(known)
    if select is not None:
        match = _SLICE.fullmatch(select)
        if match is None or match[3] == "0":
            raise ConfigurationError(f"--slice: got {select!r}, expected one such as :50, 100:200 or ::10")
        names = names[slice(*(None if part is None else int(part) for part in match.groups()))]
    if not names:
        raise ConfigurationError(f"--slice {select}: leaves none of the {len(known)} instances")
    return names
