"""A small run of `make chaos`: a sandbox server, the pool and the generation server are killed during training."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import pytest

import swegym_env  # noqa: F401 - registers the environments
from benchmarks.chaos.__main__ import cloned_model, faults
from benchmarks.chaos.ledger import Ledger, RunsOnce, read_ledger
from benchmarks.chaos.run import Deaths, Setting, train


@pytest.mark.campaign
def test_training_survives_the_death_of_its_server_pool_and_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWEGYM_RUNDIR", "SWEGYM_TOKEN", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the run sets them; they are restored afterwards
    model = cloned_model(tmp_path / "base", demonstrations=100, epochs=1)
    setting = Setting(str(model), updates=2, episodes=12, held_out=0, ranks=1, parallel=4, servers=2, lease_s=4.0)
    deaths = Deaths(server=0.8, pool=1.2, engine=1.6, rank=0.0, most=1)
    outcome = train(setting, tmp_path / "run", seed=0, deaths=deaths)
    assert faults(outcome, setting, []) == []
    assert outcome.deaths == {"server": 1, "pool": 1, "engine": 1}
    assert outcome.ledger.commands >= 24 and all(math.isfinite(each) for each in outcome.rewards)


def test_ledger_counts_commands_that_ran_twice_or_never(tmp_path: Path) -> None:
    env = RunsOnce(
        gymnasium.make("SWEBench-v0", dataset="mini-edit", split="test", action_format="raw", pool=0), str(tmp_path)
    )
    env.reset(seed=0)
    assert "seen" in env.step("echo seen")[0]
    env.step("if then '")  # a syntax error
    assert read_ledger(tmp_path) == Ledger(2, 0, 0)
    env.step("echo 3 >>/tmp/commands-that-ran")  # as if it had been sent again, and run again
    assert read_ledger(tmp_path) == Ledger(3, 1, 0)
    env.step("sed -i 1d /tmp/commands-that-ran; echo 5 >>/tmp/commands-that-ran")
    assert read_ledger(tmp_path) == Ledger(4, 1, 1)
    assert "more than once" in env.step("true")[0]  # the command reports it itself
    env.close()
