"""The training loop: play → update → log, evaluate, save.

```python
trainer = Trainer(LanguageModel.load("Qwen/Qwen3-0.6B"), "CartPole-v1", PPO(learning_rate=1e-5))
for metrics in trainer.iterate(updates=100):
    print(metrics["reward_mean"])
```

`swe-train` is a caller of the same class; see `swe_trainers.experiment`.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import gymnasium
import torch

from swe_trainers.algorithms import BUILT_IN, alternative, name_of
from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.checkpoint import Checkpoints, one_line
from swe_trainers.config import nearest, plain
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import CheckpointError, ConfigurationError
from swe_trainers.kernels import comparing
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import HostedPolicy
from swe_trainers.learning.learner import Learner
from swe_trainers.logging import Run, read_metrics
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.process_group import broadcast
from swe_trainers.resume import Former, Resume, Settings
from swe_trainers.rollout.adapters import TextAdapter
from swe_trainers.rollout.environments import EnvPool
from swe_trainers.rollout.failures import Failures
from swe_trainers.rollout.rate import pace
from swe_trainers.rollout.rollouts import LocalWorkers, Rollouts
from swe_trainers.rollout.statistics import environment_statistics, episode_statistics, staleness_statistics
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import EvaluationConfig, RolloutConfig

__all__ = ["Callback", "Evaluate", "Play", "Rewards", "Trainer", "rollouts_in"]

Callback = Callable[["Trainer", dict[str, Any]], object]
"""Called after each update with the trainer and the metrics, before they are recorded; it may add metrics."""
Play = Callable[[int, int], Sequence[Trajectory]]
"""Plays the episodes of an update; called with its number, from 0, and the number of the round, from 0."""
Rewards = Callable[[list[Trajectory]], list[Trajectory]]
"""Maps played episodes to the same episodes with other rewards."""
Evaluate = Callable[[Learner], Mapping[str, float]]
"""Evaluates the policy and returns metrics; must not change it."""

_BLIND_NATS = 0.05
"""A policy whose actions have less information about its observations, and whose spread fell so far, is reported."""
_BLIND_SPREAD = 0.25
"""As a fraction of the largest spread so far."""
_BLIND_UPDATES = 3
"""In so many updates in a row: policies of random weights that learn later fell below for one or two."""
_SEEING = 0.2
"""Only a policy whose spread was above this is reported: with small random weights all states are similar at first."""
_NOTHING = 1e-9
"""Metrics below this are 0 in log lines; `metrics.jsonl` has them as they are."""
_MISMATCH_NATS = 0.3
"""A larger mean difference per token between engine and trainer cannot be an effect of rounding or quantisation."""


_ENVIRONMENT_OPTIONS = ("parallel", "max_turns", "max_tokens", "max_new_tokens", "lockstep")
"""Arguments of `Trainer` that it passes to `rollouts_in`."""


class Trainer:
    """Trains a language model with an algorithm in an environment, or on recorded episodes.

    A run with an `output_dir` can be killed at any moment; started again with the same settings, it resumes from its
    newest checkpoint. On the CPU the resumed run is bitwise equal to an uninterrupted one.

    Args:
        model: the policy, or the reward model to train; a `HostedPolicy` is on a server.
        env: the environment: a Gymnasium id, a function that makes an environment, an environment, or `Rollouts`.
            `TextAdapter` describes spaces of numbers in words. None for an algorithm that trains on `demonstrations`
            (the policy is then not evaluated), and if `play` is given.
        algorithm: the algorithm with its hyperparameters, such as `PPO(learning_rate=1e-5)`.
        callbacks: functions that are called after each update.
        rollout: how episodes are sampled in training; None for the defaults.
        demonstrations: the episodes, for an algorithm that trains on recorded ones.
        play: a function that plays the episodes of an update, instead of the environment.
        rewards: a function that replaces the rewards of played episodes before the update, such as
            `partial(judged, judge=…)`; see `swe_trainers.learning.rewards`. It is called after each round of episodes.
        evaluation: how many episodes evaluate the policy, and when; by default there is no evaluation during training.
        evaluate: a function that evaluates the policy, instead of episodes in the environment.
        output_dir: folder of the metrics, the log, the settings and the checkpoints; None: nothing is written.
        resume: what to do with a run that is already in `output_dir`. "same": resume it, and refuse changed settings;
            "changed": resume it with changed settings, which are recorded in `changes.jsonl`; "never": move it to
            `replaced-N` and start a new run. Functions, models and environments without an id are not compared.
        console: log to the terminal too; only with `output_dir`.
        seed: seed of episodes, sampling and shuffling.
        max_seconds: no update begins after this time; evaluations, and time before a resume, count too.
        pause: when this event is set, training ends after the current update, with a checkpoint; a resumed run
            continues. Of several ranks, the event of the first counts.
        checkpoint_every: updates between checkpoints.
        keep_checkpoints: number of newest checkpoints that are kept.
        log_every: updates between log lines; `metrics.jsonl` has all updates.
        compare_kernels_every: every so many updates, compute log-probabilities, entropies and gradients with a second
            kernel back end too; the largest relative differences are recorded as `kernels/…`. 0: never.
        threads: threads of PyTorch on the CPU, set for the whole process; 0: they stay as they are, which is one for
            each core unless the program or `OMP_NUM_THREADS` chose another number. A model of less than some million
            parameters trains several times as fast with 1: its operations take less time than to divide them.
        name: name of the stage, in logs and checkpoints; by default the algorithm's.
        learner: a learner to continue with; by default the algorithm makes a new one.
        run: an open run, instead of `output_dir`.
        checkpoints: where checkpoints are kept, instead of `checkpoints/NAME` of the run.
        environment_options: `parallel`, `max_turns`, `max_tokens`, `max_new_tokens` and `lockstep`; see `rollouts_in`.

    Attributes:
        learner: everything that training changes: the model, its optimizer, the number of updates, …
        episodes: the episodes of the last update.
        stopped: whether `stop` was called; a resumed run then does not continue.
        paused: whether `pause` ended it before it was complete.

    Raises:
        ConfigurationError: the algorithm needs an environment or demonstrations that are missing, something is not
            available on this machine, or the run in `output_dir` has other settings.
    """

    def __init__(
        self,
        model: LanguageModel | HostedPolicy,
        env: str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.Env[Any, Any] | Rollouts | None = None,
        algorithm: Algorithm | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        rollout: RolloutConfig | None = None,
        demonstrations: Sequence[Trajectory] | Batch | None = None,
        play: Play | None = None,
        rewards: Rewards | None = None,
        evaluation: EvaluationConfig | None = None,
        evaluate: Evaluate | None = None,
        output_dir: str | Path | None = None,
        resume: Resume = "same",
        console: bool = False,
        seed: int = 0,
        max_seconds: float = math.inf,
        pause: threading.Event | None = None,
        checkpoint_every: int = 10,
        keep_checkpoints: int = 2,
        log_every: int = 1,
        compare_kernels_every: int = 0,
        threads: int = 0,
        name: str | None = None,
        learner: Learner | None = None,
        run: Run | None = None,
        checkpoints: Checkpoints | None = None,
        **environment_options: Any,
    ) -> None:
        if isinstance(model, str | Path):
            raise ConfigurationError(f"model: got {model!r}. Try: LanguageModel.load({str(model)!r})")
        algorithm = _checked_algorithm(algorithm)
        plays = algorithm.rollout_plan is not None
        if plays == (demonstrations is not None):
            raise ConfigurationError("demonstrations: needed by algorithms that play no episodes, and by no others")
        if plays and env is None and play is None:
            raise ConfigurationError("env: missing. Try: an id of Gymnasium, such as FrozenLake-v1")
        _check_environment(env)
        _check_sections(resume, rollout, evaluation)
        _check_options(type(self), environment_options)
        for setting, value in (
            ("checkpoint_every", checkpoint_every),
            ("keep_checkpoints", keep_checkpoints),
            ("log_every", log_every),
        ):
            if value < 1:
                raise ConfigurationError(f"{setting}: got {value}, expected at least 1")
        if threads < 0:
            raise ConfigurationError(f"threads: got {threads}, expected 0 or more")
        if threads:
            torch.set_num_threads(threads)
        self.model, self.algorithm, self.callbacks = model, algorithm, tuple(callbacks)
        self.name = name or name_of(algorithm)
        self._rollout, self._evaluation = rollout or RolloutConfig(), evaluation or EvaluationConfig()
        self._resumes: Resume = resume
        self._settings: Settings | None = None
        if output_dir is not None and run is None:
            sections = {
                "trainer": {"algorithm": self.name, **plain(algorithm)},
                "env": {**({"id": env} if isinstance(env, str) else {}), **environment_options},
                "rollout": self._rollout,
                "evaluation": self._evaluation,
                "seed": seed,
                "max_seconds": None if math.isinf(max_seconds) else max_seconds,
                "compare_kernels_every": compare_kernels_every,
                **({"threads": threads} if threads else {}),
            }
            self._settings = Settings.in_python(output_dir, sections)
            if resume == "same":
                self._settings.refuse_changes()
        self.rollouts = env if isinstance(env, Rollouts) or env is None else None
        if env is not None and self.rollouts is None:
            assert not isinstance(env, Rollouts)
            self.rollouts = rollouts_in(env, model, seed=seed, rollout=rollout, **environment_options)
        elif environment_options:
            raise ConfigurationError(f"{', '.join(environment_options)}: have no effect without an environment to make")
        self.demonstrations = None if demonstrations is None else Batch.of(demonstrations)
        self.learner = learner or algorithm.start(model, seed=seed)
        self.episodes: Sequence[Trajectory] = ()
        self._play, self._rewards = play, rewards
        self._measure = evaluate
        self._output_dir, self._console, self._run, self._checkpoints = output_dir, console, run, checkpoints
        self._max_seconds, self._log_every = max_seconds, log_every
        self._pause = pause or threading.Event()
        self._checkpoint_every, self._keep_checkpoints = checkpoint_every, keep_checkpoints
        self._compare_kernels_every = compare_kernels_every
        self._log: Run | None = None
        self._failures = Failures(self._rollout.max_invalid_fraction, setting="rollout.max_invalid_fraction")
        self._widest, self._blind, self._mismatched, self._cut_off = 0.0, 0, False, False
        self._continues = False  # whether another call goes on with the learner as it is, not with a checkpoint
        self.stopped = self.paused = False

    def train(self, updates: int | None = None) -> Learner:
        """Train to the end; see `iterate`."""
        for _ in self.iterate(updates):
            pass
        return self.learner

    def iterate(self, updates: int | None = None) -> Iterator[dict[str, Any]]:
        """Train, one update at a time.

        Args:
            updates: the total number of updates, those before a resume included; by default that of the algorithm.
        Yields:
            The metrics of each update; `update` is its number, from 1.
        Raises:
            ConfigurationError: there are more updates than the algorithm's schedules have.
            TrainerError: an update failed, or a checkpoint cannot be read or written, or does not fit the model.
        """
        total = self._total(updates)
        learner = self.learner
        with ExitStack() as stack:
            run, former = self._opened(stack)
            self._log = run
            stack.callback(self._forget_log)
            checkpoints = self._checkpoints
            if checkpoints is None and run is not None:
                checkpoints = Checkpoints(run.directory / "checkpoints" / self.name, keep=self._keep_checkpoints)
            if checkpoints is not None and run is not None and not self._continues:
                self._resume(checkpoints, run)
                if learner.updates and self._finished(total):
                    run.info(self._complete(total, run.directory))
            if learner.updates == 0 and self._evaluates and run is not None:
                run.record(0, {"stage": self.name, **self._evaluated()})
            bar = None if run is None else stack.enter_context(run.progress(self.name, total, done=learner.updates))
            self.paused = broadcast(self._pause.is_set()) and not self._finished(total)
            while not self._ends(total):
                self._continues = False
                metrics = self.step()
                former.record(learner.updates)
                every = self._evaluation.every
                due = self._finished(total) or (every > 0 and learner.updates % every == 0)
                evaluated = self._evaluates and due
                if evaluated:
                    metrics |= self._evaluated()
                for callback in self.callbacks:
                    callback(self, metrics)
                success_target = self._evaluation.stop_at_success
                if success_target is not None and metrics.get("eval/success", 0.0) >= success_target:
                    self.stop()
                last = self._finished(total)
                self.paused = self.paused and not last
                if last and self._evaluates and not evaluated:
                    metrics |= self._evaluated()
                if run is not None and bar is not None:
                    row = {"stage": self.name, **metrics, "seconds": round(learner.seconds, 3)}
                    run.record(row.pop("update"), row)
                    if last or learner.updates % self._log_every == 0:
                        run.info(self._line(total, metrics), frequent=not (last or evaluated))
                    bar.describe(f"{self.name} {pace(metrics)}".rstrip())
                    bar.advance()
                saves = last or self.paused or learner.updates % self._checkpoint_every == 0
                if checkpoints is not None and saves:
                    state = {"learner": learner.state_dict(), "stopped": self.stopped}
                    checkpoints.save(learner.updates, state)
                self._continues = True
                yield metrics
            if run is not None:
                former.close(run)

    def _forget_log(self) -> None:
        """It is open while `iterate` runs."""
        self._log = None

    def _total(self, updates: int | None) -> int:
        """The number of updates to train to. Raises ConfigurationError if a schedule ends before."""
        own = self.algorithm.total_updates(self.demonstrations)
        total = own if updates is None else updates
        for name in ("decay", "entropy_decay"):
            kind = getattr(self.algorithm, name, "constant")
            if total > own and kind != "constant":
                more = f"max_updates {total}" if hasattr(self.algorithm, "max_updates") else "more epochs"
                end = f"{name} {kind} reaches 0 at update {own}"
                raise ConfigurationError(f"updates: got {total}, but {end}. Try: {more}, or {name} constant")
        return total

    def _opened(self, stack: ExitStack) -> tuple[Run | None, Former]:
        """The run, if there is one, and its changed settings."""
        settings = self._settings
        if self._output_dir is None or settings is None:
            return self._run, Former(settings, {})
        former = Former(settings, settings.settle(self._resumes))
        self._resumes = "same"  # another call goes on with what this one began
        run = stack.enter_context(Run(self._output_dir, console=self._console))
        settings.write(run)
        return run, former

    def step(self) -> dict[str, Any]:
        """Make one update: play episodes, and train on them.

        Returns:
            The metrics of the update; `update` is its number, from 1.
        """
        learner, started = self.learner, time.monotonic()
        compare = self._compare_kernels_every > 0 and learner.updates % self._compare_kernels_every == 0
        with comparing() if compare else nullcontext() as comparison:
            episodes = self.play() if self.demonstrations is None else self.demonstrations
            played = time.monotonic()
            metrics: dict[str, Any] = dict(self.algorithm.update(learner, episodes))
        updated = time.monotonic()
        metrics |= {"seconds/rollout": played - started, "seconds/update": updated - played}
        if "tokens" in metrics:
            metrics["tokens_per_second"] = metrics["tokens"] / max(updated - started, 1e-9)
        self._warn_of_blindness(metrics, episodes)
        self._warn_of_mismatch(metrics)
        self._warn_of_cut_off()
        if comparison is not None:
            metrics |= {f"kernels/{name}_error": error for name, error in comparison.errors.items()}
        if self.demonstrations is None:
            metrics |= self._rollout_metrics()
        learner.updates += 1
        seconds = learner.seconds + time.monotonic() - started
        learner.seconds, self.paused = broadcast((seconds, self._pause.is_set()))
        return {"update": learner.updates, **metrics}

    def play(self) -> list[Trajectory]:
        """Play the episodes of the next update with the current policy; they have the rewards for training."""
        plan, update = self.algorithm.rollout_plan, self.learner.updates
        assert plan is not None
        played, rewarded = list[Trajectory](), list[Trajectory]()
        attempt = 0
        while not attempt or self.algorithm.wants_more(rewarded, attempt):
            if self._play is not None:
                found = self._play(update, attempt)
            else:
                assert self.rollouts is not None
                staleness = self._rollout.max_staleness
                found = self.rollouts.play(
                    plan.episodes,
                    self._rollout.sampling(plan.temperature),
                    update=update,
                    attempt=attempt,
                    episodes_per_start=plan.episodes_per_start,
                    branching=plan.branching,
                    ahead=min(staleness, max(0, plan.updates - 1 - update)) if staleness else None,
                )
            # Groups of different rounds are different groups.
            first = 1 + max((trajectory.group for trajectory in played), default=-1)
            new = [replace(each, group=each.group + first) for each in found]
            played += new
            rewarded += new if self._rewards is None or not any(each.valid for each in new) else self._rewards(new)
            attempt += 1
        self.episodes = played
        self._check_failures(f"update {update}", played)
        return rewarded

    def evaluate(self, episodes: int | None = None) -> dict[str, float]:
        """Evaluate the current policy.

        Args:
            episodes: number of episodes; by default that of `evaluation`.
        Returns:
            `return`, `turns`, `episodes`, … and `success` if `evaluation.success_above` is set; see
            `episode_statistics`.
        """
        if self._measure is not None and episodes is None:
            return dict(self._measure(self.learner))
        if self.rollouts is None:
            raise ConfigurationError("evaluate: needs an environment. Try: Trainer(model, env, …)")
        sampling = Sampling(temperature=self._evaluation.temperature)
        number = self._evaluation.episodes if episodes is None else episodes
        played = self.rollouts.play(number, sampling, update=self.learner.updates, evaluation=True)
        self._check_failures(f"evaluation after update {self.learner.updates}", played)
        return episode_statistics(played, success_above=self._evaluation.success_above)

    def save(self, folder: str | Path) -> None:
        """Write the model, its value head and its tokenizer in Hugging Face's format.

        Raises:
            CheckpointError: it cannot be written; no partial file is left.
        """
        self.model.save_pretrained(folder)

    def stop(self) -> None:
        """End training after the current update; for callbacks. A resumed run does not continue."""
        self.stopped = True

    def _ends(self, total: int) -> bool:
        return self.paused or self._finished(total)

    def _finished(self, total: int) -> bool:
        return self.stopped or self.learner.updates >= total or self.learner.seconds >= self._max_seconds

    @property
    def _evaluates(self) -> bool:
        return self._measure is not None or self._evaluation.episodes > 0

    def _evaluated(self) -> dict[str, float]:
        learner, started = self.learner, time.monotonic()
        measured = {f"eval/{name}": value for name, value in self.evaluate().items()}
        took = time.monotonic() - started
        learner.seconds = broadcast(learner.seconds + took)
        return {**measured, "seconds/evaluate": took}

    def _rollout_metrics(self) -> dict[str, float]:
        """Metrics of the engine, of `info`, of the staleness of tokens, and of rewards before they are replaced."""
        metrics = environment_statistics(self.episodes)
        if self.rollouts is not None:
            metrics = {**self.rollouts.metrics(), **metrics}
            if self._rollout.max_staleness:
                metrics |= staleness_statistics(self.episodes, self.learner.updates)
        if self._rewards is not None:
            returns = [float(each.rewards.sum()) for each in self.episodes if each.valid]
            metrics["environment_reward_mean"] = sum(returns) / max(1, len(returns))
        return metrics

    def _check_failures(self, what: str, episodes: Sequence[Trajectory]) -> None:
        """Log why episodes are invalid, with one traceback per cause. Raises RolloutError if too many are."""
        new = self._failures.add(episodes)
        invalid = [each.failure_reason for each in episodes if not each.valid]
        if self._log is not None and invalid:
            self._log.warning(f"{what}: {len(invalid)} of {len(episodes)} episodes are invalid: {invalid[0]}")
            for each in new:
                self._log.detail(f"a new cause of invalid episodes: {each.failure_reason}\n{each.failure_traceback}")
            self._log.detail(f"invalid episodes so far: {dict(self._failures.counts)}")
        log = None if self._log is None else "training.log"
        self._failures.check(what, episodes, log=log)

    def _warn_of_blindness(self, metrics: Mapping[str, Any], episodes: Sequence[Trajectory] | Batch) -> None:
        """Log once when the hidden states have become similar, so that actions hardly depend on observations."""
        spread, information = (metrics.get(f"representation/{name}") for name in ("spread", "information"))
        if self._log is None or spread is None or information is None or self._blind == _BLIND_UPDATES:
            return
        self._widest = max(self._widest, spread)
        fallen = spread < _BLIND_SPREAD * self._widest and self._widest > _SEEING and information < _BLIND_NATS
        self._blind = self._blind + 1 if fallen else 0
        if self._blind == _BLIND_UPDATES:
            played = () if isinstance(episodes, Batch) else episodes  # a batch is of demonstrations
            restricted = any(episode.allowed for episode in played)
            legal = "" if restricted else "legal actions (adapter: text, or rollout.constrained), "
            self._log.warning(
                f"update {self.learner.updates + 1}: the policy's actions hardly depend on its observations any more: "
                f"the spread of its hidden states fell from {self._widest:.2f} to {spread:.2f}, and its actions have "
                f"{information:.3f} nats of information about the observations. Try: {legal}warmup_updates: 10, "
                "a smaller learning_rate, or a larger initializer_range in model.architecture"
            )

    def _warn_of_mismatch(self, metrics: Mapping[str, Any]) -> None:
        """Log once when the engine's log-probabilities differ from those of the policy that is trained.

        A policy can learn in spite of this: with masks one token off, most tokens of a long action are still trained.
        """
        gap, stale = metrics.get("logprob_gap", 0.0), self.rollouts is not None and self._rollout.max_staleness > 0
        if self._log is None or self._mismatched or stale or not gap > _MISMATCH_NATS:
            return
        self._mismatched = True
        self._log.warning(
            f"update {self.learner.updates + 1}: the log-probabilities that the engine recorded are {gap:.2f} nats a "
            "token from the trainer's: masks or tokens are shifted, or the two differ in weights, chat template or "
            "temperature. Try: swe-train doctor with this run's directory"
        )

    def _warn_of_cut_off(self) -> None:
        """Log once when `max_tokens` ended all episodes of an update: none has reached an end of its environment."""
        valid = [each for each in self.episodes if each.valid]
        if self._log is None or self._cut_off or not valid or any(each.end_reason != "tokens" for each in valid):
            return
        self._cut_off = True
        turns = sum(len(each.turns) for each in valid) / len(valid)
        self._log.warning(
            f"update {self.learner.updates + 1}: environment.max_tokens cut off all {len(valid)} episodes, after "
            f"{turns:.1f} turns on average. Try: a larger environment.max_tokens, or a smaller max_new_tokens"
        )

    def _resume(self, checkpoints: Checkpoints, run: Run) -> None:
        """Resume from the newest checkpoint, if there is one."""
        found = checkpoints.newest()
        if found is None:
            done = run.rewind(self.name, -1)  # the evaluation before the first update is repeated too
            if done > 0:
                run.warning(
                    f"{self.name}: the run ended after update {done}, before its first checkpoint, and begins again. "
                    "Try: a smaller checkpoint_every"
                )
            return
        for note in found.notes:
            run.warning(note)
        try:
            self.learner.load_state_dict(found.state["learner"])
            self.stopped = bool(found.state["stopped"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{found.path}: does not fit this model and optimizer: {one_line(error)}") from error
        run.rewind(self.name, self.learner.updates)
        run.info(
            f"{self.name}: resumed from {found.path.name} ({self.learner.updates} updates, "
            f"{self.learner.seconds:.0f} s)"
        )

    def _complete(self, total: int, directory: Path) -> str:
        """Why a run that was started again has nothing to train, its last metrics, and how to continue it."""
        rows = [row for row in read_metrics(directory / "metrics.jsonl") if row.get("stage") == self.name]
        last = {name: value for name, value in (rows or [{}])[-1].items() if value is not None}
        new_run = "for a new run, use another output_dir, or --restart"
        if self.stopped:
            how = f"It was stopped, as by evaluation.stop_at_success: {new_run}"
        else:
            limit = "the number of updates" if self.learner.updates >= total else "max_seconds"
            how = f"To continue, raise {limit} (swe-train: with --resume-with-changes); {new_run}"
        return f"{self.name}: complete, nothing is left to train. {self._line(total, last)}. {how}"

    def _line(self, total: int, metrics: Mapping[str, Any]) -> str:
        """The log line of an update."""
        shown = ["loss", "reward_mean", "kl/old", "entropy", "explained_variance", "grad_norm"]
        shown += [metric for metric in metrics if metric.startswith("eval/")]
        undefined = {"explained_variance"} if math.isnan(metrics.get("explained_variance", 0.0)) else set()
        parts = [f"{name} {_short(metrics[name])}" for name in shown if name in metrics and name not in undefined]
        parts += ["stopped early"] * bool(metrics.get("stopped_early"))
        updates, seconds = self.learner.updates, self.learner.seconds
        parts += filter(None, [pace(metrics)])
        return f"{self.name} {updates}/{total}  {'  '.join(parts)}  ({seconds:.0f} s)"


def _short(value: float) -> str:
    """Three digits; 0 for what rounding left of it, such as 2e-16."""
    return "0" if abs(value) < _NOTHING else f"{value:.3g}"


def _checked_algorithm(algorithm: object) -> Algorithm:
    """The algorithm. Raises ConfigurationError if it is a name, a class or anything else."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    got = "missing" if algorithm is None else f"got {algorithm!r}, expected an object"
    path = BUILT_IN.get(algorithm) if isinstance(algorithm, str) else None
    name = algorithm.__name__ if isinstance(algorithm, type) else (path or ":PPO").partition(":")[2]
    instead = alternative(algorithm, classes=True) if isinstance(algorithm, str) else None
    raise ConfigurationError(f"algorithm: {got}. Try: {instead or f'{name}()'}")


