"""Which quantities a report shows together, in the order in which one asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_trainers.report.series import Curve, curve

__all__ = ["Panel", "panels_of", "phases"]

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Panel:
    """One diagram.

    Attributes:
        title: what it shows.
        curves: at most six.
        note: how to read it, in a sentence.
        share: the values are shares, from 0 to 1.
        stacked: curves add up and are drawn on top of one another.
    """

    title: str
    curves: tuple[Curve, ...]
    note: str = ""
    share: bool = False
    stacked: bool = False


@dataclass(frozen=True)
class _Kind:
    title: str
    names: tuple[str, ...]  # a name that ends with a slash stands for all that begin so
    note: str = ""
    share: bool = False


_KINDS = (
    _Kind("Success when measured", ("eval/success", "eval/resolve_rate"), share=True),
    _Kind("Return when measured", ("eval/return",)),
    _Kind("Return of training episodes", ("reward_mean", "environment_reward_mean")),
    _Kind("Reward by part", ("reward/",), "The sum of an episode, in the mean."),
    _Kind("Loss", ("loss", "policy_loss", "value_loss")),
    _Kind("Entropy", ("entropy",), "Nats a token. A fall to 0 means that nothing is tried any more."),
    _Kind("Divergence", ("kl_old", "kl_reference"), "Nats a token, from the policy that played and the reference."),
    _Kind("Clipped share", ("clip_fraction", "value_clip_fraction"), "Tokens whose gradient was cut off.", share=True),
    _Kind("Explained variance", ("explained_variance",), "Of returns, by the critic; 0 is a constant's."),
    _Kind("Gradient norm", ("grad_norm", "critic_grad_norm"), "Before it is scaled down."),
    _Kind("Accuracy of pairs", ("accuracy",), share=True),
    _Kind("Tokens of an episode", ("length/tokens", "length/action_tokens", "length/tokens_max")),
    _Kind("Turns of an episode", ("turns_mean",)),
    _Kind("How episodes ended", ("environment/end_reason/",), share=True),
    _Kind(
        "Cut off and left out",
        ("truncated_share", "left_out_share"),
        "Ended by a limit; invalid, and not learnt from.",
        share=True,
    ),
    _Kind("Resolved in training", ("environment/resolved",), share=True),
    _Kind(
        "Size of patches", ("patch/lines_added", "patch/lines_removed", "patch/files"), "Of an episode, in the mean."
    ),
    _Kind("Effective sample share", ("effective_sample_share",), share=True),
    _Kind("Engine against trainer", ("engine_logprob_gap", "engine/probe_gap"), "Of log-probabilities, nats."),
    _Kind("Learning rate", ("learning_rate",)),
)
_PHASES = ("seconds/collect", "seconds/learn", "seconds/evaluate")


def panels_of(runs: Sequence[Rows]) -> list[Panel]:
    """The diagrams of a stage; those without data are left out.

    Args:
        runs: rows of each run, of one stage.
    """
    runs = [[_with_shares(row) for row in rows] for rows in runs]
    found = []
    for kind in _KINDS:
        curves = tuple(filter(None, (curve(name, runs) for name in _names(kind.names, runs))))[:6]
        if curves:
            found.append(Panel(kind.title, curves, kind.note, kind.share))
    times = phases(runs)
    if times:
        found.append(Panel("Seconds of an update", times, "By phase, on top of one another.", stacked=True))
    speeds = [[_speeds(row) for row in rows] for rows in runs]
    curves = tuple(filter(None, (curve(name, speeds) for name in ("sampled", "learnt"))))
    if curves:
        note = "Sampled while episodes are played, sandboxes' time included; learnt from in an update."
        found.append(Panel("Tokens a second", curves, note))
    return found


def phases(runs: Sequence[Rows]) -> tuple[Curve, ...]:
    """Seconds of each phase of an update."""
    return tuple(filter(None, (curve(name, runs) for name in _PHASES if name != "seconds/evaluate")))


def _names(patterns: Sequence[str], runs: Sequence[Rows]) -> Iterator[str]:
    for pattern in patterns:
        if pattern.endswith("/"):
            yield from sorted({name for rows in runs for row in rows for name in row if name.startswith(pattern)})
        else:
            yield pattern


def _with_shares(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the share of episodes that were left out."""
    out, learnt = row.get("episodes_left_out"), row.get("episodes")
    if out is None or not learnt:
        return row
    return {**row, "left_out_share": out / (out + learnt)}


def _speeds(row: Mapping[str, Any]) -> Mapping[str, Any]:
    def rate(amount: str, seconds: str) -> float | None:
        return row[amount] / row[seconds] if row.get(amount) and row.get(seconds) else None

    sampled, learnt = rate("engine/sampled_tokens", "seconds/collect"), rate("tokens", "seconds/learn")
    return {"update": row["update"], "sampled": sampled, "learnt": learnt}
