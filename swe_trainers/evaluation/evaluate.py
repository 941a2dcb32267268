"""One evaluation, from its plan to its folder of results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loguru import logger

from swe_trainers.config import plain
from swe_trainers.engines.connect import connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.evaluation.environment import (
    Item,
    choose_items,
    instance_ids,
    make_environment,
    parameters,
)
from swe_trainers.evaluation.policies import Policy
from swe_trainers.evaluation.recording import Record, RecordedEnv
from swe_trainers.evaluation.records import EvaluationFolder, write_output
from swe_trainers.evaluation.report import render_report
from swe_trainers.evaluation.summary import summarise
from swe_trainers.evaluation.table import Tally, evaluation_title, showing
from swe_trainers.experiment import make_env, make_model
from swe_trainers.model.chat import chat_format
from swe_trainers.rollout.environments import EnvPool
from swe_trainers.rollout.failures import Failures
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.rollouts import episode_starts
from swe_trainers.rollout.settings import RESET_TIMEOUT_S, STEP_TIMEOUT_S, EpisodeSettings, EpisodeStart
from swe_trainers.run_config import RunConfig, WrapperConfig

__all__ = ["Plan", "evaluate", "evaluate_run"]


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, and how.

    Attributes:
        model: its name in results.
        environment: Gymnasium id; `module:Id` imports the module first.
        arguments: for `gymnasium.make`.
        adapter: wrap an environment with numbers in `TextAdapter`.
        adapter_kwargs: given to it.
        wrappers: around the environment, inside the adapter.
        max_turns, time_limit_s: of an episode; passed to an environment with the parameters `max_turns` and
            `episode_timeout_s`, else applied here.
        instances, select, episodes, samples, seed: see `choose_items`.
        sampling: what determines the model's answers, for the settings.
        success_above: a return above this is a success, if the environment's info has no `resolved`.
        n_parallel: episodes at once.
        output: the folder of the results.
        step_timeout_s, reset_timeout_s: as in `Limits`.
        max_invalid_fraction: the evaluation stops where more of the planned episodes are invalid than this.
        resume: continue the evaluation in that folder.
    """

    model: str
    output: Path
    environment: str = "swegym_env:SWEBench-v0"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: bool = False
    adapter_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[WrapperConfig, ...] = ()
    max_turns: int | None = None
    time_limit_s: float | None = None
    instances: tuple[str, ...] = ()
    select: str | None = None
    episodes: int | None = None
    samples: int = 1
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    success_above: float | None = None
    n_parallel: int = 4
    step_timeout_s: float | None = STEP_TIMEOUT_S
    reset_timeout_s: float | None = RESET_TIMEOUT_S
    max_invalid_fraction: float = 0.5
    resume: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what is evaluated: an evaluation that is resumed must agree in all of it."""
        names = "model environment arguments adapter max_turns time_limit_s instances select episodes samples seed"
        found = {name: getattr(self, name) for name in (*names.split(), "sampling", "success_above")}
        if self.wrappers or self.adapter_kwargs:
            found |= {"wrappers": plain(self.wrappers), "adapter_kwargs": plain(self.adapter_kwargs)}
        return found


def evaluate(
    plan: Plan,
    policy: Policy,
    *,
    also: Mapping[str, Any] | None = None,
    json_lines: bool = False,
    json_logs: bool = False,
) -> dict[str, Any]:
    """Play the planned episodes that are not finished, and write the results (see `records`).

    Args:
        plan: what is evaluated.
        policy: the model; its engine has at least `plan.n_parallel` slots.
        also: arguments of the environment that follow from the model, not part of the settings.
        json_lines: print JSON objects instead of progress for people.
        json_logs: log the lines of progress instead of printing them.
    Returns:
        The summary, as in `summary.json`.
    Raises:
        TrainerError: the environment or an option is not available, or the model's server is down.
    """
    taken = parameters(plan.environment)

    def takes(name: str) -> bool:
        return taken is None or name in taken

    for name in ("dataset", "split", "action_format", "agent"):
        if name in plan.arguments and not takes(name):
            raise ConfigurationError(f"--{name.replace('_', '-')}: {plan.environment} has no such parameter")
    arguments = dict(plan.arguments) | {name: value for name, value in (also or {}).items() if takes(name)}
    if taken is not None and "pool" in taken:
        arguments.setdefault("pool", 0)  # which task comes next is decided here
    turns, seconds = plan.max_turns, plan.time_limit_s
    if turns is not None and taken is not None and "max_turns" in taken:
        arguments["max_turns"], turns = turns, None
    if seconds is not None and taken is not None and "episode_timeout_s" in taken:
        arguments["episode_timeout_s"], seconds = seconds, None
    limits = replace(
        policy.settings.limits,
        max_turns=turns,
        episode_timeout_s=seconds,
        step_timeout_s=plan.step_timeout_s,
        reset_timeout_s=plan.reset_timeout_s,
    )
    policy = replace(policy, settings=replace(policy.settings, limits=limits))

    def make() -> RecordedEnv:
        made = make_environment(
            plan.environment,
            arguments,
            adapter=plan.adapter,
            adapter_kwargs=plan.adapter_kwargs,
            wrappers=plan.wrappers,
        )
        return RecordedEnv(made)

    with ExitStack() as stack:
        first = make()
        envs = EnvPool([first], make, size=plan.n_parallel)
        stack.callback(envs.close)
        items = choose_items(
            instance_ids(first),
            instances=plan.instances,
            select=plan.select,
            episodes=plan.episodes,
            samples=plan.samples,
            seed=plan.seed,
        )
        folder = stack.enter_context(EvaluationFolder(plan.output, plan.settings, resume=plan.resume))
        return _measure(plan, policy, items, folder, envs, json_lines=json_lines, json_logs=json_logs)


def evaluate_run(
    config: RunConfig,
    output: Path,
    *,
    episodes: int,
    resume: bool = False,
    json_lines: bool = False,
    json_logs: bool = False,
) -> dict[str, Any]:
    """Evaluate the model of a run, on the episodes on which a run with the same seed is evaluated before training.

    Args:
        config: the environment, the model, the engine and how to sample; the trainer's section is not used.
        output: the folder of the results, as `evaluate` writes them; an evaluation in it is replaced.
        episodes: how many.
        resume: continue the evaluation in the folder instead.
        json_lines, json_logs: as in `evaluate`.
    Returns:
        The summary.
    Raises:
        TrainerError: something that is configured is not available, or the engine failed.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    environment, rollout = config.environment, config.rollout
    sampling = Sampling(temperature=config.evaluation.temperature)
    limits = rollout.limits(environment.max_new_tokens, environment.max_tokens, environment.max_turns)
    plan = Plan(
        model=config.model.path or "random weights",
        output=output,
        environment=environment.id,
        arguments=environment.kwargs,
        adapter=environment.adapter == "text",
        adapter_kwargs=environment.adapter_kwargs,
        wrappers=environment.wrappers,
        max_turns=environment.max_turns,
        episodes=episodes,
        seed=config.seed,
        sampling={
            "temperature": sampling.temperature,
            "max_new_tokens": environment.max_new_tokens,
            "max_tokens": environment.max_tokens,
            "stop_strings": rollout.stop_strings,
            "history": rollout.history,
            "constrained": rollout.constrained,
            "grammar": None if rollout.grammar is None else vars(rollout.grammar),
            "wrappers": [wrapper.name for wrapper in environment.wrappers],
        },
        success_above=config.evaluation.success_above,
        n_parallel=environment.parallel,
        max_invalid_fraction=rollout.max_invalid_fraction,
        resume=resume,
    )

    def make() -> RecordedEnv:
        return RecordedEnv(make_env(environment))

    items = [
        Item(f"episode-{number:05d}", 0, _seed(start), start.stream or (), named=False)
        for number, start in enumerate(episode_starts(episodes, [config.seed, 1, 0]))
    ]
    with ExitStack() as stack:
        first = make()
        envs = EnvPool([first], make, size=environment.parallel)
        stack.callback(envs.close)
        model = make_model(config.model, first, seed=config.seed, training=False)
        chat = chat_format(model.tokenizer, config.model.chat)
        generation = connect(
            config.engine,
            model,
            stack,
            n_slots=environment.parallel,
            max_tokens=environment.max_tokens,
            folder=config.output_dir / "serving",
            training=False,
        )
        generation.prepare(0, sampling)
        policy = Policy(
            generation.engine,
            chat,
            EpisodeSettings(
                limits,
                sampling,
                rollout.history,
                evaluation=True,
                constrained=rollout.constrained,
                grammar=rollout.grammar,
            ),
        )
        folder = stack.enter_context(EvaluationFolder(output, plan.settings, resume=resume, replace=True))
        lockstep = environment.lockstep
        return _measure(
            plan, policy, items, folder, envs, json_lines=json_lines, json_logs=json_logs, lockstep=lockstep
        )


