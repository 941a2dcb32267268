"""From a configuration to a run: environments, model, engine, and the algorithm's loop around them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from swe_trainers.algorithms.reinforcement import Reinforcement
from swe_trainers.algorithms.reward_model import load_judge
from swe_trainers.algorithms.stages import Copies, Stage, make_stage
from swe_trainers.algorithms.training import train
from swe_trainers.checkpoint import Checkpoints
from swe_trainers.config import named, write_config
from swe_trainers.engines.connect import Generation, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.ranks import agreed, rank
from swe_trainers.learning.rewards import Judge, judged
from swe_trainers.logging import Run
from swe_trainers.making import make_chat, make_model, make_tokenizer
from swe_trainers.planning.architecture import weights_are_here
from swe_trainers.planning.plan import plan_run
from swe_trainers.planning.preflight import check_run
from swe_trainers.playing import Rollouts, ray_crew
from swe_trainers.plots import plot_metrics
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.recording import read_trajectories, write_trajectories
from swe_trainers.report.examples import Examples
from swe_trainers.report.html_page import RunningReport, write_report
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.crew import Crew, LocalCrew
from swe_trainers.rollout.demonstrations import read_conversations
from swe_trainers.rollout.making import make_text_env
from swe_trainers.rollout.statistics import environment_statistics, episode_statistics, staleness_statistics
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import EnvironmentConfig, EvaluationConfig, RewardConfig, RunConfig
from swe_trainers.scale.accelerated import AcceleratedCheckpoints, accelerate
from swe_trainers.scale.checkpoints import ShardedCheckpoints
from swe_trainers.scale.sharding import check_model, joined_ranks, reference, refresh, sequence_group, shard
from swe_trainers.writing import write_whole

__all__ = [
    "dry_run",
    "evaluate_run",
    "make_env",
    "make_envs",
    "make_players",
    "run_experiment",
]


def run_experiment(config: RunConfig, *, console: bool = True) -> Learner:
    """Train as configured, into `config.output_dir`; a run that is there goes on.

    Writes `config.yaml`, `training.log`, `metrics.jsonl`, `examples.jsonl`, `report.html`, `checkpoints/` and, at the
    end, `curves.png` and `model/` in Hugging Face's format.

    Args:
        config: the whole run.
        console: say what goes on to the terminal as well.
    Raises:
        TrainerError: the configuration cannot be had here, or the run failed.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    log = {"console": console, "tensorboard": config.tensorboard, "wandb_project": config.wandb_project}
    try:
        return _run(config, log)
    except OSError as error:
        raise TrainerError(
            f"{config.output_dir}: the run cannot be written: {error.strerror or error}. Try: room there. "
            "Started again where it can be, it goes on from its last checkpoint"
        ) from error


def _run(config: RunConfig, log: Mapping[str, Any]) -> Learner:
    check_run(config)
    with ExitStack() as stack:
        # What can be refused is asked for first: a wrong configuration leaves no output directory behind.
        stack.enter_context(joined_ranks(config.scale))
        model, rollouts = make_players(config, stack, training=True)
        check_model(model, config.scale)
        recorded = [] if config.demonstrations is None else _recorded(config, model)
        judge = None if config.reward is None else _judge(config.reward, model)
        run = stack.enter_context(_run_of_rank(config.output_dir, log, stack))
        write_config(config, run.directory / "config.yaml")
        learner = _train(config, model, rollouts, recorded, judge, run)
        if config.scale.fsdp:
            assert isinstance(learner.model, LanguageModel)
            refresh(model, learner.model)
        if rank() == 0:
            model.save_pretrained(run.directory / "model")
            plot_metrics(run.directory / "metrics.jsonl", run.directory / "curves.png")
            write_report([run.directory])
        run.info(
            f"done: {learner.updates} updates, {learner.episodes} episodes, {learner.seconds:.0f} s in {run.directory}"
        )
    return learner


def dry_run(config: RunConfig) -> dict[str, Any]:
    """What a run would need and what would stop it here; see `plan_run`. No model is loaded, no episode played."""
    problem, vocabulary = "", None
    try:
        with closing(make_env(config.environment, training=True)) as env:
            if config.model.path is None or weights_are_here(config.model.path):
                tokenizer = make_tokenizer(config.model, env)
                make_chat(config.model, tokenizer)
                vocabulary = tokenizer.vocab_size
    except TrainerError as error:
        problem = str(error)
    return plan_run(config, problem=problem, vocabulary=vocabulary)


def _run_of_rank(directory: Path, log: Mapping[str, Any], stack: ExitStack) -> Run:
    """The run's directory; what ranks other than the first would write goes nowhere."""
    if rank() == 0:
        return Run(directory, **log)
    nowhere = stack.enter_context(tempfile.TemporaryDirectory(prefix="swe-rank-"))
    return Run(nowhere, console=False)


