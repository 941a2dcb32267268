"""Asynchronous rollouts: bounded staleness, correction for it, and reproducible seeds."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import make_env, make_model, make_rollouts, run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.model.chat import chat_format
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.statistics import staleness, staleness_statistics
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import EnvironmentConfig, ModelConfig, RolloutConfig, RunConfig, run_config
from swe_trainers.trainer import Trainer
from tests.trainers.learning.tiny import trajectory
from tests.trainers.tiny import TINY, full_logprobs

ECHO = EnvironmentConfig(
    id="tests.trainers.scale.rays:Echo-v0", kwargs={"wait_s": 0.002}, parallel=3, max_tokens=64, max_new_tokens=3
)
MODEL = ModelConfig(architecture=TINY, tokenizer="words", words=("a b c d",))


def played_over_updates(
    updates: int, bound: int, *, partial: bool, resampled: int = -1
) -> tuple[list[list[Trajectory]], list[dict[str, torch.Tensor]], list[dict[str, float]]]:
    """Episodes and metrics of each update, and the weights before it; weights are changed at random, not trained."""
    envs = [make_env(ECHO) for _ in range(ECHO.parallel)]
    model = make_model(MODEL, envs[0], seed=0)
    chat, rollout = chat_format(model.tokenizer, MODEL.chat), RolloutConfig(max_staleness=bound, partial=partial)
    generation = connect(
        EngineConfig(), model, None, n_slots=3, max_tokens=64, folder=Path(), training=True, ahead=bound > 0
    )  # type: ignore[arg-type]
    rollouts = make_rollouts(LocalWorkers(generation, chat, envs, envs), ECHO, rollout, 7)
    found, weights, metrics = [], [], []
    shake = torch.Generator().manual_seed(0)
    try:
        for update in range(updates):
            weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            ahead = min(bound, updates - 1 - update) if bound else None
            found.append(rollouts.play(6, Sampling(), update=update, ahead=ahead))
            if update == resampled:
                found[-1] += rollouts.play(6, Sampling(), update=update, attempt=1, ahead=ahead)
            metrics.append(rollouts.metrics())
            time.sleep(0.03)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=shake))
            if update == 2:
                assert len(rollouts.play(4, Sampling(), update=update + 1, evaluation=True)) == 4
    finally:
        rollouts.close()
    return found, weights, metrics


def test_training_may_go_on_after_the_configured_updates() -> None:
    env = make_env(ECHO)
    model = make_model(MODEL, env, seed=0)
    chat, rollout = chat_format(model.tokenizer, MODEL.chat), RolloutConfig(max_staleness=1)
    with ExitStack() as stack:
        generation = connect(
            EngineConfig(), model, stack, n_slots=1, max_tokens=64, folder=Path(), training=True, ahead=True
        )
        rollouts = make_rollouts(LocalWorkers(generation, chat, [env], [env]), ECHO, rollout, 7)
        stack.callback(rollouts.close)
        algorithm = PPO(max_updates=2, episodes_per_update=4, epochs=1, correction="truncate")
        assert Trainer(model, rollouts, algorithm, rollout=rollout).train(updates=4).updates == 4


@pytest.mark.parametrize(("bound", "partial"), [(1, False), (1, True), (3, True)])
def test_staleness_is_bounded_and_each_token_has_the_logprob_of_its_weights(bound: int, partial: bool) -> None:
    found, weights, metrics = played_over_updates(7, bound, partial=partial, resampled=4)
    now, _, _ = played_over_updates(7, 0, partial=False, resampled=4)
    model = make_model(MODEL, make_env(ECHO), seed=0)
    ages: list[int] = []
    for update, (episodes, expected) in enumerate(zip(found, now, strict=True)):
        assert [t.seed for t in episodes] == [t.seed for t in expected]
        for episode in episodes:
            versions = np.array(episode.weight_versions)
            drawn = versions[episode.action_mask]
            assert (np.diff(drawn) >= 0).all()
            assert partial or len(set(drawn.tolist())) == 1
            ages += staleness(episode, update).tolist()
            truth = np.zeros(len(versions), dtype=np.float32)
            for version in set(drawn.tolist()):
                model.load_state_dict(weights[version])
                truth = np.where(versions == version, full_logprobs(model, episode.token_ids.tolist()), truth)
            np.testing.assert_allclose(episode.rollout_logprobs, truth, rtol=1e-3, atol=1e-3)
    assert 0 in ages and 0 < max(ages) <= bound
    assert all(row["idle/learner_seconds"] >= 0 and row["idle/rollout_seconds"] >= 0 for row in metrics)


def test_staleness_is_the_number_of_updates_since_sampling() -> None:
    three = trajectory([1, 2, 3, 4], [False, True, True, True], [0, 0, 0, 1])
    three = replace(three, weight_versions=(-1, 4, 5, 5))
    failed = replace(trajectory([1, 2], [False, True], [0, 1]), weight_versions=(-1, 0), valid=False)
    assert staleness(three, 6).tolist() == [2, 1, 1]
    assert staleness_statistics([three, failed], 6) == {
        "staleness/mean": 4 / 3, "staleness/max": 2.0, "staleness/share_1": 2 / 3, "staleness/share_2": 1 / 3,
    }  # fmt: skip
    assert staleness_statistics([trajectory([1, 2], [False, True], [0, 1])], 3) == {}


def configuration(folder: Path, *, trainer: Any = (), **sections: Any) -> RunConfig:
    return run_config(
        {
            "environment": {"id": ECHO.id, "parallel": 8, "max_tokens": 64, "max_new_tokens": 1},
            "model": {"architecture": {**TINY, "hidden_size": 32}, "tokenizer": "words", "words": ["a b c d"]},
            "trainer": {
                "algorithm": "ppo", "max_updates": 3, "episodes_per_update": 32, "minibatches": 2, "epochs": 2,
                "learning_rate": 3e-3, "adam_epsilon": 1e-5, "correction": "truncate", **dict(trainer),
            },
            "rollout": {"max_staleness": 1, "partial": True},
            "output_dir": str(folder / "run"),
            "threads": 1,
            **sections,
        }
    )  # fmt: skip


def test_policy_learns_from_asynchronous_rollouts_and_resumes(tmp_path: Path) -> None:
    evaluation = {"episodes": 200, "success_above": 2.5}
    run_experiment(configuration(tmp_path, evaluation=evaluation), console=False)
    longer = configuration(tmp_path, trainer={"max_updates": 45}, evaluation=evaluation)
    learner = run_experiment(longer, console=False, resume="changed")
    assert learner.updates == 45
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == list(range(46))
    assert rows[0]["eval/return"] < 1.2 and rows[-1]["eval/return"] > 2.4
    assert max(row["staleness/max"] for row in rows[1:]) == 1
    assert all("idle/learner_seconds" in row and row["correction"] > 0 for row in rows[1:])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trainer": {"correction": "none"}}, r"Try: trainer\.correction truncate"),
        ({"rollout": {"partial": True}}, "no effect with max_staleness 0"),
        ({"rollout": {"max_staleness": -1}}, "expected 0 or more"),
        ({"engine": {"device": "cpu", "kind": "vllm", "url": "http://127.0.0.1:1"}}, "a server has its own"),
        ({"engine": {"device": "cpu"}, "rollout": {}}, r"engine\.device: has no effect"),
        ({"environment": {"id": ECHO.id, "lockstep": True}}, "no effect on lockstep"),
        ({"environment": {"id": ECHO.id, "lockstep": True}, "rollout": {}, "scale": {"ray": {}}}, "scale.ray: has no"),
        ({"scale": {"ray": {"workers": 0}}}, "workers: got 0"),
        ({"scale": {"ray": {"cpus_per_worker": -1}}}, "cpus_per_worker: got -1"),
    ],
)
def test_settings_without_effect_are_rejected(tmp_path: Path, sections: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configuration(tmp_path, **sections)
