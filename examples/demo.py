"""A language model, made from nothing, learns to repair code in real sandboxes. `make demo` runs this.

    tokenizer → cloning of a demonstrator that knows where to edit but not what → PPO on the tests' verdicts → report

The demonstrator finds the broken line and replaces its operator, but it draws the right one only four times in ten.
What is right the model learns from the tests' verdict on its own repairs. It is measured before and after PPO on
held-out tasks, whose broken functions bear names that no training file contains.

A run that is stopped, by whatever death, goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import torch
import yaml

from swe_trainers.algorithms.cloning import Cloning
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.experiment import make_env
from swe_trainers.learning.learner import Learner
from swe_trainers.logging import Run, read_metrics
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import SentencePieceTokenizer, train_sentencepiece
from swe_trainers.provenance import write_provenance
from swe_trainers.report.curves import plot_metrics
from swe_trainers.report.page import write_report
from swe_trainers.rollout.demonstrations import Demonstration, demonstrated
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.rate import Rate, pace
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import EnvironmentConfig, EvaluationConfig
from swe_trainers.trainer import Trainer
from swegym_env.agent.observations import render_result
from swegym_env.cli.doctor import diagnose, render
from swegym_env.errors import SwegymError
from swegym_env.recording.record import find_records, read_record
from swegym_env.recording.recorder import RecordTrajectory
from swegym_env.recording.viewer import render_page
from swegym_env.sandbox.api import CommandResult
from swegym_env.sandbox.backends import find_backend
from swegym_env.tasks.data import mini_edit

# Demonstrations are of tasks that PPO never meets.
FIRST_DEMONSTRATED_TASK = 1_000_000
LEARNING_THREADS = 2


@dataclass(frozen=True)
class Demo:
    """What the demo is made of; written to `config.yaml` beside its results.

    Attributes:
        seed: of everything.
        sandbox: "auto", "apptainer" or "namespace".
        demonstrations: conversations to clone.
        skill: how often the demonstrator draws the right operator; null: as often as chance does.
        vocab_size: of the tokenizer, 256 bytes among it.
        model: a Hugging Face configuration.
        n_parallel: episodes played at once; null: 16 a core, 128 at most. While memory is short it is fewer.
        held_out_episodes: sampled at temperature 1, before and after PPO.
        curve_episodes: the first so many of them, measured between updates as well.
        curve_every: updates between those measurements.
        shown_episodes: the first so many of them are recorded before and after, for a page.
        max_turns: of an episode.
        max_new_tokens: of one action.
        max_tokens: of one episode.
        cloning: the first stage.
        ppo: the second.
    """

    seed: int = 0
    sandbox: str = "auto"
    demonstrations: int = 6000
    skill: float | None = 0.4
    vocab_size: int = 700
    model: dict[str, Any] = field(
        default_factory=lambda: {
            "model_type": "llama",
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "initializer_range": 0.08,  # near 1/sqrt(hidden_size): it copies names after half of the epochs
        }
    )
    n_parallel: int | None = None
    held_out_episodes: int = 240
    curve_episodes: int = 60
    curve_every: int = 5
    shown_episodes: int = 3
    max_turns: int = 4
    max_new_tokens: int = 24
    max_tokens: int = 200
    cloning: Cloning = Cloning(
        learning_rate=2e-3,
        warmup_updates=30,
        decay="linear",
        weight_decay=0.01,
        epochs=2,
        minibatch_episodes=32,
        pack=False,
    )
    ppo: PPO = PPO(
        learning_rate=2e-4,
        decay="linear",
        max_updates=10,
        episodes_per_update=256,
        epochs=2,
        minibatches=4,
        gamma=1.0,
        lam=0.95,
        value_coefficient=0.1,
        value_clip=None,
        kl_coefficient=0.01,
        kl_placement="reward",
        kl_estimator="k1",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        find_backend(options.sandbox)
        print(json.dumps(play(Demo(seed=options.seed, sandbox=options.sandbox), options.output)))
    except (TrainerError, SwegymError) as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"demo.py: interrupted; the same command goes on with {options.output}", file=sys.stderr)
        return 130
    return 0


def play(demo: Demo, output: Path) -> dict[str, Any]:
    """The whole demo, or what remains of it; the summary."""
    torch.set_num_threads(LEARNING_THREADS)
    with Run(output) as run:
        _keep_settings(run, demo)
        _say_what_the_machine_can_do(run)
        tokenizer = _tokenizer(demo)
        model = LanguageModel.from_config(demo.model, tokenizer, seed=demo.seed)
        size = sum(parameter.numel() for parameter in model.parameters())
        run.info(f"a model of {size:,} random parameters that knows {tokenizer.vocab_size} tokens")
        clone(demo, model, tokenizer, run)
        with Sandboxes(demo, model, run) as sandboxes:
            learner = reinforce(demo, model, sandboxes, run)
        model.save_pretrained(run.directory / "model")
        write_provenance(run.directory / "model", _environment(demo, "test"), "compact")
        return write_results(demo, learner, run)


def clone(demo: Demo, model: LanguageModel, tokenizer: SentencePieceTokenizer, run: Run) -> None:
    """The first stage: the form of a repair, and its place."""
    chat = CompactChat(tokenizer)
    episodes = [demonstrated(each, chat, tokenizer) for each in _demonstrations(demo)]
    Trainer(
        model,
        algorithm=demo.cloning,
        demonstrations=episodes,
        run=run,
        seed=demo.seed,
        checkpoint_every=50,
        log_every=50,
    ).train()


def reinforce(demo: Demo, model: LanguageModel, sandboxes: Sandboxes, run: Run) -> Learner:
    """The second stage: the repair itself, from the verdict of the tests."""
    return Trainer(
        model,
        algorithm=demo.ppo,
        play=sandboxes.train_episodes,
        evaluate=sandboxes.evaluate,
        evaluation=EvaluationConfig(every=demo.curve_every),
        callbacks=[lambda _, metrics: metrics.update(sandboxes.pace)],
        run=run,
        seed=demo.seed,
        checkpoint_every=1,
    ).train()


class Sandboxes:
    """The environments of the demo, and the engine that plays in them."""

    def __init__(self, demo: Demo, model: LanguageModel, run: Run) -> None:
        self._demo, self._run = demo, run
        self._chat = CompactChat(model.tokenizer)
        n = demo.n_parallel or min(16 * len(os.sched_getaffinity(0)), 128)
        self._engine = EmbeddedEngine(model, n_slots=n, max_tokens=demo.max_tokens)
        self._envs = {split: [make_env(_environment(demo, split)) for _ in range(n)] for split in ("train", "test")}
        self._n_tasks = len(mini_edit.load("train"))
        self.pace: dict[str, float] = {}  # of the latest episodes; see `Rate.metrics`

    def __enter__(self) -> Sandboxes:
        return self

    def __exit__(self, *_: object) -> None:
        for env in (*self._envs["train"], *self._envs["test"]):
            env.close()

    def train_episodes(self, update: int, attempt: int = 0) -> list[Trajectory]:
        """Episodes of the current policy on training tasks."""
        del attempt
        rng = random.Random(f"{self._demo.seed}/{update}")
        tasks = rng.sample(range(self._n_tasks), self._demo.ppo.episodes_per_update)
        seed = self._demo.seed * 100_003 + update
        return self._play(self._envs["train"], "train", tasks, seed=seed, title=f"episodes of update {update + 1}")

    def evaluate(self, learner: Learner) -> dict[str, float]:
        """The resolve rate on held-out tasks; those before and after PPO are kept for the report."""
        demo, when, recorded = self._demo, "", list[Recorded]()
        if not learner.updates or learner.updates == demo.ppo.max_updates:
            when = "after" if learner.updates else "before"
            folder = self._run.directory / "episodes" / when
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed while it measured
            tasks = [f"mini-edit__test-{number}" for number in range(demo.shown_episodes)]
            recorded = [Recorded(env, folder, tasks, when) for env in self._envs["test"]]
        n_episodes = demo.held_out_episodes if when else min(demo.curve_episodes, demo.held_out_episodes)
        envs = recorded or self._envs["test"]
        episodes = self._play(envs, "test", range(n_episodes), seed=demo.seed, title="held-out episodes")
        for env in recorded:
            env.finish()
        if when:
            _keep_episodes(self._run.directory / f"held_out_{when}.jsonl", episodes)
        valid = [episode for episode in episodes if episode.valid]
        resolved = sum(bool(episode.info.get("resolved")) for episode in valid)  # not in it: cut off at max_tokens
        return {
            "resolve_rate": resolved / max(len(valid), 1),
            "episodes": len(valid),
            "invalid": len(episodes) - len(valid),
        }

    def _play(
        self, envs: Sequence[gymnasium.Env[str, str]], split: str, tasks: Sequence[int], *, seed: int, title: str
    ) -> list[Trajectory]:
        demo, rate = self._demo, Rate()
        torch.set_num_threads(1)  # the other cores are the sandboxes' now
        starts = [
            EpisodeStart(seed=task, options={"instance_id": f"mini-edit__{split}-{task}"}, group=task) for task in tasks
        ]
        with self._run.progress(title, len(tasks)) as bar:
            limits = Limits(max_new_tokens=demo.max_new_tokens, max_tokens=demo.max_tokens)
            settings, episodes = EpisodeSettings(limits), dict[int, list[Trajectory]]()
            for ended in iter_episodes(self._engine, self._chat, envs, starts, settings, seed=seed, rate=rate):
                episodes[ended.number] = ended.trajectories
                bar.describe(f"{title}: {pace(rate.metrics())}")
                bar.advance()
        torch.set_num_threads(LEARNING_THREADS)
        if split == "train":
            self.pace = rate.metrics()
        return [episode for number in sorted(episodes) for episode in episodes[number]]


class Recorded(gymnasium.Wrapper[str, str, str, str]):
    """Records the episodes of some tasks for `swegym view`; those of others pass.

    Args:
        env: an environment of the demo.
        folder: where records are written.
        tasks: ids of the recorded ones.
        when: noted in each record.
    """

    def __init__(self, env: gymnasium.Env[str, str], folder: Path, tasks: Sequence[str], when: str) -> None:
        super().__init__(env)
        self._recording = RecordTrajectory(env, folder, notes={"policy": f"{when} PPO"})
        self._tasks = tasks
        self._played = env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, and its record if there is to be one."""
        self._played = self._recording if (options or {}).get("instance_id") in self._tasks else self.env
        return self._played.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step what the reset chose."""
        return self._played.step(action)

    def finish(self) -> None:
        """Write the record of an episode that the limit on tokens has ended."""
        self._recording.finish()


def write_results(demo: Demo, learner: Learner, run: Run) -> dict[str, Any]:
    """The summary, the report, its curves and a page of episodes; the last lines of the log say how to look at them."""
    rows = read_metrics(run.directory / "metrics.jsonl")
    measured = [row for row in rows if "eval/resolve_rate" in row]
    before, after = measured[0], measured[-1]
    kept = _kept_episodes(run.directory, "after")
    summary = {
        "format": 1,
        "resolve_rate_before": before["eval/resolve_rate"],
        "resolve_rate_after": after["eval/resolve_rate"],
        "episodes": learner.episodes,
        "held_out_episodes": int(after["eval/episodes"]),
        "invalid_episodes": int(sum(row.get("eval/invalid", 0) + row.get("episodes_invalid", 0) for row in rows)),
        "seconds": round(_seconds(rows), 1),
        "sandbox": kept[0]["info"].get("sandbox", ""),
        "seed": demo.seed,
    }
    (run.directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plot_metrics(run.directory / "metrics.jsonl", run.directory / "curves.png")
    (run.directory / "report.md").write_text(_report(demo, summary, run.directory))
    run.info(
        f"held-out tasks resolved: {percent(summary['resolve_rate_before'])} after cloning, "
        f"{percent(summary['resolve_rate_after'])} after PPO; read {run.directory / 'report.md'}"
    )
    report, page = write_report([run.directory]), run.directory / "episodes" / "view.html"
    records = [read_record(folder) for folder in find_records(page.parent)]
    records.sort(key=lambda record: (record.instance_id, record.meta["recorded_at"]))
    page.write_text(render_page(records, title="Held-out tasks before and after PPO"))
    run.info(f"look at the curves: python -m webbrowser {report}")
    run.info(f"look at {demo.shown_episodes} episodes before and after: python -m webbrowser {page}")
    run.info(f"play the trained model: swe-eval {run.directory} --episodes 20")
    run.info(f"look at its episodes: swegym view {run.directory / 'evaluation'}")
    return summary


def percent(fraction: float) -> str:
    """`36.3 %`, rounded half up: 87 of 240 are 36.25 %."""
    return f"{math.floor(fraction * 1000 + 0.5) / 10:.1f} %"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="a run that is there is continued")
    parser.add_argument("--sandbox", default="auto", help="auto, apptainer or namespace")
    return parser


def _environment(demo: Demo, split: str) -> EnvironmentConfig:
    return EnvironmentConfig(
        id="swegym_env:SWEBench-v0",
        kwargs={
            "dataset": "mini-edit",
            "split": split,
            "sandbox": demo.sandbox,
            "action_format": "raw",
            "prompt": "terse",
            "max_turns": demo.max_turns,
            "turn_timeout_s": 10.0,
        },
        max_tokens=demo.max_tokens,
        max_new_tokens=demo.max_new_tokens,
    )


def _tokenizer(demo: Demo) -> SentencePieceTokenizer:
    texts = [text for each in _demonstrations(demo)[:1000] for text in (*each.observations, *each.actions)]
    return train_sentencepiece(
        texts,
        demo.vocab_size,
        split_by_whitespace=False,
        separators=["[exit code 0]", *"_(|0123456789"],
        max_piece_length=24,
    )


def _demonstrations(demo: Demo) -> list[Demonstration]:
    """Conversations of the demonstrator, written without a sandbox; a test replays them in one and finds them equal."""
    rng = random.Random(f"demonstrations/{demo.seed}")
    return [_demonstration(FIRST_DEMONSTRATED_TASK + number, rng, demo.skill) for number in range(demo.demonstrations)]


def _demonstration(number: int, rng: random.Random, skill: float | None) -> Demonstration:
    task = mini_edit.generate(number)
    look, edit, submit = mini_edit.demonstration(task, rng, skill=skill)
    (source,) = task.files.values()
    lines = source.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"def {look.split()[3]}("))
    seen = CommandResult(f"{at + 1}:{lines[at]}\n{at + 2}-{lines[at + 1]}\n", 0)
    after_look, after_edit = (render_result(result, limit_chars=10_000).text for result in (seen, CommandResult("", 0)))
    return Demonstration([task.problem_statement, after_look, after_edit], [look, edit, submit])


def _keep_settings(run: Run, demo: Demo) -> None:
    """Write `config.yaml`, or refuse to go on with a run of other settings."""
    path = run.directory / "config.yaml"
    settings = yaml.safe_dump(dataclasses.asdict(demo), sort_keys=False)
    if path.exists() and path.read_text() != settings:
        raise ConfigurationError(f"{run.directory} holds a run of other settings. Try: another --output, or remove it")
    path.write_text(settings)


def _say_what_the_machine_can_do(run: Run) -> None:
    for line in render(diagnose()).splitlines():
        run.info(line)


def _keep_episodes(path: Path, episodes: Sequence[Trajectory]) -> None:
    rows = [
        {
            "turns": [dataclasses.asdict(turn) for turn in episode.turns],
            "info": dict(episode.info),
            "valid": episode.valid,
        }
        for episode in episodes
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _seconds(rows: Sequence[dict[str, Any]]) -> float:
    """Of learning, sampling and measuring, over all starts of the run, less what a killed start had not saved."""
    last = {row["stage"]: row["seconds"] for row in rows if "seconds" in row}
    return float(sum(last.values()) + sum(row.get("seconds/evaluate", 0.0) for row in rows))


def _kept_episodes(directory: Path, when: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / f"held_out_{when}.jsonl").read_text().splitlines()]


def _report(demo: Demo, summary: dict[str, Any], directory: Path) -> str:
    before, after = _kept_episodes(directory, "before"), _kept_episodes(directory, "after")
    learned = [
        pair
        for pair in zip(before, after, strict=True)
        if pair[1]["info"].get("resolved") and not pair[0]["info"].get("resolved")
    ]
    shown = learned[0] if learned else (before[0], after[0])
    return f"""# A language model learns to repair code

