"""The loop around every algorithm: resume, step, record, evaluate, save, stop.

`train` is that loop in one piece; two thirds of its lines say what it is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from swe_trainers.checkpoint import Checkpoints
from swe_trainers.errors import CheckpointError
from swe_trainers.kernels import comparing
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.ranks import agreed
from swe_trainers.logging import Run

__all__ = ["Evaluate", "Step", "train"]

Step = Callable[[Learner], Mapping[str, float]]
"""One update: changes the learner and says what it measured."""
Evaluate = Callable[[Learner], Mapping[str, float]]
"""Measures the policy without changing it; a function of the policy and of the learner's number of updates alone."""


def train(
    learner: Learner,
    step: Step,
    *,
    run: Run,
    max_updates: int,
    name: str = "train",
    max_seconds: float = math.inf,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 0,
    checkpoint_every: int = 1,
    log_every: int = 1,
    compare_kernels_every: int = 0,
    keep_checkpoints: int = 2,
    should_stop: Callable[[Learner, Mapping[str, float]], bool] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Learner:
    """Repeat an algorithm's step, from the newest checkpoint if there is one, until a limit is reached.

    A run that dies at any moment and is started again goes on from the last update saved; on the CPU it then computes
    what it would have computed, bit for bit, where the step is a function of the learner and the random states.

    Args:
        learner: at its start; changed in place.
        step: one update.
        run: where everything is written; checkpoints go to its `checkpoints/NAME`.
        max_updates: updates in all, those before a resume counted.
        name: of this stage; stages of one run have their own checkpoints, and their metrics carry it as `stage`.
        max_seconds: no update begins after these, those before a resume counted.
        evaluate: measured before the first update, every so many, and after the last, as `eval/NAME`.
        evaluate_every: updates between; 0 for the first and the last only.
        checkpoint_every: updates between; the last is always saved.
        log_every: updates between lines on the console; `metrics.jsonl` has them all.
        compare_kernels_every: updates between those whose log-probabilities, entropies and gradients are computed by
            two back ends, and their largest relative differences recorded as `kernels/…`; 0 for none.
        keep_checkpoints: how many of the newest stay.
        checkpoints: where they are kept; `checkpoints/NAME` in the run's directory where not given.
        should_stop: asked after every update, with its metrics and, where it was evaluated, the measurements.
    Returns:
        The learner.
    Raises:
        CheckpointError: a checkpoint cannot be read, or does not fit the learner; or cannot be written.
    """
    checkpoints = checkpoints or Checkpoints(run.directory / "checkpoints" / name, keep=keep_checkpoints)
    stopped = _resume(learner, checkpoints, run, name)
    if learner.updates == 0 and evaluate is not None:
        run.record(0, {"stage": name, **_evaluated(evaluate, learner)})
    with run.progress(name, max_updates, done=learner.updates) as bar:
        while not stopped and learner.updates < max_updates and learner.seconds < max_seconds:
            compare = compare_kernels_every > 0 and learner.updates % compare_kernels_every == 0
            metrics = _stepped(step, learner, compare=compare)
            last = learner.updates >= max_updates or learner.seconds >= max_seconds
            due = last or (evaluate_every and learner.updates % evaluate_every == 0)
            if evaluate is not None and due:
                metrics |= _evaluated(evaluate, learner)
            stopped = should_stop is not None and should_stop(learner, metrics)
            if evaluate is not None and stopped and not due:
                metrics |= _evaluated(evaluate, learner)
            run.record(learner.updates, {"stage": name, **metrics, "seconds": round(learner.seconds, 3)})
            if stopped or last or learner.updates % log_every == 0:
                run.info(_line(name, learner, max_updates, metrics))
            if stopped or last or learner.updates % checkpoint_every == 0:
                checkpoints.save(learner.updates, {"learner": learner.state_dict(), "stopped": stopped})
            bar.advance()
    return learner


def _stepped(step: Step, learner: Learner, *, compare: bool) -> dict[str, float]:
    """One update, counted and its time taken; `compare`: what two kernel back ends make of it is measured too."""
    started = time.monotonic()
    with comparing() if compare else nullcontext() as found:
        metrics = dict(step(learner))
    if found is not None:
        metrics |= {f"kernels/{name}_error": error for name, error in found.errors.items()}
    learner.updates += 1
    learner.seconds = agreed(learner.seconds + time.monotonic() - started)
    return metrics


def _resume(learner: Learner, checkpoints: Checkpoints, run: Run, name: str) -> bool:
    """Take up the newest checkpoint; True where `should_stop` had ended the stage."""
    found = checkpoints.latest()
    if found is None:
        run.rewind(name, -1)  # the measurement before the first update is made anew too
        return False
    state = checkpoints.load(found)
    try:
        learner.load_state_dict(state["learner"])
        stopped = bool(state["stopped"])
    except (KeyError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{found}: does not fit this model and optimiser: {reason}") from error
    run.rewind(name, learner.updates)
    run.info(f"{name}: goes on from {found.name} ({learner.updates} updates, {learner.seconds:.0f} s)")
    return stopped


def _evaluated(evaluate: Evaluate, learner: Learner) -> dict[str, float]:
    started = time.monotonic()
    measured = {f"eval/{name}": value for name, value in evaluate(learner).items()}
    return {**measured, "seconds/evaluate": time.monotonic() - started}


def _line(name: str, learner: Learner, max_updates: int, metrics: Mapping[str, float]) -> str:
    """What a person wants to see of an update."""
    shown = ["loss", "reward_mean", "kl_old", "entropy", "explained_variance", "grad_norm"]
    shown += [metric for metric in metrics if metric.startswith("eval/")]
    parts = [f"{metric} {metrics[metric]:.4g}" for metric in shown if metric in metrics]
    return f"{name} {learner.updates}/{max_updates}  {'  '.join(parts)}  ({learner.seconds:.0f} s)"
