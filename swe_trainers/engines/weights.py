"""Weights on their way from the trainer to a server, and the proof that they arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.weight_transfer import WeightTransfer
from swe_trainers.errors import EngineError
from swe_trainers.policy.language_model import VALUE_HEAD_FILE, LanguageModel

__all__ = ["WeightSync", "check_server", "write_served"]

_PROBE_PROMPT_TOKENS, _PROBE_TOKENS = 48, 16
"""Long enough that a server with a prefix cache would use it, and so give away that it was not dropped."""


class WeightSync:
    """Keeps a server's weights those of the policy, and stops the run where they are not.

    Servers have taken weights wrongly without a word: a tied projection left as it was, a cache of the former weights
    kept. After every change a short probe therefore has the server sample, and compares its log-probabilities with
    what the policy says of the same tokens.

    Args:
        model: the policy.
        engine: in front of the server.
        folder: where weights are written, and read from by the server.
        tolerance: the greatest mean difference of log-probabilities, in nats.
        save: writes the policy to a folder; `write_served` where not given.
        transfer: sends weights from memory, in the folder's place.
        keep: write them to the folder even so, for a server that is started again while the policy learns on.
    """

    def __init__(
        self,
        model: LanguageModel,
        engine: ServedEngine,
        folder: str | Path,
        *,
        tolerance: float,
        save: Callable[[Path], None] | None = None,
        transfer: WeightTransfer | None = None,
        keep: bool = False,
    ) -> None:
        self._model, self._engine, self._folder = model, engine, Path(folder)
        self._tolerance, self._transfer, self._keep = tolerance, transfer, keep
        self._save = save or (lambda folder: write_served(model, folder))
        self.gap = 0.0
        self._proven: _Proof | None = None

    def send(self, version: int, sampling: Sampling) -> None:
        """Give the server the policy's weights as they are now.

        Args:
            version: which they are; every token sampled from now on carries it.
            sampling: how tokens will be drawn.
        Raises:
            EngineError: the server does not take them, or does not compute with them what the policy computes.
        """
        self._proven = None  # a server that starts again from here on may have either
        transfer = self._transfer
        if transfer is None or self._keep:
            self._save(self._folder)
        if transfer is None:
            self._engine.reload(self._folder.absolute(), version)
        else:
            self._engine.renew(version, lambda: transfer.send(self._model.checkpoint_weights()))
        self.check(sampling, version)

    def check(self, sampling: Sampling, version: int) -> None:
        """Compare what the server samples with what the policy says of it.

        Raises:
            EngineError: they differ by more than the tolerance.
        """
        vocab = self._model.tokenizer.vocab_size
        prompt_tokens = min(_PROBE_PROMPT_TOKENS, self._engine.max_tokens - _PROBE_TOKENS - 1)
        if prompt_tokens < 1:
            raise EngineError(f"max_tokens {self._engine.max_tokens}: too few for a probe of {_PROBE_TOKENS} tokens")
        prompt = np.random.default_rng(0).integers(vocab, size=prompt_tokens).tolist()
        answer = self._engine.sample(prompt, _PROBE_TOKENS, sampling=sampling, seed=version)
        if answer.token_ids is None or answer.logprobs is None:
            raise EngineError(f"{self._engine.client.url}: the probe came back without token ids or log-probabilities")
        sampled = list(answer.token_ids)
        ours = _logprobs(self._model, prompt, sampled, sampling.temperature)  # (n, V)
        picked = ours.gather(-1, torch.tensor(sampled)[:, None]).squeeze(-1)
        self.gap = self._compare(picked, answer.logprobs, f"update {version}")
        self._proven = _Proof(prompt, sampled, ours.float(), sampling, version)

    def prove(self, client: JsonClient) -> None:
        """Ask a server that was started again what the last check asked; needs no policy, which may be learning.

        The server may draw otherwise than before; so it is asked for single tokens, after beginnings of what it drew,
        and each is compared with what the policy said of all tokens there.

        Args:
            client: one that does not start the server.
        Raises:
            EngineError: it does not answer, or as if it had other weights.
        """
        proof = self._proven
        if proof is None:
            return
        places = range(0, len(proof.sampled), 5)
        said: list[float] = []
        ours: list[torch.Tensor] = []
        for place in places:
            context = [*proof.prompt, *proof.sampled[:place]]
            answer = self._engine.sample(context, 1, sampling=proof.sampling, seed=place, client=client)
            if answer.token_ids is None or answer.logprobs is None:
                raise EngineError(f"{client.url}: the probe came back without token ids or log-probabilities")
            said += answer.logprobs
            ours.append(proof.logprobs[place, answer.token_ids[0]].double())
        self._compare(torch.stack(ours), said, f"update {proof.version}, started again")

    def _compare(self, ours: torch.Tensor, said: Sequence[float], when: str) -> float:
        """The mean difference of log-probabilities (n,), in nats. Raises `EngineError` above the tolerance."""
        gaps = (ours - torch.tensor(said, dtype=torch.float64)).abs()
        gap = float(gaps.mean())
        if not gap <= self._tolerance:  # not a number is a failure too
            raise EngineError(
                f"{self._engine.client.url}: the server does not compute with the policy's weights ({when}): "
                f"log-probabilities of a probe differ by {gap:.3g} nats on average, {float(gaps.max()):.3g} at "
                f"most, where engine.probe_tolerance allows {self._tolerance:g}. Known causes: a server that reloads "
                "tied embeddings wrongly (untie them: tie_word_embeddings false), one that reads another folder than "
                f"{self._folder}, keeps its prefix cache, computes in a coarser dtype, or gives log-probabilities "
                "before the temperature (vLLM: --logprobs-mode processed_logprobs)"
            )
        return gap


@dataclass(frozen=True)
class _Proof:
    """A probe that was passed.

    Attributes:
        prompt, sampled: what was asked, and the n tokens that the server drew.
        logprobs: (n, V) float32, the policy's, of all tokens at each of their places.
        sampling: how they were drawn.
        version: of the weights.
    """

    prompt: list[int]
    sampled: list[int]
    logprobs: torch.Tensor
    sampling: Sampling
    version: int


def write_served(model: LanguageModel, folder: Path) -> None:
    """Write a policy for a server, which would take a value head for a weight that it does not know.

    Raises:
        CheckpointError: it cannot be written.
    """
    model.save_pretrained(folder)
    (folder / VALUE_HEAD_FILE).unlink(missing_ok=True)


def check_server(engine: ServedEngine, *, training: bool) -> None:
    """Ask a server for one token, and refuse it where its answer cannot be used; sets `engine.scored`.

    Raises:
        EngineError: it gives no token ids; or, for training, no log-probabilities.
    """
    url = engine.client.url
    try:
        answer = engine.sample([0], 1, sampling=Sampling(), seed=0)
    except RefusedError as error:
        raise EngineError(f"{url}: takes no token ids: {error}. {_ADVICE}") from error
    if answer.token_ids is None:
        raise EngineError(f"{url}: gives no token ids with its answers. {_ADVICE}")
    engine.scored = answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids)
    if training and not engine.scored:
        raise EngineError(f"{url}: gives no log-probability with each token: it cannot train. {_ADVICE}")


_ADVICE = (
    "Rollouts need a server with token ids in and out, training their log-probabilities too: vLLM, SGLang, swe-serve"
)


@torch.no_grad()
def _logprobs(model: LanguageModel, prompt: list[int], sampled: list[int], temperature: float) -> torch.Tensor:
    """(n, V) float64, what the policy says at the places of sampled tokens."""
    ids = torch.tensor([prompt + sampled], device=model.device)
    positions = torch.arange(ids.shape[1], device=model.device)[None]
    hidden = model(ids, positions, torch.ones_like(ids))[0, len(prompt) - 1 : -1]
    logits = model.logits(hidden).double().cpu() / (temperature or 1.0)
    return logits.log_softmax(-1)
