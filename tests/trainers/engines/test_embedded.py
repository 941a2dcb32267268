"""The embedded engine: its log-probabilities equal the forward pass, independent of the rest of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.model.language_model import LanguageModel
from tests.trainers.tiny import FAMILIES, full_logprobs, tiny_model

MODELS = {family: tiny_model(family) for family in FAMILIES}
STOP = frozenset({7})


def stream(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def submit(engine: EmbeddedEngine, slot: int, ids: list[int], seed: int | np.random.Generator, **changes: Any) -> None:
    random = stream(seed) if isinstance(seed, int) else seed
    settings = {"max_new_tokens": 12, "stop_ids": STOP, "sampling": Sampling(), "random": random, **changes}
    engine.submit(slot, ids, **settings)


def finish(engine: EmbeddedEngine) -> dict[int, Sample]:
    done = {}
    while engine.busy:
        done.update({sample.slot: sample for sample in engine.step()})
    return done


def prompt(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(8, 44, length)]


def play(
    model: LanguageModel, episodes: list[list[int]], *, n_slots: int, eager: bool, temperature: float
) -> list[list[list[Any]]]:
    """Play episodes (the lengths of their observations) on one engine; for each the tokens, mask and log-probabilities.

    Eager submits each next turn at once; otherwise it waits until all others have finished theirs.
    """
    engine = EmbeddedEngine(model, n_slots=n_slots, max_tokens=200, prefill_tokens=40)
    records: list[list[list[Any]]] = [[[], [], []] for _ in episodes]
    streams = [stream(i) for i in range(len(episodes))]
    turn = [0] * len(episodes)
    waiting, where = list(range(len(episodes))), {}
    ready: list[int] = []
    while True:
        while waiting and len(where) < n_slots:
            where[engine.open()] = waiting[0]
            ready.append(waiting.pop(0))
        if eager or not engine.busy:
            for episode in ready:
                slot = next(slot for slot, e in where.items() if e == episode)
                ids = prompt(1000 * episode + turn[episode], episodes[episode][turn[episode]])
                submit(engine, slot, ids, streams[episode], sampling=Sampling(temperature))
                for column, values in zip(records[episode], (ids, [False] * len(ids), [0.0] * len(ids)), strict=True):
                    column.extend(values)
            ready = []
        if not where:
            return records
        for sample in engine.step():
            episode = where[sample.slot]
            chosen = (sample.token_ids, [True] * len(sample.token_ids), sample.logprobs)
            for column, values in zip(records[episode], chosen, strict=True):
                column.extend(values)
            turn[episode] += 1
            if turn[episode] < len(episodes[episode]):
                ready.append(episode)
            else:
                engine.close(sample.slot)
                del where[sample.slot]


episode_lengths = st.lists(st.integers(1, 14), min_size=1, max_size=4)


@pytest.mark.parametrize("family", FAMILIES)
@given(
    episodes=st.lists(episode_lengths, min_size=1, max_size=7),
    n_slots=st.integers(1, 4),
    eager=st.booleans(),
    temperature=st.sampled_from([1.0, 0.7]),
)
@settings(max_examples=8, deadline=None)
def test_logprobs_over_turns_and_reused_slots_equal_the_forward_pass(
    family: str, episodes: list[list[int]], n_slots: int, eager: bool, temperature: float
) -> None:
    model = MODELS[family]
    for ids, mask, logprobs in play(model, episodes, n_slots=n_slots, eager=eager, temperature=temperature):
        truth = full_logprobs(model, ids, temperature)
        torch.testing.assert_close(torch.tensor(logprobs)[mask], truth[mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_samples_are_independent_of_other_slots(family: str) -> None:
    episodes = [[5, 3, 9], [14], [1, 1, 1, 1], [8, 2], [3, 3]]
    runs = [
        play(MODELS[family], episodes, n_slots=n_slots, eager=eager, temperature=1.0)
        for n_slots, eager in [(1, True), (5, True), (5, False), (2, True)]
    ]
    tokens = [[record[0] for record in run] for run in runs]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]


def test_action_ends_at_stop_token_length_or_full_slot() -> None:
    model = MODELS["llama"]
    free = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(free, free.open(), prompt(0, 5), 3, max_new_tokens=8, stop_ids=frozenset())
    (whole,) = finish(free).values()
    assert (whole.end, len(whole.token_ids)) == ("length", 8)
    stop = whole.token_ids[4]
    first = whole.token_ids.index(stop)
    free.close(0)
    submit(free, free.open(), prompt(0, 5), 3, stop_ids=frozenset({stop}))
    (stopped,) = finish(free).values()
    assert (stopped.end, stopped.token_ids) == ("stop", whole.token_ids[: first + 1])
    small = EmbeddedEngine(model, n_slots=1, max_tokens=9)
    submit(small, small.open(), prompt(0, 5), 3, stop_ids=frozenset())
    (full,) = finish(small).values()
    assert (full.end, full.token_ids) == ("context", whole.token_ids[:4])
    torch.testing.assert_close(
        torch.tensor(full.logprobs), full_logprobs(model, [*prompt(0, 5), *full.token_ids])[5:], rtol=1e-4, atol=1e-4
    )


def test_greedy_takes_the_most_likely_token_of_the_forward_pass() -> None:
    model = MODELS["qwen3"]
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(engine, engine.open(), prompt(4, 6), 0, sampling=Sampling(temperature=0.0), stop_ids=frozenset())
    (sample,) = finish(engine).values()
    ids = [*prompt(4, 6), *sample.token_ids]
    with torch.no_grad():
        best = model.causal_lm(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert list(sample.token_ids) == best[5:-1]
    assert set(sample.logprobs) == {0.0}


def test_requests_with_different_sampling_share_a_batch() -> None:
    model = MODELS["llama"]
    engine = EmbeddedEngine(model, n_slots=3, max_tokens=100)
    choices = [Sampling(0.0), Sampling(), Sampling(0.5)]
    for sampling in choices:
        submit(engine, engine.open(), prompt(1, 6), 5, sampling=sampling, stop_ids=frozenset())
    together = finish(engine)
    for slot, sampling in enumerate(choices):
        alone = EmbeddedEngine(model, n_slots=1, max_tokens=100)
        submit(alone, alone.open(), prompt(1, 6), 5, sampling=sampling, stop_ids=frozenset())
        assert finish(alone)[0].token_ids == together[slot].token_ids


def test_forked_slots_are_independent() -> None:
    model = MODELS["llama"]
    engine = EmbeddedEngine(model, n_slots=3, max_tokens=100)
    parent = engine.open()
    submit(engine, parent, prompt(2, 7), 1)
    begun = [*prompt(2, 7), *finish(engine)[parent].token_ids]
    child = engine.fork(parent)
    submit(engine, parent, prompt(3, 4), 2)
    submit(engine, child, prompt(4, 5), 3)
    samples = finish(engine)
    for slot, added in ((parent, prompt(3, 4)), (child, prompt(4, 5))):
        ids = [*begun, *added, *samples[slot].token_ids]
        truth = full_logprobs(model, ids)[len(begun) + len(added) :]
        torch.testing.assert_close(torch.tensor(samples[slot].logprobs), truth, rtol=1e-4, atol=1e-4)


def test_changed_weights_are_used_at_once_and_training_mode_is_kept() -> None:
    model = tiny_model("llama").train()
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    for _ in range(2):
        submit(engine, engine.open(), prompt(0, 6), 9)
        (sample,) = finish(engine).values()
        truth = full_logprobs(model, [*prompt(0, 6), *sample.token_ids])[6:]
        torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-4, atol=1e-4)
        engine.close(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert model.training


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_cache_works_with_gradient_checkpointing(family: str) -> None:
    model = tiny_model(family).train()
    switch = "activation_checkpointing_enable"  # since transformers 5.20 or so; before, gradient_checkpointing_enable
    getattr(model.causal_lm, switch if hasattr(model.causal_lm, switch) else "gradient_checkpointing_enable")()
    assert model.recomputes_activations
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(engine, engine.open(), prompt(0, 6), 9)
    (sample,) = finish(engine).values()
    truth = full_logprobs(model.eval(), [*prompt(0, 6), *sample.token_ids])[6:]
    torch.testing.assert_close(torch.tensor(sample.logprobs), truth, rtol=1e-4, atol=1e-4)


def test_training_works_after_generation() -> None:
    model = tiny_model("llama")
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(engine, engine.open(), prompt(0, 6), 9)
    finish(engine)
    ids = torch.tensor([prompt(0, 6)])
    model.trunk_hidden(ids, torch.arange(6)[None], torch.ones_like(ids)).sum().backward()
    assert model.trunk.embed_tokens.weight.grad.any()


def test_misuse_raises_with_advice() -> None:
    model = MODELS["llama"]
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=10)
    slot = engine.open()
    with pytest.raises(EngineError, match="all 1 slots are open"):
        engine.open()
    with pytest.raises(EngineError, match="no room"):
        submit(engine, slot, prompt(0, 10), 0)
    with pytest.raises(EngineError, match="nothing to continue"):
        submit(engine, slot, [], 0)
    with pytest.raises(EngineError, match="max_new_tokens"):
        submit(engine, slot, [9], 0, max_new_tokens=0)
    submit(engine, slot, [9], 0)
    with pytest.raises(EngineError, match="unfinished"):
        submit(engine, slot, [9], 0)
    engine.close(slot)
    assert not engine.busy
    with pytest.raises(EngineError, match="not open"):
        engine.close(slot)
    with pytest.raises(ConfigurationError, match="256 positions"):
        EmbeddedEngine(MODELS["gpt2"], n_slots=1, max_tokens=257)
    with pytest.raises(ConfigurationError, match="positive"):
        EmbeddedEngine(model, n_slots=0, max_tokens=10)


@pytest.mark.parametrize("seed", range(4))
def test_stop_string_is_found_across_token_boundaries(seed: int) -> None:
    model = MODELS["llama"]
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(engine, engine.open(), prompt(seed, 5), seed, max_new_tokens=30, stop_ids=frozenset())
    whole = finish(engine)[0].token_ids
    text = model.tokenizer.decode(whole)
    wanted = text[len(text) // 2 : len(text) // 2 + 4]  # begins and ends within words, each of which is a token
    shortest = next(n for n in range(len(whole) + 1) if wanted in model.tokenizer.decode(whole[:n]))
    engine.close(0)
    submit(engine, engine.open(), prompt(seed, 5), seed, max_new_tokens=30, stop_ids=frozenset(), stop_strings=[wanted])
    sample = finish(engine)[0]
    assert (sample.end, sample.token_ids) == ("string", whole[:shortest])
    assert 0 < shortest < len(whole)
    with pytest.raises(EngineError, match="empty stop string"):
        submit(engine, 0, [9], 0, stop_strings=[""])


@pytest.mark.parametrize("back", [0, 3, 7, 8, 12])
def test_rewind_removes_tokens_from_the_context(back: int) -> None:
    model = MODELS["qwen3"]
    engine = EmbeddedEngine(model, n_slots=1, max_tokens=100)
    submit(engine, engine.open(), prompt(2, 7), 1, max_new_tokens=5, stop_ids=frozenset())
    begun = [*prompt(2, 7), *finish(engine)[0].token_ids]  # the last of these 12 is not in the cache
    engine.rewind(0, back)
    submit(engine, 0, prompt(3, 4), 2)
    after = finish(engine)[0]
    ids = [*begun[:back], *prompt(3, 4), *after.token_ids]
    truth = full_logprobs(model, ids)[back + 4 :]
    torch.testing.assert_close(torch.tensor(after.logprobs), truth, rtol=1e-4, atol=1e-4)
    with pytest.raises(EngineError, match="cannot go back to 99"):
        engine.rewind(0, 99)


def test_throughput_counts_read_and_sampled_tokens() -> None:
    engine = EmbeddedEngine(MODELS["llama"], n_slots=2, max_tokens=100)
    for seed, size in ((0, 6), (1, 9)):
        submit(engine, engine.open(), prompt(seed, size), seed, stop_ids=frozenset(), max_new_tokens=4)
    finish(engine)
    counted = engine.throughput
    assert (counted.read_tokens, counted.sampled_tokens) == (15, 8)
    rates = counted.metrics()
    # The first token of each is drawn while its prompt is read.
    assert rates["engine/read_tokens_per_second"] == 15 / counted.read_s > 0
    assert rates["engine/decoded_tokens_per_second"] == 6 / counted.decoded_s > 0
