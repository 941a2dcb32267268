"""The rate of episodes and what limits it, measured on environments whose times are known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import pytest

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.model.chat import CompactChat
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.rate import Rate, pace
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from tests.trainers.tiny import tiny_model

MODEL = tiny_model("llama", seed=3)
RESET_S, STEP_S, TURNS = 0.03, 0.05, 3


@dataclass
class Timing:
    grading_s: float


class Slow(gymnasium.Env[str, str]):
    """Sleeps in every call; the last step says how much of it was grading."""

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, grading: Any = None) -> None:
        self.grading, self.turn = grading, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        time.sleep(RESET_S)
        return "w1", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        time.sleep(STEP_S)
        ends = self.turn == TURNS
        return "w2", 0.0, ends, False, {"timing": self.grading} if ends and self.grading is not None else {}


def played(envs: list[Slow], episodes: int, *, lockstep: bool = False) -> Rate:
    rate = Rate()
    engine = EmbeddedEngine(MODEL, n_slots=len(envs), max_tokens=120)
    starts = [EpisodeStart(seed) for seed in range(episodes)]
    settings = EpisodeSettings(Limits(max_new_tokens=4))
    chat = CompactChat(MODEL.tokenizer)
    assert len(list(iter_episodes(engine, chat, envs, starts, settings, lockstep=lockstep, rate=rate))) == episodes
    return rate


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("grading", [Timing(0.04), {"grading_s": 0.04}], ids=["attribute", "key"])
def test_time_of_environments_is_distinguished_from_their_tests(grading: Any, lockstep: bool) -> None:
    rate = played([Slow(grading), Slow(grading)], 4, lockstep=lockstep)
    assert rate.episodes == 4
    assert rate.tests_s == pytest.approx(4 * 0.04)
    assert rate.environment_s >= 4 * (RESET_S + TURNS * STEP_S - 0.04)  # a sleep is never shorter than asked
    assert rate.model_s > 0
    assert rate.model_s + rate.environment_s + rate.tests_s <= 2 * rate.seconds  # of two episodes at once


def test_grading_is_never_longer_than_its_step() -> None:
    rate = played([Slow(Timing(1e9))], 1)
    assert STEP_S <= rate.tests_s <= rate.seconds
    assert rate.environment_s >= RESET_S + (TURNS - 1) * STEP_S


def test_environment_that_says_nothing_of_tests_has_none() -> None:
    assert played([Slow()], 1).tests_s == played([Slow({"seconds": 1.0})], 1).tests_s == 0.0


def test_a_slow_model_limits_the_rate() -> None:
    class SlowEngine(EmbeddedEngine):
        def step(self) -> Any:
            time.sleep(0.2)
            return super().step()

    rate = Rate()
    engine = SlowEngine(MODEL, n_slots=1, max_tokens=120)
    settings = EpisodeSettings(Limits(max_new_tokens=4))
    list(iter_episodes(engine, CompactChat(MODEL.tokenizer), [Slow()], [EpisodeStart(0)], settings, rate=rate))
    assert rate.model_s >= TURNS * 0.2


def test_metrics_of_workers_are_of_the_episodes_since_the_last_call() -> None:
    envs = [Slow(Timing(0.04)) for _ in range(2)]
    workers = LocalWorkers.embedded(MODEL, CompactChat(MODEL.tokenizer), envs, max_tokens=120)
    assert "episodes_per_second" not in workers.metrics()
    settings = EpisodeSettings(Limits(max_new_tokens=4))
    for episodes in (2, 4):
        began = time.monotonic()
        workers.play([EpisodeStart(seed) for seed in range(episodes)], settings)
        elapsed = time.monotonic() - began
        metrics = workers.metrics()
        shares = [value for name, value in metrics.items() if name.startswith("episode_time/")]
        assert len(shares) == 3 and sum(shares) == pytest.approx(1.0)
        assert metrics["episodes_per_second"] >= episodes / elapsed
    assert "episodes_per_second" not in workers.metrics()


def test_pace_names_what_takes_most_of_an_episode() -> None:
    rate = Rate(episodes=30, seconds=2.0, model_s=2.0, environment_s=5.0, tests_s=3.0)
    assert rate.metrics() == {
        "episodes_per_second": 15.0,
        "episode_time/model": 0.2,
        "episode_time/environment": 0.5,
        "episode_time/tests": 0.3,
    }
    expected = "15.0 episodes/s while playing, limited by the environment (50 % of an episode; tests 30 %, model 20 %)"
    assert pace({"loss": 1.0, **rate.metrics()}) == expected
    game = Rate(episodes=30, seconds=2.0, model_s=3.0, environment_s=1.0).metrics()
    assert pace(game) == "15.0 episodes/s while playing, limited by the model (75 % of an episode; environment 25 %)"
    assert pace({"loss": 1.0}) == "" == pace(Rate().metrics())