def evaluate_run(config: RunConfig, output: Path, *, episodes: int) -> dict[str, float]:
    """Measure a model where the configuration measures it, on episodes that a run of the same seed is measured on.

    Writes `results.jsonl`, one object an episode, and `summary.json`.

    Args:
        config: the environment, the model and how to sample; the trainer's section is not used.
        output: made if it is not there; results that are there are replaced.
        episodes: how many.
    Returns:
        The means; see `episode_statistics`.
    Raises:
        TrainerError: the configuration cannot be had here.
        OSError: the results cannot be written.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    config = replace(config, evaluation=replace(config.evaluation, episodes=episodes))
    with ExitStack() as stack:
        _, rollouts = make_players(config, stack, training=False)
        sampling = Sampling(temperature=config.evaluation.temperature)
        played = rollouts.play(episodes, sampling, number=0, evaluation=True)
    statistics = episode_statistics(played, success_above=config.evaluation.success_above)
    rows = [
        {
            "seed": episode.seed,
            "return": float(episode.rewards.sum()),
            "turns": len(episode.turns),
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "valid": episode.valid,
            "failure_reason": episode.failure_reason,
            "info": dict(episode.info),
        }
        for episode in played
    ]
    write_whole(output / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_whole(output / "summary.json", json.dumps(statistics, indent=2) + "\n")
    return statistics


class _Lessons:
    """The episodes that the policy learns from, with a judge's rewards where there is one, and what is told of them.

    Attributes:
        lately: the episodes that were played for the last update.
    """

    def __init__(self, config: RunConfig, rollouts: Rollouts, judge: Judge | None, batches: Path) -> None:
        self._config, self._rollouts, self._judge, self._batches = config, rollouts, judge, batches
        self._staleness = config.rollout.max_staleness
        self.lately: list[Trajectory] = []
        self._earned: list[float] = []  # of the environment's own rewards, in the last update

    def play(self, update: int, attempt: int = 0) -> Sequence[Trajectory]:
        """Play an update's episodes."""
        settings, config = self._config.trainer, self._config
        assert isinstance(settings, Reinforcement)
        played = self._rollouts.play(
            settings.episodes_per_update,
            config.rollout.sampling(settings.temperature),
            number=update,
            attempt=attempt,
            episodes_per_start=settings.episodes_per_start,
            branching=settings.forks,
            ahead=min(self._staleness, settings.max_updates - 1 - update) if self._staleness else None,
        )
        self.lately = [*(self.lately if attempt else []), *played]
        if config.save_batch_every and update % config.save_batch_every == 0 and not attempt:
            write_trajectories(self._batches / f"{update:08d}.jsonl", played)
        if config.reward is None or self._judge is None:
            return played
        self._earned = [float(t.rewards.sum()) for t in played if t.valid]
        return judged(played, self._judge, weight=config.reward.weight, keep_environment=config.reward.keep_environment)

    def metrics(self, updates: int) -> dict[str, float]:
        """Of the episodes of the last update, when so many updates are done."""
        metrics = {**self._rollouts.metrics(), **environment_statistics(self.lately)}
        metrics |= staleness_statistics(self.lately, updates) if self._staleness else {}
        return {**metrics, "environment_reward_mean": float(np.mean(self._earned))} if self._earned else metrics


def _learning_stage(
    config: RunConfig, model: LanguageModel, rollouts: Rollouts, lessons: _Lessons, recorded: Sequence[Trajectory]
) -> tuple[Stage, Checkpoints | None]:
    """What learns, spread as the section `scale` says, and where it is kept; None for the loop's own choice."""
    scale, learning, copies = config.scale, model, None
    if scale.fsdp:  # the whole model plays, sharded ones learn
        group = sequence_group(scale)
        learning = shard(model.copy(), scale, group)
        copies = Copies(
            learning=lambda: shard(model.copy(), scale, group),
            frozen=lambda: reference(model, learning, scale, group),
        )
        rollouts.before_playing = lambda: refresh(model, learning)
    stage = make_stage(config.trainer, learning, seed=config.seed, play=lessons.play, recorded=recorded, copies=copies)
    directory = config.output_dir / "checkpoints" / config.algorithm
    if scale.fsdp:
        return stage, ShardedCheckpoints(directory, stage.learner, keep=config.keep_checkpoints)
    if scale.accelerate is not None:
        accelerate(stage.learner, scale.accelerate, max_grad_norm=config.trainer.max_grad_norm)
        return stage, AcceleratedCheckpoints(directory, stage.learner, keep=config.keep_checkpoints)
    return stage, None


