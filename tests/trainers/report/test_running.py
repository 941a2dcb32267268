"""The report and the examples of a run that resumes are those of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path

from swe_trainers.cli.main import main
from swe_trainers.report.examples import read_examples

CONFIG = """\
environment: {id: FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text, parallel: 2, max_turns: 3,
              max_tokens: 64, max_new_tokens: 2, lockstep: true}
model: {architecture: {model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
                       num_attention_heads: 2, max_position_embeddings: 128}, tokenizer: words}
trainer: {algorithm: ppo, episodes_per_update: 4}
checkpoint_every: 1
threads: 1
"""


def test_a_resumed_run_has_the_examples_of_an_uninterrupted_one(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)

    def trained(output: str, updates: int) -> list[dict[str, object]]:
        overrides = ["--output_dir", output, "--trainer.max_updates", str(updates), "--quiet", "--resume-with-changes"]
        assert main(["config.yaml", *overrides]) == 0
        assert f"<dt>Updates</dt><dd>{updates}</dd>" in Path(output, "report.html").read_text()
        return read_examples(Path(output, "examples.jsonl"))

    trained("stopped", 1)
    resumed = trained("stopped", 2)
    assert [row["update"] for row in resumed if row["which"] == "worst"] == [0, 1]
    assert resumed == trained("uninterrupted", 2)
