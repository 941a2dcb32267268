"""Decoding steps of fixed shapes: the same samples, and a step that a graph can replay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swe_trainers.engines import decoding
from swe_trainers.engines.action_trie import ActionTrie
from swe_trainers.engines.decoding import StaticDecoding, rounded_length, rounded_rows
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from tests.trainers.engines.test_embedded import finish, play, prompt, submit
from tests.trainers.model.test_attention import WAITS
from tests.trainers.tiny import tiny_model

KNOWN = ("llama", "qwen3", "mistral-windowed", "qwen2-half-windowed")
EPISODES = [[5, 3, 9], [14], [1, 1, 1, 1], [8, 2], [3, 3], [2], [90]]


class Recording(TorchDispatchMode):
    """A CUDA graph in software: the operations of a call on the tensors that it had, to be run on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in WAITS and name != "lift_fresh", f"{name}: no graph can hold it"
        result = function(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        fresh = [x for x in made if x.untyped_storage().data_ptr() not in known]
        if fresh or function._schema.is_mutable:
            self._calls.append((function, args, kwargs or {}, fresh))
        return result

    def replay(self) -> None:
        for function, args, kwargs, fresh in self._calls:
            made = [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            for target, value in zip(fresh, made if fresh else (), strict=True):
                target.copy_(value)


class Recorded(StaticDecoding):
    """Static decoding that records in software where a GPU records in hardware."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._records, self.replays = True, 0

    def _record(self, step: Any) -> tuple[Any, Any]:
        with Recording() as graph:
            results = self.compute(step)
        for result in results:  # as after a capture, nothing is computed before the first replay
            if result is not None:
                result.fill_(torch.nan)

        def counted() -> None:
            self.replays += 1
            graph.replay()

        return SimpleNamespace(replay=counted), results


def recorded_engine(model: Any, **options: Any) -> tuple[EmbeddedEngine, Recorded]:
    engine = EmbeddedEngine(model, static_shapes=True, **options)
    static = engine._static = Recorded(model, engine._cache)
    return engine, static


@pytest.mark.parametrize("family", KNOWN)
def test_fixed_shapes_give_the_same_samples(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, make, runs = tiny_model(family), EmbeddedEngine.__init__, []
    for static in (False, True):
        monkeypatch.setattr(
            EmbeddedEngine, "__init__", lambda *a, static=static, **k: make(*a, static_shapes=static, **k)
        )
        runs.append([play(model, EPISODES, n_slots=n, eager=n != 6, temperature=1.0) for n in (2, 6, 7)])
    for records in zip(*runs, strict=True):
        for (tokens, _, logprobs), (expected, _, expected_logprobs) in zip(*records, strict=True):
            assert tokens == expected
            torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(expected_logprobs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", KNOWN)
def test_a_recorded_step_is_replayed_for_other_slots_tokens_and_lengths(family: str) -> None:
    model, found = tiny_model(family), []
    plain = EmbeddedEngine(model, n_slots=6, max_tokens=60)
    engine, static = recorded_engine(model, n_slots=6, max_tokens=60)
    for each in (plain, engine):
        samples = []
        slots = [each.open() for _ in range(6)]
        for turn in range(3):  # all slots, then every other one, then the last alone
            for slot in slots[:: turn + 1] if turn < 2 else slots[-1:]:
                submit(each, slot, prompt(slot + 10 * turn, 3 + slot), slot, max_new_tokens=4 + slot % 3)
            samples.append({slot: (s.token_ids, s.end) for slot, s in finish(each).items()})
        found.append(samples)
    assert found[0] == found[1]
    alike = Sampling()
    assert set(static._graphs) == {(6, 64, True, alike), (2, 64, False, alike), (1, 64, False, alike)}
    assert static.replays == 5 + 5 + 5  # the first token of each turn is drawn while its prompt is read


def test_a_replay_uses_changed_weights_and_a_replaced_parameter_is_recorded_again() -> None:
    model = tiny_model("qwen3")
    engine, static = recorded_engine(model, n_slots=2, max_tokens=60)

    def sampled(each: EmbeddedEngine) -> Any:
        each.renew(None)
        slot = each.open()
        submit(each, slot, prompt(1, 9), 3, stop_ids=())
        (sample,) = finish(each).values()
        each.close(slot)
        return sample.token_ids

    before, graph = sampled(engine), next(iter(static._graphs.values()))
    trunk: Any = model.trunk
    layer = trunk.layers[0].mlp.up_proj
    with torch.no_grad():
        layer.weight.mul_(-3.0)
    changed = sampled(engine)
    assert changed == sampled(EmbeddedEngine(model, n_slots=2, max_tokens=60)) != before
    assert next(iter(static._graphs.values())) is graph
    layer.weight = torch.nn.Parameter(layer.weight.detach() / -3.0)
    assert sampled(engine) == before
    assert next(iter(static._graphs.values())) is not graph


def test_where_nothing_can_be_recorded_steps_are_computed_and_a_warning_says_why(monkeypatch: Any) -> None:
    model = tiny_model("llama")
    plain = EmbeddedEngine(model, n_slots=2, max_tokens=60)
    engine, static = recorded_engine(model, n_slots=2, max_tokens=60)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(static, "_record", refuse)
    for each in (plain, engine):
        submit(each, each.open(), prompt(1, 9), 3, stop_ids=())
    with pytest.warns(UserWarning, match="without CUDA graphs, which is slower: operation not permitted") as warned:
        found = [finish(each)[0].token_ids for each in (plain, engine)]
    assert found[0] == found[1]
    assert [str(each.message).partition(" ")[0] for each in warned] == ["sampling", "decoding"]


ALIKE = [
    Sampling(),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=0.0),
    Sampling(temperature=1.3, top_k=9, min_p=0.05),
]


def sampled_by(engine: EmbeddedEngine, samplings: list[Sampling], legal: dict[int, Any] | None = None) -> Any:
    """What six slots sample, of which the last two are closed after it and the first four go on."""
    found = []
    slots = [engine.open() for _ in range(6)]
    for turn in range(2):
        for slot in slots[: 6 - 2 * turn]:
            changes = {"sampling": samplings[slot % len(samplings)], "legal": (legal or {}).get(slot)}
            random = 10 * turn + slot
            submit(engine, slot, prompt(random, 3 + slot), random, max_new_tokens=4 + slot % 3, **changes)
        found.append(finish(engine))
        if not turn:
            engine.close(slots[4])
            engine.close(slots[5])
    return found


def assert_equal_samples(found: Any, expected: Any) -> None:
    for samples, others in zip(found, expected, strict=True):
        assert samples.keys() == others.keys()
        for slot, other in others.items():
            own = samples[slot]
            assert (own.token_ids, own.end, own.allowed) == (other.token_ids, other.end, other.allowed)
            torch.testing.assert_close(
                torch.tensor(own.logprobs), torch.tensor(other.logprobs), rtol=1e-4, atol=1e-5, equal_nan=False
            )


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("sampling", ALIKE, ids=str)
def test_a_step_whose_rows_are_sampled_alike_ends_with_their_tokens(
    sampling: Sampling, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = tiny_model("qwen3"), {"n_slots": 6, "max_tokens": 60}
    engine = EmbeddedEngine(model, static_shapes=True, **options)
    static = engine._static
    if recorded:
        engine, static = recorded_engine(model, **options)
    calls: list[Any] = []
    assert static is not None
    compute = static.compute

    def counted(step: Any) -> Any:
        calls.append(step)
        return compute(step)

    monkeypatch.setattr(static, "compute", counted)
    expected = sampled_by(EmbeddedEngine(model, static_shapes=False, **options), [sampling])
    assert_equal_samples(sampled_by(engine, [sampling]), expected)
    assert calls and all(step.sampling == sampling for step in calls)
    if sampling.truncates:
        assert all(sample.allowed for samples in expected for sample in samples.values())


@pytest.mark.parametrize("recorded", [False, True])
def test_where_rows_are_sampled_differently_a_step_ends_with_hidden_states(recorded: bool) -> None:
    model, options = tiny_model("llama"), {"n_slots": 6, "max_tokens": 60}
    mixtures = {
        "samplings": (ALIKE, {}),
        "one restricted": ([Sampling()], {2: ActionTrie.of({"a": [3, 9, 4], "b": [3, 8], "c": [6, 6, 6]}, {7})}),
    }
    for samplings, legal in mixtures.values():
        engine = EmbeddedEngine(model, static_shapes=True, **options)
        if recorded:
            engine, static = recorded_engine(model, **options)
        expected = sampled_by(EmbeddedEngine(model, static_shapes=False, **options), samplings, legal)
        assert_equal_samples(sampled_by(engine, samplings, legal), expected)
        if recorded:  # both kinds: some slots finish before others
            assert {step.sampling is None for step in static._graphs} == {True, False}


def test_recordings_are_kept_of_few_samplings_and_of_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_LASTING", 5)
    engine, static = recorded_engine(tiny_model("llama"), n_slots=1, max_tokens=60)
    plain = EmbeddedEngine(tiny_model("llama"), n_slots=1, max_tokens=60)
    slots = engine.open(), plain.open()

    def decode(temperature: float, tokens: int) -> set[Any]:
        found = []
        for each, slot in zip((engine, plain), slots, strict=True):
            changes: Any = {"max_new_tokens": tokens + 1, "stop_ids": (), "sampling": Sampling(temperature)}
            each.rewind(slot, 0)
            submit(each, slot, prompt(1, 4), 5, **changes)
            found.append(finish(each)[slot].token_ids)
        assert found[0] == found[1]
        return {step.sampling and step.sampling.temperature for step in static._graphs}

    for temperature in (0.5, 0.6, 0.7, 0.8):
        decode(temperature, 1)
    assert decode(0.5, 1) == {0.5, 0.6, 0.7, 0.8}
    for _ in range(3):  # changing at every step, they are recorded without the sampling
        assert decode(0.9, 1) == decode(1.0, 1) == {0.5, 0.6, 0.7, 0.8, None}
    assert decode(1.1, 4) == {0.5, 0.6, 0.7, 0.8, None}
    assert decode(1.1, 1) == {0.5, 0.7, 0.8, 1.1, None}  # 0.5 was used after 0.6


def test_where_a_sampling_cannot_be_recorded_the_rest_of_the_step_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    engine, static = recorded_engine(model, n_slots=6, max_tokens=60)
    record = static._record

    def refuse(step: Any) -> Any:
        if step.sampling is not None:
            raise RuntimeError("out of memory\nmore")
        return record(step)

    monkeypatch.setattr(static, "_record", refuse)
    expected = sampled_by(EmbeddedEngine(model, n_slots=6, max_tokens=60), [ALIKE[1]])
    with pytest.warns(UserWarning, match=r"^sampling .*top_p=0\.9.* without CUDA graphs.*: out of memory$") as warned:
        assert_equal_samples(sampled_by(engine, [ALIKE[1]]), expected)
    assert len(warned) == 1 and static.replays > 0 and {step.sampling for step in static._graphs} == {None}


def test_what_idle_slots_hold_affects_no_other_row() -> None:
    model, found = tiny_model("qwen3"), []
    for spoilt in (False, True):
        engine = EmbeddedEngine(model, n_slots=3, max_tokens=60, static_shapes=True)
        slots = [engine.open() for _ in range(3)]
        for slot in slots:
            submit(engine, slot, prompt(slot, 4), slot, max_new_tokens=2)
        finish(engine)
        if spoilt:
            with torch.inference_mode():
                for store in engine._cache._values:
                    store[1] = torch.nan
        for slot in (slots[0], slots[2]):
            submit(engine, slot, prompt(slot, 4), slot, max_new_tokens=6)
        found.append(finish(engine))
    assert found[0] == found[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sampling", ALIKE, ids=str)
def test_graphs_that_end_with_tokens_give_the_same_samples(sampling: Sampling) -> None:
    model, found = tiny_model("qwen3").to("cuda"), []
    for static in (False, None):
        engine = EmbeddedEngine(model, n_slots=6, max_tokens=60, static_shapes=static)
        found.append(sampled_by(engine, [sampling]))
    assert_equal_samples(found[1], found[0])
    assert engine._static is not None and {step.sampling for step in engine._static._graphs} == {sampling}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_of_a_gpu_give_the_same_samples() -> None:
    model, found = tiny_model("qwen3").to("cuda"), []
    for static in (False, None):
        engine = EmbeddedEngine(model, n_slots=6, max_tokens=60, static_shapes=static)
        for slot in [engine.open() for _ in range(6)]:
            submit(engine, slot, prompt(slot, 3 + slot), slot, max_new_tokens=4 + slot % 3)
        found.append({slot: sample.token_ids for slot, sample in finish(engine).items()})
    assert found[0] == found[1] and engine._static is not None and engine._static._graphs


def test_models_that_read_values_back_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="static_shapes"):
        EmbeddedEngine(tiny_model("gpt2"), n_slots=1, max_tokens=9, static_shapes=True)
    angles = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert not StaticDecoding.supports(tiny_model("llama", rope_parameters=angles))
    assert StaticDecoding.supports(tiny_model("llama"))


def test_sizes_are_few_and_little_larger() -> None:
    lengths = {n: rounded_length(n, 40_000) for n in range(1, 40_001)}
    assert all(n <= size <= max(256, 1.25 * n + 1, n + 255) for n, size in lengths.items())
    assert len(set(lengths.values())) == 25 and rounded_length(300, 304) == 304
    assert [rounded_rows(n, 48) for n in (1, 2, 3, 17, 40, 48)] == [1, 2, 4, 32, 48, 48]
