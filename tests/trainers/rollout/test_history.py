"""Histories longer than the context: what the policy reads, and the samples for training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import take_snapshot
from swe_trainers.model.chat import ChatFormat, CompactChat, TemplateChat
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.history import Exchange, HeadTail, Prompt
from swe_trainers.rollout.play import play as play_episodes
from swe_trainers.rollout.settings import EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory
from tests.trainers.learning.tiny import trajectory as made
from tests.trainers.model.test_chat import CHATML, byte_level
from tests.trainers.tiny import full_logprobs, tiny_model

MODEL = tiny_model("llama", seed=3)
CHAT = CompactChat(MODEL.tokenizer)
NOTE = HeadTail(note="w30 w{n} w31")


class Long(gymnasium.Env[str, str]):
    """Says `w<turn>` a few times; reward 1 a turn, and the end after 14."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "w29 w29 w29", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return f"w{self.turn} " * (1 + self.turn % 3) + f"w{self.turn}", 1.0, self.turn == 14, False, {}


def play(history: HeadTail | None, *, max_tokens: int = 60, n: int = 3, max_new_tokens: int = 6) -> list[Trajectory]:
    engine = EmbeddedEngine(MODEL, n_slots=2, max_tokens=max_tokens)
    limits = Limits(max_new_tokens=max_new_tokens)
    return play_episodes(
        engine, CHAT, [Long(), Long()], [EpisodeStart(s) for s in range(n)], limits=limits, history=history
    )


def samples(trajectory: Trajectory) -> list[slice]:
    ends = [*trajectory.sample_starts[1:], len(trajectory.token_ids)]
    return [slice(a, b) for a, b in zip(trajectory.sample_starts, ends, strict=True)]


@pytest.mark.parametrize("history", [NOTE, HeadTail(0.0, 1.0, NOTE.note), HeadTail(0.6, 0.9, NOTE.note)])
def test_each_sample_is_what_the_policy_read_and_every_action_counts_once(history: HeadTail) -> None:
    for episode in play(history):
        assert (episode.terminated, episode.valid, len(episode.turns)) == (True, True, 14)
        assert len(episode.sample_starts) > 2
        for where in samples(episode):
            ids, mask = episode.token_ids[where], episode.action_mask[where]
            assert len(ids) <= 60
            assert mask.any()
            truth = full_logprobs(MODEL, ids.tolist())
            got = torch.from_numpy(episode.rollout_logprobs[where])
            torch.testing.assert_close(got, torch.where(torch.from_numpy(mask), truth, 0.0), rtol=1e-4, atol=1e-4)
        of_turns = [place for turn in episode.turns for place in range(turn.start, turn.end)]
        assert episode.action_mask.nonzero()[0].tolist() == of_turns
        assert [episode.rewards[turn.end - 1] for turn in episode.turns] == [1.0] * 14


def test_shortened_context_has_prompt_note_and_last_observation() -> None:
    for episode in play(NOTE):
        for at in episode.sample_starts[1:]:
            turn = next(n for n, t in enumerate(episode.turns) if t.start >= at)  # the first that reads it
            text = MODEL.tokenizer.decode(episode.token_ids[at : episode.turns[turn].start])
            assert text.startswith("w29 w29 w29")
            assert text.count("w30 w") == 1
            assert 0 < int(text.partition("w30 w")[2].partition(" ")[0]) <= turn
            assert text.endswith(episode.turns[turn].observation)


def exchange(n: int, size: int = 3) -> Exchange:
    text = f"w{n}"
    return Exchange([8 + n] * size + [CHAT.end_id], True, text, CHAT.observe(text, closed=True))


def test_head_and_tail_fractions_match_hand_computed_values() -> None:
    prompt = Prompt("w20", None, None, CHAT.start("w20"))  # <|user|> w20 <|end|> <|assistant|>: 4 tokens
    past = [exchange(n) for n in range(10)]  # 8 tokens each: 84 in all
    ids = HeadTail(0.3, 1.0, "w30 w{n}").shorten(CHAT, prompt, past, 50)
    assert ids is not None
    # Of 50 tokens 15 are the head's: prompt and first turn make 12. The last observation has 4, and of the 34 left
    # three turns of 8 take 24: a fourth would go past 50 with what note and line ends add to the joined observation.
    joined = CHAT.observe("w0\n\nw30 w6\n\nw6", closed=True)
    tail = [i for turn in past[7:] for i in [*turn.action_ids, *turn.ids]]
    assert ids == [*prompt.ids, *past[0].action_ids, *joined, *tail]
    assert len(ids) == 44
    assert HeadTail(note="w30").shorten(CHAT, prompt, past, 9) is None


