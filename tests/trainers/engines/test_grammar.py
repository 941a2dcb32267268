"""Sampling actions of a form: the model's distribution over what the form allows, and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.action_trie import TokenSet
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.grammar import Grammar, Grammars
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.model.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import WordTokenizer, train_sentencepiece
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import read_trajectories, write_trajectories
from tests.trainers.engines.served import engine_of, served
from tests.trainers.rollout.test_conversations import TOKENIZERS, TOOLS
from tests.trainers.tiny import tiny_model

MODEL = tiny_model("llama", WordTokenizer.from_texts(["look go north south 1 2"]), seed=3)
CHAT = CompactChat(MODEL.tokenizer)
END = CHAT.end_id
PROMPT = CHAT.start("look")


def sampled(
    model: LanguageModel, chat: ChatFormat, grammar: Grammar, count: int, most: int, **more: Any
) -> list[Sample]:
    engine, grammars, found = EmbeddedEngine(model, n_slots=count, max_tokens=100), Grammars(chat), list[Sample]()
    for number in range(count):
        engine.submit(
            engine.open(), chat.start("look"), max_new_tokens=most, stop_ids=chat.stop_ids, sampling=Sampling(),
            random=np.random.default_rng(number), legal=grammars.start(grammar, **more),
        )  # fmt: skip
    while engine.busy:
        found += engine.step()
    return found


def test_log_probabilities_and_frequencies_are_those_of_the_enumerated_texts() -> None:
    ids = {text: CHAT.action_ids(text) for text in ("go", "go north", "go south", "1", "1 2", "1 2 2")}
    truth: dict[tuple[int, ...], float] = {}
    for tokens in ids.values():
        total, at = 0.0, list[int]()
        ends = any(other[: len(tokens)] == tokens and len(other) > len(tokens) for other in ids.values())
        for token in [*tokens, END] if ends else tokens:
            longer = {other[len(at)] for other in ids.values() if other[: len(at)] == at and len(other) > len(at)}
            allowed = sorted(longer | ({END} if at in ids.values() else set()))
            with torch.no_grad():
                logits = MODEL.causal_lm(torch.tensor([PROMPT + at]), use_cache=False).logits[0, -1].double()
            total += float(torch.log_softmax(logits[allowed], -1)[allowed.index(token)])
            at = [*at, token]
        truth[tuple(at)] = total
    assert sum(map(np.exp, truth.values())) == pytest.approx(1.0)
    samples = sampled(MODEL, CHAT, Grammar(regex="go( (north|south))?|1( 2){0,2}"), 300, 8)
    for sample in samples:
        assert sum(sample.logprobs) == pytest.approx(truth[sample.token_ids], abs=1e-3)
        assert sample.end == ("stop" if sample.token_ids[-1] == END else "complete")
    counts = Counter(sample.token_ids for sample in samples)
    for tokens, logprob in truth.items():
        p = float(np.exp(logprob))
        assert abs(counts[tokens] / 300 - p) < 5 * (p * (1 - p) / 300) ** 0.5 + 1e-6  # five standard deviations


def test_values_of_a_json_schema_are_written_by_pieces_and_bytes() -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["é", "view"]}, "line": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["kind", "line"],
        "additionalProperties": False,
    }
    tokenizer = train_sentencepiece(["view the line of this file, kind"] * 40, 330)
    model = tiny_model("llama", tokenizer, seed=1)
    chat = CompactChat(tokenizer)
    samples = sampled(model, chat, Grammar(json_schema=schema), 24, 60)
    assert {sample.end for sample in samples} <= {"complete", "stop"}
    values = [json.loads(chat.action_text(sample.token_ids)) for sample in samples]
    assert all(set(value) == {"kind", "line"} and 0 <= value["line"] <= 99 for value in values)
    assert {value["kind"] for value in values} == {"é", "view"}


@pytest.mark.parametrize("form", TOKENIZERS)
def test_calls_are_those_that_the_template_reads(form: str) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"n": {"type": "integer", "enum": [1, 20]}}, "required": ["n"],
            "additionalProperties": False,
        }}}
        for name in ("up", "down")
    ]  # fmt: skip
    chat = TemplateChat(TOKENIZERS[form])
    model = tiny_model("llama", TOKENIZERS[form], seed=2, scale=1.0)
    state = Grammars(chat).start(Grammar(tools="required"), tools)
    text = {
        "hermes": 'Up.\n<tool_call>\n{"name": "up", "arguments": {"n": 20}}\n</tool_call>',
        "named": 'Up.<|call|>up<|sep|>{"n": 20}<|over|>',
        "marked": "Up.\n<tool_call>\n<function=up>\n<parameter=n>\n20\n</parameter>\n</function>\n</tool_call>",
    }[form]
    ids = TOKENIZERS[form].encode_scaffold(text)
    for token in ids:
        assert state is not None and token in state.allowed
        assert not {*chat.stop_ids} & {*state.allowed}  # not before the call is complete
        state = state.after(token)
    assert state is not None and chat.end_id in state.allowed
    (call,) = chat.answer(ids, tools, number=0)["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("up", {"n": 20})
    samples = sampled(model, chat, Grammar(tools="auto"), 4, 6, tools=TOOLS)
    assert all(len(sample.allowed) == len(sample.token_ids) for sample in samples)


class Dial(gymnasium.Env[str, str]):
    """Wants a number of two digits."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "look", {"grammar": {"regex": "[12]{2}"}}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert re.fullmatch("[12]{2}", action), action
        self.turn += 1
        return "go", float(action == "12"), self.turn == 3, False, {"grammar": {"regex": "[12]{2}"}}


