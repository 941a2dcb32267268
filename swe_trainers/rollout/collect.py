"""Environments × engine → trajectories, of episodes that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import gymnasium

from swe_trainers.engines.protocol import Engine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.policy.chat import ChatFormat
from swe_trainers.rollout.collection import Collection
from swe_trainers.rollout.feed import Listed
from swe_trainers.rollout.history import HeadTail
from swe_trainers.rollout.plan import Branching, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.rollout.workers import is_infrastructure_failure

__all__ = ["Collection", "collect"]


def collect(
    engine: Engine,
    chat: ChatFormat,
    envs: Sequence[gymnasium.Env[str, str]],
    starts: Iterable[EpisodeStart],
    *,
    limits: Limits,
    sampling: Sampling | None = None,
    history: HeadTail | None = None,
    branching: Branching | None = None,
    seed: int = 0,
    lockstep: bool = False,
    is_failure: Callable[[Exception], bool] = is_infrastructure_failure,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play episodes.

    Args:
        engine: with at least as many free slots as there are environments.
        chat: how conversations become tokens.
        envs: text environments, each used by one thread at a time and left open.
        starts: one an episode, or a tree; read as environments become free.
        limits: of actions and episodes.
        sampling: how tokens are drawn; temperature 1 without truncation where not given.
        history: how a history that has outgrown `limits.max_tokens` is shortened; None ends the episode there.
        branching: where episodes fork; None for one episode a start. An environment that has `snapshot` and `restore`
            goes back by them, any other by playing the same actions again from its seed.
        seed: with an episode's place in `starts` it fixes the episode's random stream. What is sampled depends on
            neither timing nor the other episodes, but for rounding in the last digits of the logits.
        lockstep: let the environments and the engine take turns, all at once: slower, but batches have the same
            composition in every run, so that two runs are equal to the last bit.
        is_failure: tells a failure of the machine from a bug; see `is_infrastructure_failure`.
        on_episode: called with each trajectory as it ends, for progress and logs.

    Returns:
        One trajectory a start (of a tree, one an end), in the order of `starts`; with `valid=False` where the
        infrastructure failed or did not answer in time, the prompt left no room for an action, or the environment said
        so (`info["valid"]`).

    Raises:
        RolloutError: an environment broke its contract, or none of them answers any more.
        Exception: whatever an environment raised that `is_failure` denies.
    """
    feed = Listed(starts)
    Collection(
        engine, chat, envs, feed, limits, sampling or Sampling(), history, branching, seed, lockstep, is_failure,
        on_episode,
    ).play()  # fmt: skip
    return feed.trajectories
