"""Behavioural cloning (supervised fine-tuning): maximise the likelihood of demonstrated actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from swe_trainers.algorithms.algorithm import Supervised
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import Policy, take_snapshot
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.update import TokenLoss, accumulate

__all__ = ["Cloning", "cloning_loss"]


@dataclass(frozen=True)
class Cloning(Supervised):
    """Behavioural cloning, or supervised fine-tuning, on demonstrations or recorded episodes.

    Attributes:
        minimum_return: exclude episodes with a smaller return; null: train on all valid episodes.
        aggregation: how tokens are averaged: every `token`, `sequence` or `prompt` counts the same.
    """

    learning_rate: float = 1e-3
    minimum_return: float | None = None
    aggregation: Literal["token", "sequence", "prompt"] = "token"

    def examples(self, batch: Batch) -> Tensor:
        """The demonstrations, (E,) int64; see `Supervised.examples`."""
        least = -math.inf if self.minimum_return is None else self.minimum_return
        found = (batch.total(batch.rewards) >= least).nonzero().squeeze(1)
        if not len(found):
            wanted = "valid with an action" + (
                "" if self.minimum_return is None else f" and a return of {least} or more"
            )
            raise ConfigurationError(f"demonstrations: none of {len(batch.episodes)} are {wanted}")
        return found

    def accumulate(self, learner: Learner, batch: Batch, examples: Tensor) -> dict[str, float]:
        """Gradients of the negative log-likelihood: `loss` in nats a token, `perplexity` and `entropy`."""
        metrics = accumulate(
            learner.model,
            learner.optimizer,
            batch,
            examples,
            lambda tokens: TokenLoss(-tokens.logprobs, means={"entropy": tokens.entropy.detach()}),
            microbatch_tokens=self.microbatch_tokens,
            aggregation=self.aggregation,
            pack=self.pack,
            share=self.share_prefixes,
        )
        return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


def cloning_loss(model: Policy, batch: Batch, *, microbatch_tokens: int = 8192) -> float:
    """Negative log-likelihood in nats a demonstrated action token, for held-out demonstrations."""
    snapshot = take_snapshot(model, batch, microbatch_tokens=microbatch_tokens)
    return -float(snapshot.logprobs[batch.action_mask].mean())