@pytest.mark.parametrize("settings", [{"constrained": True}, {"grammar": Grammar(lark="start: /[12]/ /[12]/")}])
def test_the_update_computes_what_was_sampled_at(settings: dict[str, Any]) -> None:
    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=120)
    starts = [EpisodeStart(seed, group=seed) for seed in range(6)]
    ended = iter_episodes(engine, CHAT, [Dial(), Dial()], starts, EpisodeSettings(Limits(4), **settings))
    played = [t for each in sorted(ended, key=lambda each: each.number) for t in each.trajectories]
    assert all(t.valid and len(t.turns) == 3 for t in played)
    digits = tuple(sorted(CHAT.action_ids("1") + CHAT.action_ids("2")))
    assert {sets for t in played for sets in t.allowed_sets} == {digits}
    batch = Batch.of(played)
    seen = take_snapshot(MODEL, batch, microbatch_tokens=100)
    torch.testing.assert_close(seen.logprobs, batch.rollout_logprobs, rtol=1e-4, atol=1e-4)
    algorithm = PPO(epochs=1, minibatches=1, episodes_per_update=6)
    metrics = algorithm.update(algorithm.start(MODEL.copy(), seed=0), played)
    assert metrics["entropy"] <= np.log(2) + 1e-4


def test_a_form_that_would_have_no_effect_is_an_error() -> None:
    class Lists(Dial):
        def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
            return super().reset(**options)[0], {"legal_actions": ["12"]}

    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=120)
    settings = EpisodeSettings(Limits(4), constrained=True, grammar=Grammar(regex="[12]"))
    with pytest.raises(ConfigurationError, match="grammar: has no effect where the environment lists its legal"):
        list(iter_episodes(engine, CHAT, [Lists()], [EpisodeStart(0, group=0)], settings))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "got nothing, expected one of"),
        ({"regex": "a", "lark": "start: /a/"}, "got regex, lark"),
        ({"tools": "always"}, "expected auto or required"),
        ({"regexp": "a"}, "regexp"),
        ({"regex": "(a"}, "unclosed group"),
        ({"tools": "auto"}, "a model from scratch has no calls"),
    ],
)
def test_invalid_grammars_are_errors_with_a_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Grammars(CHAT).start(Grammar.of(given), TOOLS)


def test_a_server_of_vllms_kind_samples_from_the_same_distribution(tmp_path: Path) -> None:
    grammar = Grammar(regex="go( (north|south))?|1( 2){0,2}")
    with served(tmp_path / "model", MODEL) as server:
        engine = engine_of(server)
        engine.submit(
            engine.open(), PROMPT, max_new_tokens=8, stop_ids=CHAT.stop_ids, sampling=Sampling(),
            random=np.random.default_rng(0), legal=Grammars(CHAT).start(grammar),
        )  # fmt: skip
        while not (found := engine.step()):
            pass
    (sample,) = found
    for at, (allowed, logprob) in enumerate(zip(sample.allowed, sample.logprobs, strict=True)):
        ids = PROMPT + list(sample.token_ids[:at])
        with torch.no_grad():
            logits = MODEL.causal_lm(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        expected = torch.log_softmax(logits[list(allowed)], -1)[allowed.index(sample.token_ids[at])]
        assert logprob == pytest.approx(float(expected), abs=1e-3)
    assert sample.end in ("stop", "complete")


def test_a_set_of_most_of_a_vocabulary_is_recorded_as_bits(tmp_path: Path) -> None:
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=120)
    settings = EpisodeSettings(Limits(4), grammar=Grammar(lark="start: /[12]/ /[12]/"))
    (ended,) = iter_episodes(engine, CHAT, [Dial()], [EpisodeStart(0, group=0)], settings)
    wide = TokenSet(sorted({*range(0, 150_000, 3), *ended.trajectories[0].token_ids.tolist()}))
    played = replace(ended.trajectories[0], allowed_sets=(wide,))
    write_trajectories(tmp_path / "played.jsonl", [played])
    assert (tmp_path / "played.jsonl").stat().st_size < 30_000
    assert read_trajectories(tmp_path / "played.jsonl")[0].allowed_sets == played.allowed_sets