def _train(
    config: RunConfig,
    model: LanguageModel,
    rollouts: Rollouts,
    recorded: Sequence[Trajectory],
    judge: Judge | None,
    run: Run,
) -> Learner:
    evaluation = config.evaluation
    lessons = _Lessons(config, rollouts, judge, run.directory / "batches")
    stage, checkpoints = _learning_stage(config, model, rollouts, lessons, recorded)
    report = RunningReport(run.directory)
    examples: Examples | None = None

    def evaluate(learner: Learner) -> Mapping[str, float]:
        sampling = Sampling(temperature=evaluation.temperature)
        played = rollouts.play(evaluation.episodes, sampling, number=learner.updates, evaluation=True)
        return episode_statistics(played, success_above=evaluation.success_above)

    def step(learner: Learner) -> Mapping[str, float]:
        nonlocal examples
        if rank() == 0:
            report.refresh()
            examples = examples or Examples(run.directory / "examples.jsonl", updates=learner.updates)
        number = learner.updates
        metrics = {**stage.step(learner), **lessons.metrics(learner.updates)}
        if examples is not None and number % config.checkpoint_every == 0:
            examples.keep(number, lessons.lately)
        return metrics

    return train(
        stage.learner,
        step,
        run=run,
        name=config.algorithm,
        max_updates=stage.max_updates,
        max_seconds=config.max_seconds if config.max_seconds is not None else float("inf"),
        evaluate=evaluate if evaluation.episodes else None,
        evaluate_every=evaluation.every,
        checkpoint_every=config.checkpoint_every,
        compare_kernels_every=config.compare_kernels_every,
        keep_checkpoints=config.keep_checkpoints,
        should_stop=lambda _, metrics: _succeeded(metrics, evaluation),
        checkpoints=checkpoints,
    )


def _recorded(config: RunConfig, model: LanguageModel) -> list[Trajectory]:
    """Trajectories that were recorded, or written conversations; which, their first line says."""
    path = config.demonstrations
    assert path is not None
    try:
        with path.open(encoding="utf-8") as file:
            written = '"messages"' in file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: no demonstrations can be read: {error}") from error
    if written:
        return read_conversations(path, make_chat(config.model, model.tokenizer), model.tokenizer)
    return read_trajectories(path)


def _judge(config: RewardConfig, policy: LanguageModel) -> Judge:
    if config.judge is not None:
        judge: Judge = named(config.judge, "judge")
        return judge
    assert config.model is not None
    return load_judge(config.model, policy, per_turn=config.per_turn)


def make_players(config: RunConfig, stack: ExitStack, *, training: bool) -> tuple[LanguageModel, Rollouts]:
    """The model and all that it plays in; the stack closes the environments and the engine."""
    far = config.scale.ray if training else None
    if far is None:
        played, measured = make_envs(config, stack)
        model = make_model(config.model, played[0], seed=config.seed, training=training)
    else:  # environments are where the workers are; the one here tells its words
        played = measured = []
        with closing(make_env(config.environment, training=True)) as env:
            model = make_model(config.model, env, seed=config.seed)
    chat = make_chat(config.model, model.tokenizer)

    def generation(*, leads: bool) -> Generation:
        return connect(
            config.engine,
            model,
            stack,
            n_slots=config.environment.parallel,
            max_tokens=config.environment.max_tokens,
            folder=config.output_dir / "serving",
            training=training,
            leads=leads,
            ahead=training and config.rollout.max_staleness > 0,
        )

    def local() -> Crew:
        found = generation(leads=True) if rank() == 0 else None
        agreed(None)  # a server is up before the other ranks look for it
        return LocalCrew(found or generation(leads=False), chat, played, measured, lockstep=config.environment.lockstep)

    envs = partial(make_envs, config)
    crew = local() if far is None else ray_crew(config, far, model, chat, envs, generation, stack)
    rollouts = Rollouts(
        model, chat, played, measured, config.environment, config.seed, rollout=config.rollout, crew=crew
    )
    stack.callback(rollouts.close)
    return model, rollouts


def make_envs(
    config: RunConfig, stack: ExitStack
) -> tuple[list[gymnasium.Env[str, str]], list[gymnasium.Env[str, str]]]:
    """Environments to learn in and to be measured in, as many, which the stack closes; they may be the same."""

    def envs(*, training: bool) -> list[gymnasium.Env[str, str]]:
        return [
            stack.enter_context(closing(make_env(config.environment, training=training)))
            for _ in range(config.environment.parallel)
        ]

    played = envs(training=True)
    apart = config.environment.training_wrappers and config.evaluation.episodes
    return played, envs(training=False) if apart else played


def make_env(config: EnvironmentConfig, *, training: bool = False) -> gymnasium.Env[str, str]:
    """An environment with its wrappers.

    Args:
        config: the environment's section.
        training: put the wrappers for training around it too.
    Raises:
        ConfigurationError: no such environment or wrapper, arguments that it does not take, or one that speaks no text.
    """

    def wrapped(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        for wrapper in (*config.wrappers, *(config.training_wrappers if training else ())):
            env = named(wrapper.name, "wrapper")(env, **wrapper.kwargs)
        return TextAdapter(env, **config.adapter_kwargs) if config.adapter == "text" else env

    return make_text_env(config.id, config.kwargs, wrapped, hint="--environment.adapter text")


def _succeeded(metrics: Mapping[str, float], evaluation: EvaluationConfig) -> bool:
    bar = evaluation.stop_at_success
    return bar is not None and metrics.get("eval/success", 0.0) >= bar
