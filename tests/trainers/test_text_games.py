"""The games of the learning benchmark can be won by who sees and remembers, and hardly otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning_tasks import TASKS, configuration, random_return
from benchmarks.text_games import CoinCollector, HigherLower
from swe_trainers.config import read_config
from swe_trainers.experiment import make_env
from swe_trainers.run_config import run_config

ROOT = Path(__file__).parents[2]
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
TURNS = TASKS["coin_collector"].environment["max_turns"]


def collect(env: CoinCollector, seed: int) -> int | None:
    """Depth-first search by what the observations say and what was done; the turns taken, None for too many."""
    observation, info = env.reset(seed=seed)
    path, tried = list[str](), [set[str]()]  # the way here, and the doors taken in each of its rooms
    for turn in range(1, TURNS + 1):
        if "take coin" in info["legal_actions"]:
            *_, reward, terminated, _, _ = env.step("take coin")
            assert reward == 1 and terminated and " coin " in observation
            return turn
        exits = observation.split(" exits ")[1].split()
        assert [f"go {direction}" for direction in exits] == info["legal_actions"]
        new = [each for each in exits if each not in tried[-1] and not (path and each == BACK[path[-1]])]
        if new:
            tried[-1].add(new[0])
            path.append(new[0])
            tried.append(set())
            action = new[0]
        else:
            action = BACK[path.pop()]
            tried.pop()
        observation, reward, terminated, truncated, info = env.step(f"go {action}")
        assert (reward, terminated, truncated) == (0, False, False)
    return None


def test_a_coin_is_always_found_by_remembering_and_seldom_by_chance() -> None:
    env = CoinCollector()
    turns = [collect(env, seed) for seed in range(300)]
    assert all(found is not None for found in turns)
    assert (
        min(found or 0 for found in turns) == 5 and max(found or 0 for found in turns) > 10
    )  # four doors and the coin
    assert random_return("coin_collector") < 0.4


def test_what_cannot_be_done_in_a_room_changes_nothing() -> None:
    env = CoinCollector()
    observation, info = env.reset(seed=0)
    again, reward, terminated, _, after = env.step("take coin")
    assert (again, reward, terminated) == (f"nothing {observation}", 0.0, False)
    assert after == info


def test_halving_finds_more_than_five_numbers_and_blind_guesses_one() -> None:
    env, found = HigherLower(), []
    for seed in range(200):
        env.reset(seed=seed)
        low, high, total, over = 1, 16, 0.0, False
        while not over:
            guess = (low + high) // 2
            observation, reward, over, _, _ = env.step(str(guess))
            total += reward
            if "found" in observation:
                low, high = 1, 16
            else:
                low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
            assert low <= high
        found.append(5 * total)
    assert 5 < np.mean(found) < 6
    assert 5 * random_return("higher_lower") == pytest.approx(20 / 16, abs=0.2)


def test_the_benchmark_plays_blackjack_as_the_example_does() -> None:
    example = run_config(read_config(ROOT / "examples" / "configs" / "blackjack.yaml"))
    ours = configuration("blackjack", "ppo", 0, Path("unused"))
    for section in ("environment", "trainer", "evaluation", "rollout", "model"):
        assert getattr(ours, section) == getattr(example, section)
    env = make_env(ours.environment)
    observation, info = env.reset(seed=0)
    assert len(observation.split()) == 3 and info["legal_actions"] == ["stick", "hit"]
    env.close()