def _check_sections(resume: Resume, rollout: object, evaluation: object) -> None:
    """Raise ConfigurationError if one of these arguments is of another type, or an unknown choice."""
    if resume not in get_args(Resume):
        raise ConfigurationError(f"resume: got {resume!r}, expected one of {', '.join(get_args(Resume))}")
    for name, given, kind in (("rollout", rollout, RolloutConfig), ("evaluation", evaluation, EvaluationConfig)):
        if not (given is None or isinstance(given, kind)):
            raise ConfigurationError(f"{name}: got {given!r}, expected an object such as {kind.__name__}()")


def _check_options(trainer: type[Trainer], options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for the first option that neither a trainer nor `rollouts_in` has."""
    unknown = next((name for name in options if name not in _ENVIRONMENT_OPTIONS), None)
    if unknown is not None:
        known = [name for name in inspect.signature(trainer.__init__).parameters if name != "self"]
        raise ConfigurationError(f"Trainer: no argument {unknown!r}{nearest(unknown, [*known, *_ENVIRONMENT_OPTIONS])}")


def _check_environment(env: object) -> None:
    """Raise ConfigurationError if the argument `env` is of another type."""
    _refuse_several(env)
    if not (env is None or callable(env) or isinstance(env, str | gymnasium.Env | Rollouts)):
        raise ConfigurationError(
            f"env: got {env!r}, expected an id of Gymnasium, a function that makes an environment, or one"
        )


def _refuse_several(env: object) -> None:
    """Raise ConfigurationError for a vector environment of Gymnasium."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigurationError(
            f"env: got {env}, which is several environments. Try: a function that makes one, and parallel=N, which "
            "plays N of them at once"
        )