A transformer with random weights cloned {demo.demonstrations:,} written demonstrations. They find the broken line and
replace its operator, by the right one with probability {demo.skill}. Then PPO let it repair {summary["episodes"]:,}
training tasks in `{summary["sandbox"]}` sandboxes, with the verdict of the hidden tests as its only reward.

| held-out tasks resolved (temperature 1, {summary["held_out_episodes"]} episodes) | |
|---|---|
| after cloning | {percent(summary["resolve_rate_before"])} |
| after PPO | {percent(summary["resolve_rate_after"])} |

No training file contains the name of a function that is broken in a held-out task. Seed {demo.seed},
{summary["seconds"]:.0f} s, {summary["invalid_episodes"]} episodes lost to the machine.

![curves](curves.png)

## The same held-out task before PPO

{_as_text(shown[0])}

## … and after

{_as_text(shown[1])}
"""


def _as_text(episode: dict[str, Any]) -> str:
    lines = (
        [f"`{episode['info'].get('instance_id', '')}`", "```text"] if "instance_id" in episode["info"] else ["```text"]
    )
    for turn in episode["turns"]:
        lines += [turn["observation"], f">>> {turn['action']}"]
    lines += ["```", "", f"Resolved: **{'yes' if episode['info'].get('resolved') else 'no'}**. The patch:", "```diff"]
    return "\n".join([*lines, str(episode["info"].get("patch", "")).rstrip(), "```"])


if __name__ == "__main__":
    sys.exit(main())
