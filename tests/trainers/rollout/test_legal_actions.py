"""From an environment's legal actions to the gradient: what was sampled from is what is learnt with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.adapters import AnyText, TextAdapter
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from tests.trainers.tiny import tiny_model

WORDS = ["south", "north", "east", "west", "pickup", "dropoff"]


def taxi(**options: Any) -> TextAdapter:
    return TextAdapter(gymnasium.make("Taxi-v4", max_episode_steps=12), actions=WORDS, **options)


MODEL = tiny_model("llama", WordTokenizer.from_texts(taxi().vocabulary()), seed=5)
CHAT = CompactChat(MODEL.tokenizer)


def play(make: Any = taxi, n: int = 4, max_new_tokens: int = 1, **options: Any) -> list[Trajectory]:
    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=120)
    settings = EpisodeSettings(Limits(max_new_tokens), **options)
    starts = [EpisodeStart(seed, group=seed) for seed in range(n)]
    ended = iter_episodes(engine, CHAT, [make(), make()], starts, settings)
    return [t for each in sorted(ended, key=lambda each: each.number) for t in each.trajectories]


def test_an_adapters_episodes_contain_the_legal_actions_of_each_state_and_no_others() -> None:
    for played in play():
        env = gymnasium.make("Taxi-v4")
        _, info = env.reset(seed=played.seed)
        for turn in played.turns:
            legal = [word for word, allowed in zip(WORDS, info["action_mask"], strict=True) if allowed]
            (tokens,) = {played.allowed_sets[played.allowed[at]] for at in range(turn.start, turn.end)}
            assert sorted(MODEL.tokenizer.decode([token]) for token in tokens) == sorted(legal)
            assert turn.action in legal
            *_, info = env.step(WORDS.index(turn.action))
        assert len(played.turns) == 12 and len(set(played.allowed_sets)) == len(played.allowed_sets) > 1
        free = np.array(played.allowed) < 0
        assert (free == ~played.action_mask).all()


def test_unconstrained_lets_the_policy_write_any_word() -> None:
    played = play(lambda: taxi(unconstrained=True))
    assert all(not t.allowed and not t.allowed_sets for t in played)
    assert any(turn.action not in WORDS for t in played for turn in t.turns)


class Parser(gymnasium.Env[str, str]):
    """A text game that lists what it understands; one action begins as another one does."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "0", {"legal_actions": ["south", "south east"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        assert action in ("south", "south east", "west"), action
        return str(self.turn), 0.0, self.turn == 6, False, {"legal_actions": ["west", "south east"]}


def test_a_text_environments_own_list_counts_where_it_is_asked_for() -> None:
    played = play(Parser, max_new_tokens=3, constrained=True)
    assert {turn.action for t in played for turn in t.turns} == {"south", "south east", "west"}
    assert {turn.notes["finish_reason"] for t in played for turn in t.turns} == {"stop", "complete"}
    free = play(Parser, max_new_tokens=3)  # by default
    assert not any(t.allowed for t in free) and any(not t.valid for t in free)


@pytest.mark.parametrize("max_tokens", range(8, 32))
def test_a_context_without_room_for_the_longest_legal_action_ends_the_episode(max_tokens: int) -> None:
    class Wordy(Parser):
        def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
            return super().reset(**options)[0], {"legal_actions": ["south east"]}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            assert action == "south east"
            return "1", 0.0, False, False, {"legal_actions": ["south east"]}

    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=120)
    settings = EpisodeSettings(Limits(3, max_tokens), constrained=True)
    ((_, _, (played,)),) = iter_episodes(engine, CHAT, [Wordy()], [EpisodeStart(0)], settings)
    # A prompt has 4 tokens, an action 3, and what is read after it 5: the end of the action, and as the prompt.
    assert len(played.turns) == (max_tokens - 7) // 8 + 1
    assert played.valid and played.truncated and played.end_reason == "tokens"


def test_a_prompt_without_room_for_the_longest_legal_action_makes_the_episode_invalid() -> None:
    engine = EmbeddedEngine(MODEL, n_slots=1, max_tokens=120)
    settings = EpisodeSettings(Limits(3, 6), constrained=True)
    ((_, _, (played,)),) = iter_episodes(engine, CHAT, [Parser()], [EpisodeStart(0)], settings)
    assert not played.valid
    assert played.failure_reason == "no room for an action: the context has 4 tokens, max_tokens is 6"


