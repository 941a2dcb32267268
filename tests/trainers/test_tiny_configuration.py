"""`examples/configs/tiny.yaml` trains in sandboxes, from its own tokenizer to its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_trainers.cli.main import main
from swe_trainers.errors import ConfigurationError
from swe_trainers.logging import read_metrics
from swe_trainers.model.tokenizers import SentencePiece, read_corpus

ROOT = Path(__file__).parents[2]


def test_smallest_configuration_trains_in_sandboxes(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = tmp_path / "tiny"
    assert (
        main(["examples/configs/tiny.yaml", "--output_dir", str(output), "--trainer.max_updates", "2", "--quiet"]) == 0
    )
    rows = [row for row in read_metrics(output / "metrics.jsonl") if "loss" in row]
    assert [row["update"] for row in rows] == [1, 2]
    for row in rows:
        assert row["episodes"] == 8
        # 0.05 for each of at most three turns, and nothing for a repair that a random model does not find.
        assert row["reward_mean"] == pytest.approx(row["reward/step"] + row["reward/environment"], abs=1e-6)
        assert -0.1501 < row["reward/step"] < 0
    measured = [row for row in read_metrics(output / "metrics.jsonl") if "eval/return" in row]
    assert all(row["eval/return"] == row["eval/success"] for row in measured)  # the penalty is for training only
    model = output / "model"
    assert (model / "sentencepiece.model").is_file() and (model / "model.safetensors").is_file()
    page = (output / "report.html").read_text()
    assert "Reward components" in page and "class=episode" in page
    examples = [json.loads(line) for line in (output / "examples.jsonl").read_text().splitlines()]
    assert {row["update"] for row in examples} == {0, 1}


def test_corpus_is_a_file_a_folder_or_json_lines(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.py").write_text("x = 1\n" * 2000)
    (folder / "a.md").write_text("first\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    texts = list(read_corpus(folder))
    assert texts[0] == "first\n"
    assert "".join(texts[1:]) == "x = 1\n" * 2000
    assert max(map(len, texts)) <= 4096
    lines = tmp_path / "lines.jsonl"
    written = [
        {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]},
        {"turns": [{"observation": "seen", "action": "done", "reward": 0.0}]},
        {"text": "plain"},
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in written))
    assert list(read_corpus(lines)) == ["ask", "answer", "seen", "done", "plain"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "No such file"), (b"\xff\xfe", "utf-8"), (b'{"a": 1}\n', "line 1"), (b"no\n", "line 1")],
)
def test_unreadable_corpus_is_a_one_line_error(tmp_path, content, expected):
    path = tmp_path / "corpus.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=expected):
        list(read_corpus(path))


def test_tokenizer_training_follows_its_settings_and_is_deterministic(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the_quick brown fox\n" * 50)
    config = SentencePiece(path, vocab_size=300, separators="_")
    tokenizer = config.train()
    assert 256 < tokenizer.vocab_size <= 300
    ids = tokenizer.encode("the_quick")
    assert tokenizer.decode(ids) == "the_quick"
    assert tokenizer.encode("_") == [i for i in ids if tokenizer.decode([i]) == "_"]
    assert config.train().encode("the_quick brown fox") == tokenizer.encode("the_quick brown fox")
    with pytest.raises(ConfigurationError, match="256 bytes"):
        SentencePiece(path, vocab_size=200)
