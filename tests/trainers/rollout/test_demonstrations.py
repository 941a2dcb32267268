"""Written conversations as trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_trainers.model.chat import CompactChat
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.demonstrations import read_conversations

TOKENIZER = WordTokenizer(["left", "right", "wall"])
USER, ASSISTANT, END = (TOKENIZER.special_id(f"<|{name}|>") for name in ("user", "assistant", "end"))
TURN = [{"role": "user", "content": "wall"}, {"role": "assistant", "content": "left"}]


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": ""}], [{"role": "system", "content": "right"}]])
def test_every_answer_is_trained_on_with_its_end(tmp_path: Path, system: list[dict[str, str]]) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"messages": [*system, *TURN, *TURN]}) + "\n")
    (found,) = read_conversations(path, CompactChat(TOKENIZER), TOKENIZER)
    wall, left = TOKENIZER.encode("wall"), TOKENIZER.encode("left")
    turn = [USER, *wall, END, ASSISTANT, *left, END]
    assert found.token_ids.tolist() == [*turn, *turn]
    assert found.action_mask.tolist() == [False, False, False, False, True, True] * 2
    assert found.terminated and [each.action for each in found.turns] == ["left", "left"]