@pytest.mark.parametrize(
    ("listed", "message"), [([], "empty"), ([3], "expected texts"), (["fly"], "fly.* is not in the vocabulary")]
)
def test_lists_that_cannot_be_sampled_from_end_the_run(listed: list[Any], message: str) -> None:
    class Broken(Parser):
        def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
            return super().reset(**options)[0], {"legal_actions": listed}

    with pytest.raises(ConfigurationError, match=message):
        play(Broken, constrained=True)


class Numbered(gymnasium.Env[Any, Any]):
    """Actions start at 5; the legal ones are listed by number."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info

    def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
        super().reset(seed=options.get("seed"))
        return 0, self.info

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 1, float(action), False, False, self.info


@pytest.mark.parametrize(
    ("info", "legal"),
    [
        ({}, ["a", "b", "c"]),
        ({"legal_actions": [7, 5]}, ["c", "a"]),
        ({"action_mask": np.array([0, 1, 1], dtype=np.int8)}, ["b", "c"]),
        ({"action_mask": np.zeros(3, dtype=np.int8)}, ["a", "b", "c"]),
    ],
)
def test_masks_and_numbers_become_words(info: dict[str, Any], legal: list[str]) -> None:
    env = TextAdapter(Numbered(info), actions=["a", "b", "c"])
    assert env.reset(seed=0)[1]["legal_actions"] == legal
    assert env.step("b")[4]["legal_actions"] == legal
    assert env.step("what")[4]["legal_actions"] == legal


def test_a_mask_of_another_size_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"shape \(2,\), expected \(3,\)"):
        TextAdapter(Numbered({"action_mask": np.ones(2)})).reset(seed=0)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_the_trainer_computes_the_log_probabilities_that_were_sampled_at(pack: bool, share: bool) -> None:
    batch = Batch.of(play())
    seen = take_snapshot(MODEL, batch, microbatch_tokens=100, pack=pack, share=share)
    torch.testing.assert_close(seen.logprobs, batch.rollout_logprobs, rtol=1e-4, atol=1e-4)
    free = replace(batch, allowed=None)
    assert (take_snapshot(MODEL, free, microbatch_tokens=100).logprobs - seen.logprobs).abs().max() > 0.1


def test_recorded_trajectories_keep_the_sets(tmp_path: Path) -> None:
    played = play()
    write_trajectories(tmp_path / "played.jsonl", played)
    back = read_trajectories(tmp_path / "played.jsonl")
    assert [(t.allowed, t.allowed_sets) for t in back] == [(t.allowed, t.allowed_sets) for t in played]
    rows = [json.loads(line) for line in (tmp_path / "played.jsonl").read_text().splitlines()]
    for row in rows:  # records from before there were sets
        del row["allowed"], row["allowed_sets"]
    (tmp_path / "old.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert all(t.allowed == () for t in read_trajectories(tmp_path / "old.jsonl"))


def test_an_action_outside_of_its_set_is_an_error_that_says_where() -> None:
    played = play()
    at = played[2].turns[3].start
    ids = played[2].token_ids.copy()
    ids[at] = MODEL.tokenizer.encode("499")[0]
    changed = [*played[:2], replace(played[2], token_ids=ids), played[3]]
    with pytest.raises(ShapeError, match=f"trajectory 2: token {at}, in turn 3, is {ids[at]}, which is not among"):
        Batch.of(changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allowed": (0,)}, "expected"),
        ({"allowed_sets": ()}, "less than 0"),
        ({"allowed": "an observation"}, "it is no action"),
    ],
)
def test_records_that_do_not_fit_are_errors(changes: dict[str, Any], message: str) -> None:
    (played,) = play(n=1)
    if changes.get("allowed") == "an observation":
        changes = {"allowed": (0, *played.allowed[1:])}
    with pytest.raises(ShapeError, match=message):
        Batch.of([replace(played, **changes)])


def test_an_update_restricts_entropy_and_ratio_and_has_no_gradient_for_words_that_are_no_actions() -> None:
    algorithm = PPO(epochs=1, minibatches=1, episodes_per_update=4, entropy_coefficient=0.1, weight_decay=0.0)
    model = MODEL.copy()
    learner = algorithm.start(model, seed=0)
    before = model.unembedding.weight.detach().clone()
    metrics = algorithm.update(learner, play())
    changed = (model.unembedding.weight.detach() - before).abs().amax(1) > 0
    actions = [model.tokenizer.encode(word)[0] for word in WORDS]
    untied = model.unembedding.weight.data_ptr() != model.causal_lm.get_input_embeddings().weight.data_ptr()
    assert untied and changed[actions].any()
    assert not changed[[i for i in range(len(changed)) if i not in actions]].any()
    assert metrics["ratio_error_first"] < 1e-4 and 0 < metrics["entropy"] < np.log(6)