def _seed(start: EpisodeStart) -> int:
    assert start.seed is not None
    return start.seed


def _measure(
    plan: Plan,
    policy: Policy,
    items: Sequence[Item],
    folder: EvaluationFolder,
    envs: EnvPool,
    *,
    json_lines: bool,
    json_logs: bool,
    lockstep: bool = False,
) -> dict[str, Any]:
    """Play what is not finished, and write everything.

    Args:
        plan, policy: what is evaluated.
        items: the planned episodes.
        folder: of the results, open.
        envs: of `RecordedEnv`; they are closed afterwards.
        json_lines, json_logs: as in `evaluate`.
        lockstep: environments and engine take turns.
    """
    finished = folder.finished()
    todo = [item for item in items if (item.instance_id, item.sample) not in finished]
    tally = Tally(len(items), finished.values())
    if todo:
        title = evaluation_title(plan.model, plan.environment, plan.arguments)
        log = str(folder.place / "errors.log")
        failures = Failures(plan.max_invalid_fraction, setting="max_invalid_fraction")

        def starts() -> Iterator[EpisodeStart]:
            for item in todo:
                tally.running[item.instance_id, item.sample] = time.monotonic()
                yield item.start

        in_a_row = 0
        played = iter_episodes(
            policy.engine, policy.chat, envs, starts(), policy.settings, lockstep=lockstep, close_envs=True
        )
        logged = partial(logger.info, "{}") if json_logs else None
        with showing(tally, title=title, as_json=json_lines, log=logged) as shown, closing(played):
            for n_played, (number, env, (trajectory,)) in enumerate(played, start=1):
                item, record = todo[number], env.record if isinstance(env, RecordedEnv) else Record()
                record.finish(item, trajectory, policy.prices)
                row = folder.add(record, _solved(record, plan.success_above))
                del tally.running[item.instance_id, item.sample]
                tally.add(row)
                shown(row)
                in_a_row = in_a_row + 1 if trajectory.end_reason == "engine" else 0
                if in_a_row > 2 * len(envs):
                    raise EngineError(
                        f"the model's server failed in {in_a_row} episodes in a row, the last failure is: "
                        f"{record.failure_reason}. When it is up again, continue with --resume"
                    )
                if trajectory.end_reason != "engine":
                    for each in failures.add([trajectory]):
                        folder.log(each.failure_reason, each.failure_traceback)
                if n_played < len(todo) and failures.too_many(failures.counts.total(), len(items)):
                    hint = "When the cause is removed, continue with --resume"
                    raise failures.error("evaluation", failures.counts, len(items), log=log, hint=hint)
        for failure in envs.failures:
            folder.log(failure.reason, failure.traceback)
    rows = folder.in_order(items)
    summary = summarise(rows, planned=len(items), settings=folder.settings)
    folder.write_predictions(rows, plan.model)
    write_output(plan.output / "report.html", render_report(rows, summary, plan.output))
    write_output(plan.output / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _solved(record: Record, success_above: float | None) -> bool | None:
    """Whether the episode is a success, by the environment or by its return; None if neither decides."""
    resolved = record.last_info.get("resolved")
    if isinstance(resolved, (bool, np.bool_)):
        return bool(resolved)
    if "resolved" in record.last_info:
        return False  # it ended before it was graded
    return None if success_above is None else record.score > success_above
