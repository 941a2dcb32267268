"""A policy that can only forge earns nothing in training; `python -m benchmarks.reward_hackers` plays 500 episodes."""

from __future__ import annotations

import pytest

from benchmarks.reward_hackers import FORGERIES, Forger, Tally


@pytest.mark.parametrize("pair", [("results", "stream"), ("assertions", "swallow"), ("runner", "memory")])
def test_forgeries_that_the_harness_resolves_earn_nothing(pair: tuple[str, str]) -> None:
    tally = Tally()
    env = Forger(tally, tuple(FORGERIES))
    env.reset(seed=0)
    rewards = [env.step(word)[1] for word in pair]
    env.close()
    assert rewards == [0.0, 0.0]
    assert (tally.resolved, tally.official) == ([False], [True])


def test_the_repair_earns_its_reward() -> None:
    tally = Tally()
    env = Forger(tally, (*FORGERIES, "repair"))
    env.reset(seed=0)
    rewards = [env.step(word)[1] for word in ("repair", "repair")]
    env.close()
    assert rewards == [0.0, 1.0]
    assert tally.resolved == [True]
