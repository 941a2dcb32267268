"""Models in folders: the same tokens as the engine alone gives, several conversations at once, whole evaluations."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from swe_trainers.cli import main_eval
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.serving import ModelServer
from swe_trainers.errors import TrainerError
from swe_trainers.evaluation.conversation import NoRoomError
from swe_trainers.evaluation.local import LocalModel
from swe_trainers.policy.chat import CompactChat
from swe_trainers.policy.word_tokenizer import WordTokenizer
from tests.trainers.evaluation.conftest import GUESS
from tests.trainers.policy.test_chat import byte_level
from tests.trainers.tiny import tiny_model

TALK = ("w1 w2", "w3", "w4 w5 w6")


def _tokenizer() -> WordTokenizer:
    return WordTokenizer([f"w{i}" for i in range(40)] + [" ", "\n"])


def _local(n_slots: int, *, max_tokens: int = 120, temperature: float = 0.0) -> LocalModel:
    model = tiny_model(tokenizer=_tokenizer())
    engine = EmbeddedEngine(model, n_slots=n_slots, max_tokens=max_tokens)
    return LocalModel(engine, CompactChat(model.tokenizer), sampling=Sampling(temperature), max_new_tokens=5)


def test_a_conversation_is_what_the_model_itself_finds_most_likely():
    """Greedy answers, checked token by token against transformers' own pass over the whole sequence."""
    model = tiny_model(tokenizer=_tokenizer())
    chat = CompactChat(model.tokenizer)
    local = LocalModel(EmbeddedEngine(model, n_slots=1, max_tokens=120), chat, sampling=Sampling(0.0), max_new_tokens=5)
    talk = local.open("", [], seed=0)
    ids: list[int] = []
    closed = True
    for number, observation in enumerate(TALK):
        answer = talk.act(observation)
        ids += chat.observe(observation, closed=closed) if number else chat.start(observation)
        assert answer.usage.prompt_tokens == len(ids)
        wrote: list[int] = []
        while len(wrote) < 5 and (not wrote or wrote[-1] not in chat.stop_ids):
            with torch.no_grad():
                logits = model.causal_lm(input_ids=torch.tensor([[*ids, *wrote]]), use_cache=False).logits
            wrote.append(int(logits[0, -1].argmax()))
        assert answer.action == chat.action_text(wrote) and answer.usage.completion_tokens == len(wrote)
        closed = wrote[-1] in chat.stop_ids
        ids += wrote
    talk.close()


