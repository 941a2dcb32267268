"""Log-probabilities, entropies and KL divergences of tokens, for every algorithm's loss and usable from any trainer.

`token_logprobs`, `linear_kl` and `top_logprobs` compute them from hidden states, without the logits in memory;
`token_logprobs_from_logits` and `full_kl` from logits. Each has a Triton and a PyTorch back end with the same results
and a float64 reference.
"""

from __future__ import annotations

from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.choice import BACKENDS
from swe_trainers.kernels.comparison import Comparison, comparing
from swe_trainers.kernels.dispatch import token_logprobs, token_logprobs_from_logits
from swe_trainers.kernels.kl import full_kl, linear_kl
from swe_trainers.kernels.linear import VocabularyShard
from swe_trainers.kernels.reference import token_logprobs_reference
from swe_trainers.kernels.top import top_logprobs

__all__ = [
    "BACKENDS",
    "AllowedTokens",
    "Comparison",
    "VocabularyShard",
    "comparing",
    "full_kl",
    "linear_kl",
    "token_logprobs",
    "token_logprobs_from_logits",
    "token_logprobs_reference",
    "top_logprobs",
]
