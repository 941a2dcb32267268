"""A resumed run equals an uninterrupted run; limits, callbacks and cloning."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.algorithm import Algorithm, RolloutPlan
from swe_trainers.algorithms.cloning import Cloning, cloning_loss
from swe_trainers.cli.main import main
from swe_trainers.errors import CheckpointError
from swe_trainers.learning.batch import Batch
from swe_trainers.logging import read_metrics
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.demonstrations import Demonstration, demonstrated
from swe_trainers.run_config import EvaluationConfig
from swe_trainers.trainer import Trainer
from tests.trainers.algorithms.games import ECHO_PPO, WORDS, Player
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories
from tests.trainers.ranks import Forked

SETTINGS = dataclasses.replace(ECHO_PPO, kl_coefficient=0.05, kl_target=0.001, kl_horizon=100, warmup_updates=2)
FROZEN_LAKE = Path(__file__).parents[3] / "examples" / "configs" / "frozen_lake.yaml"


def ppo_run(directory, max_updates, settings=SETTINGS):
    """A run as in a new process: new model, optimizer and environments, and the files of the directory."""
    player = Player()

    def draw(trainer, metrics):
        metrics |= {"python": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1).item()}  # noqa: NPY002

    trainer = Trainer(
        player.model, algorithm=settings, play=player.play, callbacks=[draw], output_dir=directory, checkpoint_every=1
    )
    for seed_all in (torch.manual_seed, np.random.seed, random.seed):
        seed_all(0)  # a checkpoint restores its own random states
    return trainer.train(max_updates)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_two_updates_and_two_more_equal_four_updates_bit_for_bit(tmp_path):
    whole = ppo_run(tmp_path / "whole", 4).state_dict()
    ppo_run(tmp_path / "parts", 2)
    parts = ppo_run(tmp_path / "parts", 4).state_dict()
    assert whole.pop("seconds") > 0
    assert parts.pop("seconds") > 0
    assert same(whole, parts)
    assert len({row["python"] for row in read_metrics(tmp_path / "parts" / "metrics.jsonl")}) == 4
    clocks = {"time", "seconds", "seconds/rollout", "seconds/update", "tokens_per_second"}
    rows = [
        [{k: v for k, v in row.items() if k not in clocks} for row in read_metrics(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "parts")
    ]
    assert rows[0] == rows[1]
    assert [row["update"] for row in rows[0]] == [1, 2, 3, 4]


def test_crash_before_the_first_checkpoint_leaves_one_initial_evaluation(tmp_path):
    player = Player()

    def dies(update, attempt):
        raise SystemExit("killed before the first update was saved")

    def start(play):
        evaluate = lambda _: {"return": 0.5}  # noqa: E731
        Trainer(player.model, algorithm=ECHO_PPO, play=play, evaluate=evaluate, output_dir=tmp_path).train(1)

    with pytest.raises(SystemExit):
        start(dies)
    start(player.play)
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1]


def test_comparing_kernel_back_ends_does_not_change_the_run(tmp_path):
    learners = []
    for every in (0, 2):
        player = Player()
        torch.manual_seed(0)
        trainer = Trainer(
            player.model,
            algorithm=ECHO_PPO,
            play=player.play,
            output_dir=tmp_path / str(every),
            compare_kernels_every=every,
        )
        learners.append(trainer.train(3).state_dict())
    rows = read_metrics(tmp_path / "2" / "metrics.jsonl")
    assert ["kernels/grad_hidden_error" in row for row in rows] == [True, False, True]
    assert 0 < rows[0]["kernels/logprobs_error"] < 1e-5
    for state in learners:
        state.pop("seconds")
    assert same(*learners)


def test_finished_stage_does_nothing_when_started_again(tmp_path):
    first = ppo_run(tmp_path, 2)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = ppo_run(tmp_path, 2)
    assert again.updates == 2
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert same(first.model.state_dict(), again.model.state_dict())


def test_kl_coefficient_that_is_changed_for_the_resume_replaces_the_adapted_one(tmp_path):
    adapted = ppo_run(tmp_path, 2).state_dict()
    same, changed = (dataclasses.replace(SETTINGS, kl_coefficient=one).start(Player().model) for one in (0.05, 5.0))
    same.load_state_dict(adapted)
    changed.load_state_dict(adapted)
    assert same.kl.coefficient == adapted["kl_coefficient"] != 0.05
    assert changed.kl.coefficient == 5.0


class Counting(Algorithm):
    """Trains nothing and counts."""

    rollout_plan = RolloutPlan(episodes=1)

    def update(self, learner, episodes):
        time.sleep(0.01)
        return {"reward_mean": float(learner.updates)}

    def total_updates(self, episodes=None):
        return 7


def test_update_and_time_limits_evaluation_interval_and_stopping_callbacks(tmp_path):
    def run(name, *, every=0, **options):
        trainer = Trainer(
            TinyPolicy(),
            algorithm=Counting(),
            play=lambda update, attempt: [],
            evaluate=lambda _: {"score": 1.0},
            evaluation=EvaluationConfig(every=every),
            output_dir=tmp_path / name,
            learner=ECHO_PPO.learner(TinyPolicy()),
            **options,
        )
        learner = trainer.train()
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return learner.updates, [row["update"] for row in rows if "eval/score" in row]

    def stop_at_3(trainer, metrics):
        if metrics["reward_mean"] >= 3:
            trainer.stop()

    assert run("all", every=3) == (7, [0, 3, 6, 7])
    assert run("ends") == (7, [0, 7])
    assert run("stopped", callbacks=[stop_at_3]) == (4, [0, 4])
    assert run("stopped") == (4, [0, 4])  # a run that was stopped is not continued
    updates, evaluated = run("timed", max_seconds=0.025)
    assert updates < 7
    assert evaluated == [0, updates]


def test_evaluations_count_as_time_of_the_run(tmp_path):
    def evaluate(_):
        time.sleep(0.2)
        return {"score": 1.0}

    trainer = Trainer(
        TinyPolicy(),
        algorithm=Counting(),
        play=lambda update, attempt: [],
        evaluate=evaluate,
        evaluation=EvaluationConfig(every=1),
        output_dir=tmp_path,
        max_seconds=0.5,
    )
    assert 0 < trainer.train().updates < 4


def cloned(model, episodes, settings, directory, updates=None, seed=0):
    learner = settings.learner(model, seed=seed)
    options = {"demonstrations": episodes, "learner": learner, "output_dir": directory, "checkpoint_every": 1}
    return Trainer(model, algorithm=settings, **options).train(updates).state_dict()


def test_checkpoint_of_another_model_is_a_one_line_error(tmp_path):
    episodes = random_trajectories(4)
    cloned(TinyPolicy(), episodes, Cloning(epochs=2), tmp_path)
    with pytest.raises(CheckpointError, match="does not fit this model") as caught:
        cloned(TinyPolicy(width=4), episodes, Cloning(epochs=2), tmp_path)
    assert "\n" not in str(caught.value)


def test_cloning_uses_each_demonstration_once_per_epoch_and_resumes_within_one(tmp_path):
    batch, settings = Batch.of(random_trajectories(10)), Cloning(epochs=3, minibatch_episodes=4, learning_rate=1e-2)
    assert settings.total_updates(batch) == 9

    def run(name, updates):
        return cloned(TinyPolicy(), batch, settings, tmp_path / name, updates, seed=5)

    whole = run("whole", 9)
    run("parts", 4)
    parts = run("parts", 9)
    whole.pop("seconds"), parts.pop("seconds")
    assert same(whole, parts)
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [sum(row["episodes"] for row in rows[i : i + 3]) for i in (0, 3, 6)] == [10, 10, 10]


def test_cloning_learns_the_demonstrations():
    player = Player(seed=3)
    generator = np.random.default_rng(0)
    shown = [[WORDS[i] for i in generator.integers(4, size=3)] for _ in range(256)]
    batch, held_out = (
        Batch.of([demonstrated(Demonstration(words, words), player.chat, player.model.tokenizer) for words in some])
        for some in (shown[:200], shown[200:])
    )
    settings = Cloning(learning_rate=1e-2, epochs=10, minibatch_episodes=20)
    learner = settings.learner(player.model, seed=0)
    before = cloning_loss(player.model, held_out)
    for _ in range(settings.total_updates(batch)):
        metrics = settings.update(learner, batch)
        learner.updates += 1
    assert before > 1.5
    assert cloning_loss(player.model, held_out) < 0.1
    assert metrics["loss"] < 0.1
    assert player.mean_return() > 2.8


def options(directory):
    return [str(FROZEN_LAKE), "--output_dir", str(directory), "--quiet", "--environment.lockstep",
            "--trainer.max_updates", "12", "--trainer.episodes_per_update", "16", "--evaluation.episodes", "8",
            "--evaluation.every", "6", "--checkpoint_every", "2"]  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_the_readmes_example_learns(seed, tmp_path):
    run = [str(FROZEN_LAKE), "--output_dir", str(tmp_path), "--quiet", "--seed", str(seed)]
    assert main([*run, "--trainer.max_updates", "60", "--evaluation.every", "60"]) == 0
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["eval/success"] > 0.9


def test_killed_and_resumed_run_has_the_weights_of_an_uninterrupted_run(tmp_path):
    assert main(options(tmp_path / "whole")) == 0
    run = Forked(main, options(tmp_path / "killed"), folder=tmp_path)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while run.running and not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 5):
        time.sleep(0.01)
    run.signal(signal.SIGKILL)
    assert run.wait()[0] == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model").exists()
    assert main(options(tmp_path / "killed")) == 0
    for name in ("model/model.safetensors", "model/value_head.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    rows = read_metrics(metrics)
    assert [row["update"] for row in rows] == list(range(13))
    assert [row["update"] for row in rows if "eval/success" in row] == [0, 6, 12]
    written = {"config.yaml", "training.log", "curves.png", "checkpoints"}
    assert written < {p.name for p in (tmp_path / "killed").iterdir()}
    assert LanguageModel.from_pretrained(tmp_path / "killed" / "model").tokenizer.vocab_size == 26
    log = tmp_path / "killed" / "training.log"
    assert "resumed from" in log.read_text() and "nothing is left to train" not in log.read_text()
    assert main(options(tmp_path / "killed")) == 0
    line = next(line for line in log.read_text().splitlines() if "nothing is left to train" in line)
    last = read_metrics(tmp_path / "killed" / "metrics.jsonl")[-1]
    assert f"reward_mean {last['reward_mean']:.4g}" in line and f"loss {last['loss']:.4g}" in line
    assert "raise the number of updates (swe-train: with --resume-with-changes)" in line and "--restart" in line
