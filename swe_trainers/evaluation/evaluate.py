"""One evaluation from its plan to its results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.conversation import Model
from swe_trainers.evaluation.environment import (
    Item,
    choose_items,
    instance_ids,
    make_environment,
    parameters,
)
from swe_trainers.evaluation.episode import Episode, TurnLimits
from swe_trainers.evaluation.playing import Watcher, play_all
from swe_trainers.evaluation.records import EvaluationFolder, Row, write_output
from swe_trainers.evaluation.report import render_report
from swe_trainers.evaluation.summary import summarise
from swe_trainers.evaluation.table import Tally, showing

__all__ = ["Plan", "as_json", "evaluate"]


@dataclass(frozen=True)
class Plan:
    """What is measured, on what, and how.

    Attributes:
        model: its name in results.
        environment: of Gymnasium, `module:Id` where importing a module registers it.
        arguments: given to `gymnasium.make`.
        adapter: put number spaces in words.
        max_turns, time_limit_s: of an episode; told to an environment that takes `max_turns` and `episode_timeout_s`,
            else kept here.
        instances, select, episodes, samples, seed: see `choose_items`.
        sampling: what decides how the model answers, for the settings.
        success_above: a return above this is a success, of an environment whose info says nothing of `resolved`.
        n_parallel: episodes played at once.
        output: the folder of the results.
        resume: go on with what is there.
    """

    model: str
    output: Path
    environment: str = "swegym_env:SWEBench-v0"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: bool = False
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
    resume: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what is measured: an evaluation that goes on must agree in all of it."""
        names = "model environment arguments adapter max_turns time_limit_s instances select episodes samples seed"
        return {name: getattr(self, name) for name in (*names.split(), "sampling", "success_above")}


def evaluate(
    plan: Plan,
    make_model: Callable[[int], Model],
    *,
    also: Mapping[str, Any] | None = None,
    json_lines: bool = False,
) -> dict[str, Any]:
    """Play what is planned and not played yet, and write the results (see `records`).

    Args:
        plan: of it.
        make_model: called with the number of conversations at a time, once the environment has been found.
        also: arguments of the environment that follow from the model, left out of the settings.
        json_lines: tell a program, not people.
    Returns:
        The summary, as `summary.json` has it.
    Raises:
        TrainerError: the plan cannot be had here, or the model's server is down.
    """
    arguments, limits = _arguments(plan, also or {})
    first = make_environment(plan.environment, arguments, adapter=plan.adapter)
    with ExitStack() as stack:
        stack.callback(first.close)
        items = choose_items(
            instance_ids(first),
            instances=plan.instances,
            select=plan.select,
            episodes=plan.episodes,
            samples=plan.samples,
            seed=plan.seed,
        )
        folder = stack.enter_context(EvaluationFolder(plan.output, plan.settings, resume=plan.resume))
        finished = folder.finished()
        todo = [item for item in items if (item.instance_id, item.sample) not in finished]
        n_parallel = max(1, min(plan.n_parallel, len(todo)))
        tally = Tally(len(items), finished.values())
        if todo:
            model = make_model(n_parallel)
            stack.callback(model.close)
            more = [make_environment(plan.environment, arguments, adapter=plan.adapter) for _ in range(n_parallel - 1)]
            title = f"{plan.model} on {plan.arguments.get('dataset', plan.environment)}"
            shown = stack.enter_context(showing(tally, title=title, as_json=json_lines))
            play_all([first, *more], model, todo, _watcher(plan, folder, tally, shown), limits=limits)
        rows = folder.in_order(items)
        summary = summarise(rows, planned=len(items), settings=plan.settings)
        folder.write_predictions(rows, plan.model)
        write_output(plan.output / "report.html", render_report(rows, summary, plan.output))
        write_output(plan.output / "summary.json", as_json(summary))
    return summary


def as_json(value: Any) -> str:
    """Text for a file that people read too."""
    return json.dumps(value, indent=2) + "\n"


def _watcher(plan: Plan, folder: EvaluationFolder, tally: Tally, shown: Callable[[Row], None]) -> Watcher:
    """Counts, keeps and shows what happens."""

    def started(item: Item) -> None:
        tally.running[item.instance_id, item.sample] = time.monotonic()

    def ended(episode: Episode) -> None:
        row = folder.add(episode, _solved(episode, plan.success_above))
        del tally.running[episode.item.instance_id, episode.item.sample]
        tally.add(row)
        shown(row)

    return Watcher(started, ended)


def _solved(episode: Episode, success_above: float | None) -> bool | None:
    """Whether it was a success, as the environment says or the user; None where neither does."""
    said = episode.ending.get("resolved")
    if isinstance(said, bool):
        return said
    if "resolved" in episode.ending:
        return False  # it ended before it was judged
    return None if success_above is None else episode.score > success_above


def _arguments(plan: Plan, also: Mapping[str, Any]) -> tuple[dict[str, Any], TurnLimits]:
    """What the environment is made with, and the limits that it does not keep itself."""
    taken = parameters(plan.environment)

    def takes(name: str) -> bool:
        return taken is None or name in taken

    for name in ("dataset", "split", "action_format"):
        if name in plan.arguments and not takes(name):
            raise ConfigurationError(f"--{name.replace('_', '-')}: {plan.environment} takes no such argument")
    arguments = dict(plan.arguments) | {name: value for name, value in also.items() if takes(name)}
    if taken is not None and "pool" in taken:
        arguments.setdefault("pool", 0)  # which task comes next is known here, and not to the environment
    turns, seconds = plan.max_turns, plan.time_limit_s
    if turns is not None and taken is not None and "max_turns" in taken:
        arguments["max_turns"], turns = turns, None
    if seconds is not None and taken is not None and "episode_timeout_s" in taken:
        arguments["episode_timeout_s"], seconds = seconds, None
    return arguments, TurnLimits(turns, seconds)
