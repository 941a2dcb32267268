"""What is played: environments by id, what they take, and the instances that they name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.making import make_text_env

__all__ = ["Item", "choose_items", "instance_ids", "make_environment", "parameters"]

_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+))?")


@dataclass(frozen=True)
class Item:
    """One episode to be played.

    Attributes:
        instance_id: of the task; of an environment that names none, the number of the episode.
        sample: its number among those of the same instance, from 0.
        seed: of the environment; samples of one instance begin alike.
        draw: seed of the sampling, where it happens in this process.
        named: whether the environment is asked for the instance by its id.
    """

    instance_id: str
    sample: int
    seed: int
    draw: int
    named: bool


def parameters(name: str) -> frozenset[str] | None:
    """What an environment's constructor takes by name; None where it takes anything.

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
        raise ConfigurationError(f"--env {name}: {str(error).splitlines()[0]}") from error
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken):
        return None
    return frozenset(each.name for each in taken)


def make_environment(name: str, arguments: Mapping[str, Any], *, adapter: bool) -> gymnasium.Env[str, str]:
    """An environment that speaks text; `adapter` puts number spaces in words. Raises ConfigurationError."""

    def wrapped(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return TextAdapter(env) if adapter else env

    return make_text_env(name, arguments, wrapped, hint="--adapter text")


def instance_ids(env: gymnasium.Env[str, str]) -> tuple[str, ...] | None:
    """The instances that an environment names, in the order of its dataset; None where it names none."""
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
    """What is to be played, all instances once before any is played again.

    Args:
        known: the instances that the environment names; None where it names none.
        instances: those that are meant; empty for all.
        select: a slice of what is left: `:50`, `100:200`, `::10`.
        episodes: how many, of an environment without names; each has a seed of its own.
        samples: of each.
        seed: an episode's seeds are a function of this, its place and its sample.
    Raises:
        ConfigurationError: no such instance, no slice, nothing left, or an option that would have no effect.
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
        Item(name, sample, seeds[place], draws[sample * len(names) + place], known is not None)
        for sample in range(samples)
        for place, name in enumerate(names)
    ]


def _chosen(known: Sequence[str], instances: Sequence[str], select: str | None) -> list[str]:
    for name in instances:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigurationError(f"--instance {name}: not among the {len(known)} of the dataset{hint}")
    names = list(dict.fromkeys(instances)) or list(known)
    if select is not None:
        match = _SLICE.fullmatch(select)
        if match is None or match[3] == "0":
            raise ConfigurationError(f"--slice: got {select!r}, expected one such as :50, 100:200 or ::10")
        names = names[slice(*(None if part is None else int(part) for part in match.groups()))]
    if not names:
        raise ConfigurationError(f"--slice {select}: leaves none of the {len(known)} instances")
    return names