def rollouts_in(
    env: str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.Env[Any, Any],
    model: LanguageModel | HostedPolicy,
    *,
    seed: int = 0,
    parallel: int = 8,
    max_turns: int | None = None,
    max_tokens: int = 1024,
    max_new_tokens: int = 256,
    lockstep: bool = False,
    rollout: RolloutConfig | None = None,
) -> Rollouts:
    """Rollouts of a model in any Gymnasium environment, with an engine in this process or on the policy's server.

    Args:
        env: a Gymnasium id, a function that makes an environment, or one environment. `TextAdapter` describes spaces of
            numbers in words.
        model: the policy.
        seed: seed of the episodes and of sampling.
        parallel: number of environments that play at the same time; not used if `env` is one environment.
        max_turns: maximum turns of an episode; None: the environment decides.
        max_tokens: maximum tokens of an episode, observations included.
        max_new_tokens: maximum tokens of an action.
        lockstep: environments and engine take turns, so that two runs are bitwise equal; slower.
        rollout: how episodes are sampled; asynchronous rollouts need an engine of their own, see `make_players`.
    Raises:
        ConfigurationError: the environment's spaces cannot be described in words.
    """
    rollout = rollout or RolloutConfig()
    if parallel < 1:
        raise ConfigurationError(f"parallel: got {parallel}, expected at least 1")
    if rollout.max_staleness:
        raise ConfigurationError("rollout.max_staleness: needs `Rollouts` as env, with an engine of their own")

    def in_text(made: gymnasium.Env[Any, Any]) -> gymnasium.Env[str, str]:
        _refuse_several(made)
        spaces = (made.observation_space, made.action_space)
        return made if all(isinstance(space, gymnasium.spaces.Text) for space in spaces) else TextAdapter(made)

    if isinstance(env, gymnasium.Env):
        envs = EnvPool([in_text(env)])
    else:
        maker = partial(gymnasium.make, env, disable_env_checker=True) if isinstance(env, str) else env
        envs = EnvPool([in_text(maker()) for _ in range(parallel)], lambda: in_text(maker()))
    if isinstance(model, HostedPolicy):
        generation = model.generation(len(envs), max_tokens)
        workers = LocalWorkers(generation, model.chat_format(), envs, envs, lockstep=lockstep)
    else:
        workers = LocalWorkers.embedded(model, model.chat_format(), envs, max_tokens=max_tokens, lockstep=lockstep)
    limits = rollout.limits(max_new_tokens, max_tokens, max_turns)
    return Rollouts(
        workers, limits, seed=seed, history=rollout.history, constrained=rollout.constrained, grammar=rollout.grammar
    )
