"""Models in folders: the same tokens as the engine alone gives, several conversations at once, whole evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest
import torch

from swe_trainers.cli.main import main_eval
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.engines.serving import ModelServer
from swe_trainers.evaluation.environment import Item
from swe_trainers.evaluation.recording import RecordedEnv
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.play import iter_episodes
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from tests.trainers.evaluation.conftest import GUESS
from tests.trainers.model.test_chat import byte_level
from tests.trainers.tiny import tiny_model

LINES = ("w1 w2", "w3", "w4 w5 w6")
TOKENIZER = WordTokenizer([f"w{i}" for i in range(40)] + [" ", "\n"])


class Lines(gymnasium.Env[str, str]):
    """Shows some lines, each after the seed, then terminates. If announced, it shows that a turn is the last."""

    observation_space = action_space = AnyText()
    last = ""

    def reset(self, *, seed=None, options=None):
        self.seed, self.turn, self.last = seed, 0, ""
        return f"w{seed} {LINES[0]}", {}

    def last_turn(self, reason):
        self.last = reason

    def step(self, action):
        self.turn += 1
        over = self.turn == len(LINES) or bool(self.last)
        info = {"end_reason": self.last or "submitted", "resolved": False} if over else {}
        return f"w{self.seed} {LINES[self.turn % len(LINES)]}", 0.0, over, False, info


def _play(n_envs, *, seeds=(0,), max_tokens=120, temperature=0.0):
    """Episodes as an evaluation plays them."""
    model = tiny_model(tokenizer=TOKENIZER)
    engine = EmbeddedEngine(model, n_slots=n_envs, max_tokens=max_tokens)
    settings = EpisodeSettings(Limits(5), Sampling(temperature), grade_when_full=True)
    starts = [EpisodeStart(seed, stream=(seed,)) for seed in seeds]
    envs = [RecordedEnv(Lines()) for _ in range(n_envs)]
    found = []
    for ended in iter_episodes(engine, CompactChat(model.tokenizer), envs, starts, settings):
        (trajectory,) = ended.trajectories
        record = ended.env.record
        record.finish(Item(str(ended.number), 0, 0, (), named=False), trajectory, None)
        found.append((ended.number, record, trajectory))
    return [(record, trajectory) for _, record, trajectory in sorted(found, key=lambda each: each[0])]


def test_greedy_answers_are_the_most_likely_tokens_of_the_model():
    """Checked token by token against transformers' own pass over the whole sequence."""
    model = tiny_model(tokenizer=TOKENIZER)
    chat = CompactChat(model.tokenizer)
    ((record, trajectory),) = _play(1)
    ids: list[int] = []
    closed, read, wrote = True, 0, 0
    for number, (line, turn) in enumerate(zip(LINES, trajectory.turns, strict=True)):
        ids += chat.observe(f"w0 {line}", closed=closed) if number else chat.start(f"w0 {line}")
        read += len(ids)
        action: list[int] = []
        while len(action) < 5 and (not action or action[-1] not in chat.stop_ids):
            with torch.no_grad():
                logits = model.causal_lm(input_ids=torch.tensor([[*ids, *action]]), use_cache=False).logits
            action.append(int(logits[0, -1].argmax()))
        assert turn.action == chat.action_text(action)
        closed = action[-1] in chat.stop_ids
        ids, wrote = ids + action, wrote + len(action)
    usage = record.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens, usage.cost) == (3, read, wrote, None)


def test_parallel_episodes_do_not_influence_one_another():
    seeds = [seed for seed in range(6) for _ in range(2)]  # slots are released and reused
    alone, together = (
        [[turn.action for turn in trajectory.turns] for _, trajectory in _play(n, seeds=seeds, temperature=1.0)]
        for n in (1, 6)
    )
    assert together == alone and len({tuple(actions) for actions in alone}) > 1


def test_an_episode_with_a_full_context_is_graded_by_the_environment():
    ((record, trajectory),) = _play(1, max_tokens=24)
    assert (record.end_reason, record.valid, trajectory.terminated) == ("tokens", True, True)
    assert record.turns[-1].action == "" and len(record.turns) < 4
    assert "max_tokens is 24" in record.turns[-1].info["model"]["no_room"]


TEMPLATE = """\
{%- if tools %}Tools: {{ tools | tojson }} Write <tool_call>{…}</tool_call>.
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_chat_template_selects_the_action_format_and_receives_the_tools(tmp_path: Path):
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
def test_model_folder_and_run_folder_are_evaluated(tmp_path: Path, capsys, as_run):
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
    def observations(output: Path, row: dict[str, object]) -> list[str]:
        trajectory = json.loads((output / str(row["episode"]) / "traj.json").read_text())
        return [turn["action"] for turn in trajectory["turns"]]

    assert [observations(outputs[0], row) for row in one] == [observations(outputs[1], row) for row in two]
    assert observations(outputs[0], one[0]) != observations(outputs[0], one[4])
    assert json.loads((outputs[0] / "summary.json").read_text())["cost"] is None


def test_swe_serve_answers_like_the_embedded_engine(tmp_path: Path, capsys):
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

    def observations(place: str) -> list[list[str]]:
        found = [json.loads(path.read_text()) for path in sorted((tmp_path / place / "episodes").glob("*/traj.json"))]
        return [[turn["action"] for turn in trajectory["turns"]] for trajectory in found]

    assert len(observations("here")) == 4 and observations("here") == observations("there")
