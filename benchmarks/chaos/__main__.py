"""Undisturbed training runs beside runs whose processes are killed at random, from the same model.

The demo's model clones demonstrations; then PPO trains on `mini-edit` with a pool of three servers and a generation
server: undisturbed, and under SIGKILL at random moments, once with two training ranks, once with two Ray workers. It
fails if a disturbed run does not reach the same update, anything of a sandbox is left, a command ran twice or never, or
the resolve rate after the run is outside the range of the undisturbed seeds, widened by the noise of the evaluation.

    python -m benchmarks.chaos [--updates 6 --seeds 3 --disturbed 1]      # benchmarks/results/chaos.json
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.chaos.run import Deaths, Outcome, Setting, train
from benchmarks.records import Row, row, write_results
from examples import demo
from swe_trainers.logging import Run
from swe_trainers.model.language_model import LanguageModel

__all__ = ["cloned_model", "main"]


def cloned_model(folder: Path, *, demonstrations: int, epochs: int) -> Path:
    """The demo's model after its first stage."""
    settings = demo.Demo(demonstrations=demonstrations)
    settings = dataclasses.replace(settings, cloning=dataclasses.replace(settings.cloning, epochs=epochs))
    tokenizer = demo._tokenizer(settings)
    model = LanguageModel.from_config(settings.model, tokenizer, seed=0)
    with Run(folder / "cloning", console=False) as run:
        demo.clone(settings, model, tokenizer, run)
    model.save_pretrained(folder / "model")
    return folder / "model"


def within(outcome: Outcome, undisturbed: list[Outcome], held_out: int) -> bool:
    """Whether its last evaluation lies within the range of the others, plus three standard errors."""
    shares = [each.resolved[-1] for each in undisturbed]
    mean = sum(shares) / len(shares)
    noise = 3 * math.sqrt(max(mean * (1 - mean), 0.01) / held_out)
    return min(shares) - noise <= outcome.resolved[-1] <= max(shares) + noise


def faults(outcome: Outcome, setting: Setting, undisturbed: list[Outcome]) -> list[str]:
    """The faults of a run."""
    found = []
    if outcome.steps != setting.updates or outcome.updates != setting.updates:
        found.append(f"{outcome.updates} updates, the last {outcome.steps}, of {setting.updates}")
    if outcome.ledger.twice or outcome.ledger.never:
        found.append(f"{outcome.ledger.twice} commands ran twice, {outcome.ledger.never} never")
    if any(outcome.left.values()):
        found.append(f"left: {outcome.left}")
    if outcome.episodes + outcome.invalid != setting.updates * setting.episodes:
        found.append(f"{outcome.episodes} valid and {outcome.invalid} invalid episodes")
    if undisturbed and setting.held_out and not within(outcome, undisturbed, setting.held_out):
        found.append(f"{outcome.resolved[-1]:.2f} resolved, others {[each.resolved[-1] for each in undisturbed]}")
    return found


def rows_of(name: str, outcome: Outcome) -> list[Row]:
    """The result rows of a run."""
    counts = {
        "updates": outcome.steps,
        "episodes": outcome.episodes,
        "invalid episodes": outcome.invalid,
        "commands": outcome.ledger.commands,
        "commands that ran twice": outcome.ledger.twice,
        "commands that never ran": outcome.ledger.never,
        **{f"deaths: {kind}": count for kind, count in sorted(outcome.deaths.items())},
        **{f"left: {what}": count for what, count in outcome.left.items()},
    }
    rows = [row(name, metric, "count", [count]) for metric, count in counts.items()]
    rows += [row(name, "resolved", "share", [each]) for each in outcome.resolved]
    rows += [row(name, f"reward of update {number}", "", [each]) for number, each in enumerate(outcome.rewards, 1)]
    return [*rows, row(name, "took", "s", [outcome.seconds])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--episodes", type=int, default=64, help="of an update (%(default)s)")
    parser.add_argument("--held-out", type=int, default=96, help="episodes of a measurement (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="undisturbed runs (%(default)s)")
    parser.add_argument("--disturbed", type=int, default=1, help="runs of each kind under deaths (%(default)s)")
    parser.add_argument("--demonstrations", type=int, default=3000, help="to clone first (%(default)s)")
    parser.add_argument("--model", type=Path, help="instead of cloning one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs there")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="swegym-chaos-"))
    model = options.model or cloned_model(folder, demonstrations=options.demonstrations, epochs=4)
    setting = Setting(str(model), options.updates, options.episodes, options.held_out)
    rows: list[Row] = []
    undisturbed: list[Outcome] = []
    wrong = 0
    playing = {"ranks die": setting, "workers die": dataclasses.replace(setting, ranks=1, workers=2)}
    cases: list[tuple[str, Setting, Deaths | None, int]] = [
        ("undisturbed", setting, None, seed) for seed in range(options.seeds)
    ]
    cases += [
        (kind, how, Deaths(seed=seed), seed) for kind, how in playing.items() for seed in range(options.disturbed)
    ]
    for kind, how, deaths, seed in cases:
        name = f"{kind}, seed {seed}"
        outcome = train(how, folder / name.replace(", ", "-").replace(" ", "-"), seed=seed, deaths=deaths)
        rows += rows_of(name, outcome)
        found = faults(outcome, how, undisturbed if deaths else [])
        wrong += bool(found)
        if deaths is None:
            undisturbed.append(outcome)
        print(f"{name}: {outcome}; {'; '.join(found) or 'as it must be'}", flush=True)
    ratios = {"runs_with_faults": float(wrong)}
    write_results("chaos", rows, ratios=ratios, packages=["torch", "ray", "fastapi", "uvicorn"], path=options.output)
    if options.keep is None:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