def test_shortened_history_works_with_any_chat_template() -> None:
    chat: ChatFormat = TemplateChat(byte_level(CHATML))
    prompt = Prompt("begin", "be brief", None, chat.start("begin", system="be brief"))
    past = [
        Exchange([65 + n, chat.end_id], True, f"seen {n}", chat.observe(f"seen {n}", closed=True)) for n in range(8)
    ]
    ids = HeadTail(0.0, 1.0).shorten(chat, prompt, past, len(prompt.ids) + 3 * past[0].size)
    assert ids is not None
    text = byte_level(CHATML).inner.decode(ids)
    assert text.count("turns omitted") == 1
    assert "be brief" in text and "begin" in text and "seen 7" in text and "seen 0" not in text


def test_no_room_for_an_action_is_rejected_and_no_room_at_all_truncates() -> None:
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        play(NOTE, max_tokens=30, max_new_tokens=30)
    for episode in play(NOTE, max_tokens=24, max_new_tokens=4):
        assert episode.truncated and episode.valid
    for changes in ({"head": 1.0}, {"keep": 0.0}):
        with pytest.raises(ConfigurationError, match="got"):
            HeadTail(**changes)


@pytest.mark.parametrize("pack", [False, True])
def test_training_samples_equal_the_contexts_that_were_read(pack: bool) -> None:
    batch = Batch.of([*play(NOTE), *play(None, max_tokens=120)])
    assert int(batch.sample_starts.sum()) > batch.n_sequences == 6
    seen = take_snapshot(MODEL, batch, microbatch_tokens=150, pack=pack)
    torch.testing.assert_close(
        seen.logprobs, batch.rollout_logprobs.where(batch.action_mask, 0.0), rtol=1e-4, atol=1e-4
    )


def test_sample_that_begins_with_an_action_is_rejected() -> None:
    good = made([1, 2, 3, 4], [False, True, False, True])
    for starts in ((1,), (0, 3)):
        with pytest.raises(ShapeError, match="samples begin"):
            Batch.of([replace(good, sample_starts=starts)])


@pytest.mark.parametrize("max_turns", [None, 5])
def test_the_last_observation_alone_is_the_context_of_every_turn(max_turns: int | None) -> None:
    engine, limits = EmbeddedEngine(MODEL, n_slots=2, max_tokens=60), Limits(6, max_turns=max_turns)
    for episode in play_episodes(
        engine, CHAT, [Long(), Long()], [EpisodeStart(s) for s in range(3)], limits=limits, history="last"
    ):
        assert len(episode.turns) == (max_turns or 14)
        contexts = [episode.token_ids[part].tolist() for part in samples(episode)]
        for turn, context in zip(episode.turns, contexts, strict=max_turns is None):
            action = episode.token_ids[turn.start : turn.end].tolist()
            assert context == [*CHAT.start(turn.observation), *action] or turn is episode.turns[-1]
        if max_turns:  # the value after the last action is that of the observation after it, read alone
            assert contexts[-1] == CHAT.start("w5 w5 w5 w5") and episode.truncated
        seen = take_snapshot(MODEL, Batch.of([episode]), microbatch_tokens=1000)
        torch.testing.assert_close(seen.logprobs, torch.from_numpy(episode.rollout_logprobs), atol=1e-4, rtol=1e-4)


def test_empty_note_adds_no_line_ends_which_a_vocabulary_of_words_need_not_have() -> None:
    chat = CompactChat(WordTokenizer(["hall", "room", "left", " "]))
    prompt = Prompt("hall", None, None, chat.start("hall"))
    (left,) = chat.action_ids("left")
    past = [Exchange([left, chat.end_id], True, "room", chat.observe("room", closed=True)) for _ in range(9)]
    ids = HeadTail(0.0, 1.0, note="").shorten(chat, prompt, past, 16)
    assert ids is not None and len(ids) <= 16
    joined = chat.start("hall room")
    assert ids[: len(joined)] == joined
    with pytest.raises(ConfigurationError, match="not in the vocabulary"):
        HeadTail(0.0, 1.0, note="left").shorten(chat, prompt, past, 16)
