"""Sampling from legal actions: the model's distribution, restricted at each token to what an action goes on with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from swe_trainers.engines.action_trie import ActionTrie
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.http import JsonClient
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.served import ServedEngine
from swe_trainers.engines.serving import ModelServer
from swe_trainers.engines.sglang import SGLang
from swe_trainers.errors import ConfigurationError, EngineError
from tests.trainers.engines.served import engine_of, served
from tests.trainers.tiny import tiny_model

END = 43
ACTIONS = {"go": [3], "go north": [3, 40, 4], "go south": [3, 40, 5], "look": [6], "take it": [7, 40]}
LEGAL = ActionTrie.of(ACTIONS, {END})
PROMPT = [1, 2, 9, 30]
MODEL = tiny_model("llama", seed=3)


def restricted(ids: list[int], allowed: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probabilities of the allowed tokens after `ids`, in their order."""
    with torch.no_grad():
        logits = MODEL.causal_lm(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
    return torch.log_softmax(logits[list(allowed)] / temperature, -1)


def enumerated(temperature: float) -> dict[tuple[int, ...], list[float]]:
    """The log-probabilities of the tokens of every action, a stop token where longer ones begin with it."""
    found = {}
    for tokens in ([3, END], [3, 40, 4], [3, 40, 5], [6], [7, 40]):
        logprobs = []
        for at, token in enumerate(tokens):
            allowed = {(): (3, 6, 7), (3,): (40, END), (3, 40): (4, 5), (7,): (40,)}[tuple(tokens[:at])]
            logprobs.append(float(restricted(PROMPT + tokens[:at], allowed, temperature)[allowed.index(token)]))
        found[tuple(tokens)] = logprobs
    return found


def sampled(engine: EmbeddedEngine | ServedEngine, count: int, temperature: float = 1.0) -> list[Sample]:
    found: list[Sample] = []
    for number in range(count):
        slot, random = engine.open(), np.random.default_rng(number)
        sampling = Sampling(temperature)
        engine.submit(slot, PROMPT, max_new_tokens=4, stop_ids={END}, sampling=sampling, random=random, legal=LEGAL)
        while engine.busy:
            found += engine.step()
        engine.close(slot)
    return found


def check(samples: list[Sample], temperature: float, tolerance: float = 1e-4) -> None:
    truth = enumerated(temperature)
    assert sum(np.exp(sum(logprobs)) for logprobs in truth.values()) == pytest.approx(1.0)
    for sample in samples:
        np.testing.assert_allclose(sample.logprobs, truth[sample.token_ids], atol=tolerance, rtol=tolerance)
        assert sample.end == ("stop" if sample.token_ids[-1] == END else "complete")
        assert all(token in allowed for token, allowed in zip(sample.token_ids, sample.allowed, strict=True))
    assert samples[0].allowed[0] == (3, 6, 7)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_log_probabilities_and_frequencies_are_those_of_the_enumerated_actions(temperature: float) -> None:
    samples = sampled(EmbeddedEngine(MODEL, n_slots=2, max_tokens=32), 400, temperature)
    check(samples, temperature)
    counts = Counter(sample.token_ids for sample in samples)
    for tokens, logprobs in enumerated(temperature).items():
        p = float(np.exp(sum(logprobs)))
        assert abs(counts[tokens] / 400 - p) < 5 * (p * (1 - p) / 400) ** 0.5 + 1e-6  # five standard deviations


def test_temperature_zero_takes_the_most_likely_legal_token() -> None:
    (sample,) = sampled(EmbeddedEngine(MODEL, n_slots=1, max_tokens=32), 1, 0.0)
    best = (3, 6, 7)[int(restricted(PROMPT, (3, 6, 7), 1.0).argmax())]
    assert sample.token_ids[0] == best and set(sample.logprobs) == {0.0}


def test_free_and_restricted_requests_run_side_by_side() -> None:
    engine, found = EmbeddedEngine(MODEL, n_slots=2, max_tokens=32), {}
    for legal in (None, LEGAL):
        engine.submit(
            engine.open(), PROMPT, max_new_tokens=3, stop_ids=(), sampling=Sampling(),
            random=np.random.default_rng(0), legal=legal,
        )  # fmt: skip
    while engine.busy:
        found |= {sample.slot: sample for sample in engine.step()}
    assert not found[0].allowed and len(found[0].token_ids) == 3
    check([found[1]], 1.0)


def test_an_action_longer_than_the_limit_is_refused() -> None:
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=32)
    with pytest.raises(ConfigurationError, match="max_new_tokens: got 2, but the longest legal action has 3 tokens"):
        engine.submit(
            engine.open(), PROMPT, max_new_tokens=2, stop_ids={END}, sampling=Sampling(),
            random=np.random.default_rng(0), legal=LEGAL,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("actions", "message"),
    [({}, "empty"), ({"": []}, "''"), ({"a": [END]}, "'a'"), ({"a": [1, 2], "b": [1, 2]}, "'a' and 'b' are written")],
)
def test_actions_that_cannot_be_distinguished_are_refused(actions: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ActionTrie.of(actions, {END})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with served(tmp_path_factory.mktemp("served") / "model", MODEL) as running:
        yield running


def test_a_server_of_vllms_kind_samples_from_the_same_distribution(server: ModelServer) -> None:
    check(sampled(engine_of(server), 12, 3.0), 3.0)


def test_a_server_refuses_allowed_tokens_that_it_could_not_restrict_each_token_to(server: ModelServer) -> None:
    engine = engine_of(server)
    body = {"prompt": PROMPT, "max_tokens": 2, "allowed_token_ids": [3]}
    with pytest.raises(EngineError, match="allowed_token_ids: expected at least one token id"):
        engine.client.post("/v1/completions", body)


def test_sglang_is_refused_in_one_line() -> None:
    # Nothing listens there: the refusal comes before any request.
    engine = ServedEngine(JsonClient("http://127.0.0.1:9"), SGLang(), n_slots=1, max_tokens=32)
    with pytest.raises(ConfigurationError, match=r"free text.*engine.kind embedded or vllm.*unconstrained: true"):
        sampled(engine, 1)
