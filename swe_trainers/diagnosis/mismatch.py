"""Differences between the log-probabilities of engine and trainer, token by token, and their likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from swe_trainers.errors import TrainerError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Cause", "Mismatch", "WorstToken", "find_mismatch"]

Cause = Literal["none", "rounding", "shift", "temperature", "truncation", "context", "weights"]

_EXACT = 1e-3  # nats; the rounding of float32 is well below
_TEMPERATURES = (0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
_ADVICE: dict[Cause, str] = {
    "none": "engine and trainer agree",
    "rounding": "both compute in low precision, in different orders. Try: trainer.correction truncate",
    "shift": "the engine's log-probabilities belong to the neighbouring token",
    "temperature": "the tokens were sampled at another temperature than the trainer's",
    "truncation": "the engine sampled from a truncated distribution (top_k, top_p, min_p) and did not record what it "
    "kept, the trainer computes the whole one. Try: engine.kind embedded, or trainer.correction truncate",
    "context": "first turns agree and later ones do not: the engine's context differs from the recorded one, e.g. a "
    "history that was tokenised again, or a stale cache",
    "weights": "all tokens differ: the engine has other weights, e.g. those of an earlier update",
}


@dataclass(frozen=True)
class WorstToken:
    """A token with a large difference.

    Attributes:
        episode, turn, place: its position; `place` counts the episode's tokens.
        text: of the token.
        engine, trainer: its log-probabilities.
    """

    episode: int
    turn: int
    place: int
    text: str
    engine: float
    trainer: float


@dataclass(frozen=True)
class Mismatch:
    """The differences between engine and trainer.

    Attributes:
        tokens: number of compared tokens.
        mean, percentile_99, largest: of the absolute difference, nats.
        cause: the likely cause. advice: its meaning and remedy. detail: the evidence for it.
        worst: the tokens with the largest differences, in descending order.
    """

    tokens: int
    mean: float
    percentile_99: float
    largest: float
    cause: Cause
    advice: str
    detail: str
    worst: tuple[WorstToken, ...]

    def plain(self) -> dict[str, Any]:
        """Values for JSON."""
        return asdict(self)

    def report(self) -> str:
        """A report as text."""
        sizes = f"mean {self.mean:.2g}, 99 % below {self.percentile_99:.2g}, largest {self.largest:.2g}"
        lines = [
            f"{self.tokens} tokens, differences in nats: {sizes}",
            f"likely cause: {self.cause}: {self.advice} ({self.detail})",
            "episode  turn  place  engine   trainer  token",
        ]
        lines += [
            f"{w.episode:7}  {w.turn:4}  {w.place:5}  {w.engine:7.3f}  {w.trainer:7.3f}  {w.text!r}" for w in self.worst
        ]
        return "\n".join(lines)


def find_mismatch(
    model: LanguageModel,
    trajectories: Sequence[Trajectory],
    *,
    temperature: float = 1.0,
    microbatch_tokens: int = 8192,
    n_worst: int = 10,
) -> Mismatch:
    """Compare the log-probabilities recorded by the engine with those computed by the trainer.

    Args:
        model: the policy that sampled the tokens.
        trajectories: played by the engine.
        temperature: of the trainer.
        microbatch_tokens: tokens of one forward pass.
        n_worst: number of single tokens in the result.
    Raises:
        TrainerError: no trajectory is valid and has an action.
    """
    batch = Batch.of(trajectories)
    if not batch.n_sequences:
        raise TrainerError(f"none of {len(trajectories)} episodes is valid and has an action: nothing to compare")

    def trainer_at(t: float) -> Tensor:
        seen = take_snapshot(model, batch, microbatch_tokens=microbatch_tokens, temperature=t)
        return seen.logprobs[batch.action_mask]

    engine, trainer = batch.rollout_logprobs[batch.action_mask], trainer_at(temperature)
    gaps = (engine - trainer).abs()
    cause, detail = _cause(model, batch, engine, trainer)
    if cause in ("weights", "context", "truncation"):
        others = {t: float((engine - trainer_at(t)).abs().mean()) for t in _TEMPERATURES if t != temperature}
        best = min(others, key=lambda t: others[t])
        if others[best] < 0.2 * float(gaps.mean()):
            cause, detail = "temperature", f"at {best} the mean difference is {others[best]:.2g}"
    return Mismatch(
        tokens=len(gaps),
        mean=float(gaps.mean()),
        percentile_99=float(gaps.quantile(0.99)),
        largest=float(gaps.max()),
        cause=cause,
        advice=_ADVICE[cause],
        detail=detail,
        worst=_worst(model, batch, engine, trainer, n_worst),
    )


def _cause(model: LanguageModel, batch: Batch, engine: Tensor, trainer: Tensor) -> tuple[Cause, str]:
    gap = engine - trainer
    mean = float(gap.abs().mean())
    if float(gap.abs().max()) < _EXACT:
        return "none", f"no token differs by {_EXACT} nats"
    narrow = model.unembedding.weight.dtype in (torch.bfloat16, torch.float16)
    if narrow and mean < 0.05:
        return "rounding", f"the weights are {str(model.unembedding.weight.dtype).removeprefix('torch.')}"
    sequence = batch.sequence_of_token[batch.action_mask]
    same = sequence[1:] == sequence[:-1]
    for name, shifted in (("next", engine[1:] - trainer[:-1]), ("previous", engine[:-1] - trainer[1:])):
        if bool(same.any()) and float(shifted[same].abs().mean()) < 0.1 * mean:
            return "shift", f"shifted by one, to the {name} token, they agree"
    turn = _turn_of_action(batch)
    first, later = gap.abs()[turn == 0], gap.abs()[turn > 0]
    if len(later) and float(first.max()) < _EXACT and float(later.mean()) > 10 * _EXACT:
        return (
            "context",
            f"the first turns differ by {float(first.max()):.1g} at most, later ones by {later.mean():.2g}",
        )
    if float((gap > -_EXACT).float().mean()) > 0.999:
        return "truncation", "the engine's probability is never smaller"
    return "weights", f"{float((gap.abs() > _EXACT).float().mean()):.0%} of the tokens differ, in both directions"


def _turn_of_action(batch: Batch) -> Tensor:
    """(A,) int64: the turn of each action token in its trajectory."""
    ends = batch.turn_ends.long().cumsum(0) - batch.turn_ends.long()  # turns that ended before each token
    before = ends[batch.offsets[:-1]]
    return (ends - before[batch.sequence_of_token])[batch.action_mask]


def _worst(model: LanguageModel, batch: Batch, engine: Tensor, trainer: Tensor, n_worst: int) -> tuple[WorstToken, ...]:
    places, turns = batch.action_mask.nonzero().squeeze(1), _turn_of_action(batch)
    chosen = (engine - trainer).abs().argsort(descending=True)[:n_worst]
    found = []
    for at in chosen.tolist():
        place = int(places[at])
        episode = int(batch.sequence_of_token[place])
        found.append(
            WorstToken(
                episode=episode,
                turn=int(turns[at]),
                place=place - int(batch.offsets[episode]),
                text=model.tokenizer.decode([int(batch.token_ids[place])]) or f"id {int(batch.token_ids[place])}",
                engine=float(engine[at]),
                trainer=float(trainer[at]),
            )
        )
    return tuple(found)
