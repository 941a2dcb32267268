"""Weight synchronisation: from the trainer to a server, verified by a probe."""

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
from swe_trainers.model.language_model import VALUE_HEAD_FILE, LanguageModel

__all__ = ["WeightSync", "check_server", "write_served"]

_PROBE_PROMPT_TOKENS, _PROBE_TOKENS = 48, 16
"""Long enough for a server's prefix cache, so that a cache that was not dropped is detected."""


class WeightSync:
    """Keeps a server's weights equal to the policy's, and stops the run if they differ.

    Servers have loaded weights wrongly without an error: a tied projection was not updated, a cache of the previous
    weights was kept. After every change the server therefore samples a short probe, and its log-probabilities are
    compared with the policy's for the same tokens.

    Args:
        model: the policy.
        engine: of the server.
        folder: where weights are written, and read by the server.
        tolerance: the largest mean difference of log-probabilities, in nats.
        save: writes the policy to a folder; `write_served` by default.
        transfer: sends weights from memory instead of through the folder.
        keep: also write them to the folder, for a server that is restarted during an update.
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
        """Send the policy's current weights to the server.

        Args:
            version: of these weights, for every token sampled from now on.
            sampling: how tokens will be sampled.
        Raises:
            EngineError: the server does not load them, or its log-probabilities differ from the policy's.
        """
        self._proven = None  # a server that restarts from here on may have either
        transfer = self._transfer
        if transfer is None or self._keep:
            self._save(self._folder)
        if transfer is None:
            self._engine.reload(self._folder.absolute(), version)
        else:
            self._engine.renew(version, lambda: transfer.send(self._model.checkpoint_weights()))
        self.check(sampling, version)

    def check(self, sampling: Sampling, version: int) -> None:
        """Compare the log-probabilities of tokens that the server samples with the policy's.

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
        """Repeat the last check on a restarted server, without the policy, which may be in an update.

        The server may sample other tokens than before. So it samples single tokens after prefixes of the first probe,
        and each is compared with the log-probabilities that the policy gave to all tokens there.

        Args:
            client: one that does not restart the server.
        Raises:
            EngineError: it does not respond, or has other weights.
        """
        proof = self._proven
        if proof is None:
            return
        places = range(0, len(proof.sampled), 5)
        served: list[float] = []
        ours: list[torch.Tensor] = []
        for place in places:
            context = [*proof.prompt, *proof.sampled[:place]]
            answer = self._engine.sample(context, 1, sampling=proof.sampling, seed=place, client=client)
            if answer.token_ids is None or answer.logprobs is None:
                raise EngineError(f"{client.url}: the probe came back without token ids or log-probabilities")
            served += answer.logprobs
            ours.append(proof.logprobs[place, answer.token_ids[0]].double())
        self._compare(torch.stack(ours), served, f"update {proof.version}, started again")

    def _compare(self, ours: torch.Tensor, served: Sequence[float], when: str) -> float:
        """The mean difference of log-probabilities (n,), in nats. Raises `EngineError` above the tolerance."""
        gaps = (ours - torch.tensor(served, dtype=torch.float64)).abs()
        gap = float(gaps.mean())
        if not gap <= self._tolerance:  # NaN is a failure too
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
    """A passed probe.

    Attributes:
        prompt, sampled: the prompt, and the n tokens that the server sampled.
        logprobs: (n, V) float32, the policy's, of all tokens at each position.
        sampling: how they were sampled.
        version: of the weights.
    """

    prompt: list[int]
    sampled: list[int]
    logprobs: torch.Tensor
    sampling: Sampling
    version: int


def write_served(model: LanguageModel, folder: Path) -> None:
    """Write a policy for a server, without the value head, which servers do not know.

    Raises:
        CheckpointError: it cannot be written.
    """
    model.save_pretrained(folder)
    (folder / VALUE_HEAD_FILE).unlink(missing_ok=True)


def check_server(engine: ServedEngine, *, training: bool) -> None:
    """Sample one token from a server, and refuse a server whose response cannot be used; sets `engine.scored`.

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
    """(n, V) float64, the policy's log-probabilities at the positions of sampled tokens."""
    ids = torch.tensor([prompt + sampled], device=model.device)
    positions = torch.arange(ids.shape[1], device=model.device)[None]
    hidden = model(ids, positions, torch.ones_like(ids))[0, len(prompt) - 1 : -1]
    logits = model.logits(hidden).double().cpu() / (temperature or 1.0)
    return logits.log_softmax(-1)