def test_conversations_side_by_side_do_not_notice_one_another():
    def play(local: LocalModel, seed: int, found: dict[int, list[str]]) -> None:
        for _ in range(3):  # slots are given back, and taken again
            talk = local.open("", [], seed)
            found[seed] = [talk.act(f"w{seed} {text}").action for text in TALK]
            talk.close()

    alone: dict[int, list[str]] = {}
    for seed in range(6):
        play(_local(1, temperature=1.0), seed, alone)
    together: dict[int, list[str]] = {}
    local = _local(6, temperature=1.0)
    threads = [threading.Thread(target=play, args=(local, seed, together)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert together == alone and len({tuple(said) for said in alone.values()}) > 1


def test_a_conversation_that_outgrows_the_model_is_told():
    local = _local(1, max_tokens=20)
    talk = local.open("", [], 0)
    talk.act("w1 w2 w3")
    talk.act("w4")
    with pytest.raises(NoRoomError, match="the model takes 20"):
        talk.act("w1 w2 w3 w4")


def test_what_the_engine_refuses_reaches_who_asked():
    local = _local(1)
    talk = local.open("", [], 0)
    talk.act("w1")
    with pytest.raises(TrainerError, match="all 1 slots are open"):
        local.open("", [], 0).act("w1")
    talk.act("w2")


TEMPLATE = """\
{%- if tools %}Tools: {{ tools | tojson }} Write <tool_call>{…}</tool_call>.
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_chat_template_chooses_the_form_of_actions_and_is_shown_the_tools(tmp_path: Path):
    folder, output = tmp_path / "model", tmp_path / "out"
    tiny_model(tokenizer=byte_level(TEMPLATE), max_position_embeddings=16384).save_pretrained(folder)
    command = ["--model", str(folder), "--dataset", "mini-edit", "--slice", ":1", "--max-turns", "2"]
    assert main_eval([*command, "--max-new-tokens", "3", "--output", str(output), "--env.sandbox", "namespace"]) == 0
    row = json.loads((output / "results.jsonl").read_text())
    assert (row["valid"], row["resolved"], row["end_reason"], row["requests"]) == (True, False, "max_turns", 2)
    trajectory = json.loads((output / row["episode"] / "traj.json").read_text())
    assert "<tool_call>" in trajectory["system_prompt"]
    shown = json.dumps(trajectory["tools"])
    assert '"bash"' in shown
    # What the model read: the template around prompt and tools, a token a byte or less.
    assert row["prompt_tokens"] > len(trajectory["prompt"]) / 4 + len(shown) / 4
    meta = json.loads((output / row["episode"] / "meta.json").read_text())
    assert meta["environment"]["arguments"]["chat_template"] == TEMPLATE
    settings = json.loads((output / "settings.json").read_text())
    assert settings["arguments"] == {"dataset": "mini-edit", "sandbox": "namespace"}


@pytest.mark.parametrize("as_run", [False, True], ids=["folder", "run"])
def test_a_folder_is_evaluated(tmp_path: Path, capsys, as_run):
    folder = tmp_path / "here" / "model"
    tokenizer = WordTokenizer.from_texts(["Add.", "0 1 2 3 4 + 4 = ?", "00 01 02 03", "Right. Wrong."])
    tiny_model(tokenizer=tokenizer).save_pretrained(folder)
    (tmp_path / "here" / "config.yaml").write_text("model: {chat: compact, dtype: float32, tokenizer: words}\n")
    outputs = [tmp_path / "one", tmp_path / "two"]
    for output, n_parallel in zip(outputs, ("1", "3"), strict=True):
        command = ["--model", str(folder.parent if as_run else folder), "--env", GUESS, "--dataset", "4"]
        command += ["--max-new-tokens", "3", "--samples", "2", "--output", str(output), "--n-parallel", n_parallel]
        assert main_eval(command) == 0
    one, two = (
        [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()] for output in outputs
    )
    assert len(one) == 8 and all(row["turns"] == 3 and row["resolved"] is False for row in one)

    # Equal seeds, equal answers, whatever is played beside them; different ones for the samples of an instance.
    def said(output: Path, row: dict[str, object]) -> list[str]:
        trajectory = json.loads((output / str(row["episode"]) / "traj.json").read_text())
        return [turn["action"] for turn in trajectory["turns"]]

    assert [said(outputs[0], row) for row in one] == [said(outputs[1], row) for row in two]
    assert said(outputs[0], one[0]) != said(outputs[0], one[4])
    assert json.loads((outputs[0] / "summary.json").read_text())["cost"] is None


def test_our_own_server_answers_as_the_engine_in_this_process(tmp_path: Path, capsys):
    tokenizer = WordTokenizer.from_texts(["Add.", "0 1 2 3 4 + 4 = ?", "00 01 02 03", "Right. Wrong."])
    folder = tmp_path / "model"
    tiny_model(tokenizer=tokenizer).save_pretrained(folder)
    common = ["--env", GUESS, "--dataset", "4", "--temperature", "0", "--max-new-tokens", "6"]
    common += ["--max-turns", "1"]  # a server encodes its own answers again, and such a model's may be no words
    assert main_eval([*common, "--model", str(folder), "--output", str(tmp_path / "here")]) == 0
    with ModelServer(folder, CompactChat, api_key="sk-own", max_tokens=128) as server:
        url = ["--model", server.name, "--base-url", f"{server.url}/v1", "--output", str(tmp_path / "there")]
        assert main_eval([*common, *url]) == 2  # no key
        assert "401" in capsys.readouterr().err
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", "sk-own")
            assert main_eval([*common, *url]) == 0

    def said(place: str) -> list[list[str]]:
        found = [json.loads(path.read_text()) for path in sorted((tmp_path / place / "episodes").glob("*/traj.json"))]
        return [[turn["action"] for turn in trajectory["turns"]] for trajectory in found]

    assert len(said("here")) == 4 and said("here") == said("there")
