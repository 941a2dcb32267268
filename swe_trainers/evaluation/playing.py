"""Many episodes side by side, each environment on a thread of its own, until all are played or it makes no sense."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium

from swe_trainers.errors import EngineError
from swe_trainers.evaluation.conversation import Model
from swe_trainers.evaluation.environment import Item
from swe_trainers.evaluation.episode import Episode, TurnLimits, play
from swe_trainers.rollout.workers import EnvThreads, is_infrastructure_failure

__all__ = ["Watcher", "play_all"]

_LEAVING_S = 2.0
"""So long those who are in the middle of something are waited for when all is stopped."""


@dataclass(frozen=True)
class Watcher:
    """Who is told what happens, from the thread that called `play_all`.

    Attributes:
        started: an episode began.
        ended: an episode ended, and is to be kept.
    """

    started: Callable[[Item], None]
    ended: Callable[[Episode], None]


def play_all(
    envs: Sequence[gymnasium.Env[str, str]],
    model: Model,
    items: Sequence[Item],
    watcher: Watcher,
    *,
    limits: TurnLimits,
) -> None:
    """Play every item once; the environments are closed afterwards.

    Args:
        envs: as many episodes are played at once.
        model: who plays.
        items: taken in order, as environments become free.
        watcher: is told.
        limits: that the environment does not keep itself.

    Raises:
        EngineError: the model's server failed in so many episodes in a row that it must be down.
        ConfigurationError: the server will never answer.
        Exception: a bug of the environment, as `is_infrastructure_failure` tells it from a failure.
    """
    threads = EnvThreads(envs)
    stop = threading.Event()
    waiting = deque(items)
    playing: dict[int, Episode] = {}  # by ticket
    patience, failures = 2 * len(envs) + 1, 0

    def begin(number: int) -> None:
        if waiting:
            episode = Episode(waiting.popleft())
            env = envs[number]
            playing[threads.ask(number, lambda: play(env, model, episode, limits, stop))] = episode
            watcher.started(episode.item)

    try:
        for number in range(len(envs)):
            begin(number)
        while playing:
            answer = threads.answers.get()
            episode = playing.pop(answer.ticket)
            if answer.error is not None:
                if not is_infrastructure_failure(answer.error):
                    raise answer.error
                episode.fail(f"{type(answer.error).__name__}: {answer.error}")
            begin(answer.env)  # before anything is written: a free core has something to do
            watcher.ended(episode)
            failures = failures + 1 if episode.server_failed else 0
            if failures >= patience:
                raise EngineError(
                    f"the model's server failed in {failures} episodes in a row, the last time so: "
                    f"{episode.failure_reason}. Once it is up again, --resume goes on"
                )
    finally:
        stop.set()
        for number, env in enumerate(envs):
            threads.ask(number, env.close)
        # A reset, a command or an answer may take its time; sandboxes that are left end with this process.
        threads.close(_LEAVING_S / len(envs) if playing else None)
