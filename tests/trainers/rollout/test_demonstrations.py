"""Written conversations as trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.chat import CompactChat, TemplateChat
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.demonstrations import read_conversations
from tests.trainers.model.test_chat import CHATML, byte_level

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


def test_a_conversation_with_tools_begins_with_the_prompt_that_an_episode_begins_with(tmp_path: Path) -> None:
    """The chat template lists the tools: a clone would otherwise learn to answer a prompt that it is never shown."""
    tokenizer = byte_level(CHATML)
    chat, tools = TemplateChat(tokenizer), [{"type": "function", "function": {"name": "bash"}}]
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "right"}, *TURN], "tools": tools}) + "\n")
    (found,) = read_conversations(path, chat, tokenizer)
    prompt = chat.start("wall", system="right", tools=tools)
    assert prompt != chat.start("wall", system="right")
    assert found.token_ids.tolist() == [*prompt, *tokenizer.encode("left"), chat.end_id]


@pytest.mark.parametrize("tools", ["bash", {"name": "bash"}, ["bash"]])
def test_tools_that_are_no_list_of_schemas_are_an_error_that_names_the_line(tmp_path: Path, tools: object) -> None:
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps({"messages": TURN, "tools": tools}) + "\n")
    with pytest.raises(ConfigurationError, match="line 1: no conversation: tools: expected a list of function schemas"):
        read_conversations(path, CompactChat(TOKENIZER), TOKENIZER)
