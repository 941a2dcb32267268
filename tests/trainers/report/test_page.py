"""The report in a real browser; an error in its console fails the test."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import yaml

from swe_trainers.cli.main import main
from swe_trainers.report.examples import Examples, read_examples
from swe_trainers.report.page import RunningReport, write_report
from swe_trainers.rollout.trajectory import Trajectory, Turn
from tests.browser import page_faults

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> @DATA@ @SCRIPT@ <!--"
CONFIG = """\
environment: {id: FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text, parallel: 2, max_turns: 3,
              max_tokens: 64, max_new_tokens: 2, lockstep: true}
model: {architecture: {model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
                       num_attention_heads: 2, max_position_embeddings: 128}, tokenizer: words}
trainer: {algorithm: ppo, episodes_per_update: 4}
checkpoint_every: 1
threads: 1
"""


def played(returned, text="say", turns=2):
    made = [
        Turn(f"read {text} {i}", f"{text} {i}", returned if i == turns - 1 else 0.0, i, i + 1) for i in range(turns)
    ]
    rewards = np.zeros(turns, dtype=np.float32)
    rewards[-1] = returned
    ones = np.ones(turns, dtype=bool)
    zeros = np.zeros(turns, dtype=np.float32)
    return Trajectory(np.zeros(turns, np.int64), ones, zeros, rewards, True, False, turns=tuple(made), seed=1)


def recorded(folder, seed=0, updates=60, text="say", rate=1e-3):
    folder.mkdir()
    lines = [
        {"update": u, "stage": "ppo", "reward_mean": math.tanh(u / 20) + 0.05 * seed, "loss": 1 / u, "kl/old": 0.01,
         "clip_fraction": 0.1, "entropy": 3 / u, "seconds/rollout": 2.0, "seconds/update": 1.0, "episodes": 32.0,
         "engine/sampled_tokens": 4000.0, "tokens": 9000.0, "seconds": 3.0 * u,
         **({"eval/success": u / updates} if u % 10 == 0 else {})}
        for u in range(1, updates + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"environment": {"id": HOSTILE}, "trainer": {"algorithm": "ppo", "learning_rate": rate}, "seed": seed}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    examples = Examples(folder / "examples.jsonl")
    for update in range(0, updates, 10):
        examples.keep(update, [played(update / 10 + i - 1, text) for i in range(3)])
    return folder


def test_the_report_shows_figures_diagrams_and_episodes_and_escapes_all_text(open_page, tmp_path):
    page = open_page(write_report([recorded(tmp_path / "run", text=HOSTILE)]))
    assert page.locator("h1").text_content() == "run"
    tiles = dict(zip(page.locator(".tiles dt").all_text_contents(), page.locator(".tiles dd").all_text_contents(),
                     strict=True))  # fmt: skip
    assert tiles["Evaluation success"] == "0.167 → 1"
    assert (tiles["Updates"], tiles["Episodes trained on"], tiles["Time"]) == ("60", "1920", "3 min")
    titles = page.locator("figure h4").all_text_contents()
    expected = {"Evaluation success", "Loss", "KL to the sampling policy", "Clip fraction", "Seconds per update"}
    assert expected <= set(titles)
    heads = page.locator(".episode summary").all_text_contents()
    # The middle one of three returned update / 10; the worst of the last third is the least of update 40.
    assert [head.split("update")[0] for head in heads] == ["early", "middle", "late", "worst"]
    assert [f"return {h.split('return ')[1][0]}" for h in heads] == ["return 0", "return 3", "return 5", "return 3"]
    assert page.locator(".episode pre.action").first.text_content() == f"{HOSTILE} 0"
    assert page.evaluate("[window.hacked, document.images.length, document.scripts.length]") == [None, 0, 2]


def test_hovering_shows_values_and_the_theme_can_be_changed(open_page, tmp_path):
    page = open_page(
        write_report([recorded(tmp_path / "run")]), viewport={"width": 1200, "height": 900}, color_scheme="dark"
    )
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    svg = page.locator("figure", has_text="Evaluation success").locator("svg")
    box = svg.bounding_box()
    svg.hover(position={"x": box["width"] - 12, "y": 60})
    assert page.locator(".tip:visible").text_content() == "update 60success 1"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("figure details summary").first.click()
    assert page.locator("figure table:visible tbody tr").last.text_content() == "601"


def test_the_page_is_accessible_and_links_to_the_evaluation(open_page, tmp_path):
    run = recorded(tmp_path / "run")
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.html").write_text("<!doctype html>")
    page = open_page(write_report([run], tmp_path / "elsewhere.html"))
    assert page.locator("header a").get_attribute("href") == "run/evaluation/report.html"
    for part in page.locator("details").all():
        part.evaluate("(part) => { part.open = true }")
    assert page_faults(page) == []
    axes = page.locator("figure svg").evaluate_all(
        "(all) => all.map((svg) => [...svg.querySelectorAll('text')].pop().textContent)"
    )
    assert set(axes) == {"update"}


def test_a_telephone_shows_the_results_first_and_the_rest_folded(open_page, tmp_path):
    page = open_page(write_report([recorded(tmp_path / "run")]), viewport={"width": 390, "height": 844})
    assert page.locator(".part[open] h3").all_text_contents() == ["Results"]
    assert page.locator(".part h3").all_text_contents() == ["Results", "Learning", "Speed"]
    assert page.evaluate("document.documentElement.scrollHeight") <= 2500


def test_runs_of_several_seeds_share_diagrams_and_other_differences_are_named(open_page, tmp_path, capsys):
    runs = [str(recorded(tmp_path / f"seed{seed}", seed=seed)) for seed in range(3)]
    odd = str(recorded(tmp_path / "odd", seed=3, rate=1e-2))
    assert main(["report", *runs, "--output", str(tmp_path / "all.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'all.html'}\n"
    page = open_page(tmp_path / "all.html")
    assert "3 runs" in page.locator("h1").text_content()
    assert "seed 0, 1, 2" in page.locator(".facts").text_content()
    assert page.locator("figure", has_text="Training return").locator("path.band").count() == 1
    assert page.locator(".warning").count() == 0
    different = open_page(write_report([*runs, odd], tmp_path / "odd.html"))
    assert "trainer.learning_rate" in different.locator(".warning").text_content()


def test_ten_thousand_updates_make_a_small_page(tmp_path):
    path = write_report([recorded(tmp_path / "run", updates=10_000)])
    assert path.stat().st_size < 1_500_000


def test_a_directory_without_a_run_is_an_error_of_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"swe-train report: {tmp_path}: no metrics.jsonl there. Try: the output_dir of a swe-train run\n"
    )


def test_a_running_report_is_not_written_at_every_update(tmp_path):
    run = recorded(tmp_path / "run", updates=3)
    report = RunningReport(run)
    report.refresh()
    first = (run / "report.html").stat().st_mtime_ns
    time.sleep(0.01)
    report.refresh()
    assert (run / "report.html").stat().st_mtime_ns == first


def test_examples_of_a_long_run_are_few_and_evenly_spaced(tmp_path):
    path = tmp_path / "examples.jsonl"
    examples = Examples(path)
    for update in range(400):
        examples.keep(update, [played(1.0)])
    kept = sorted({row["update"] for row in read_examples(path)})
    assert 32 <= len(kept) <= 64
    assert len({b - a for a, b in zip(kept, kept[1:])}) == 1  # noqa: B905, RUF007 - pairs of neighbours
    assert (kept[0], kept[-1]) == (0, 392)


def test_examples_after_the_checkpoint_are_dropped_and_long_texts_shortened(tmp_path):
    path = tmp_path / "examples.jsonl"
    examples = Examples(path)
    for update in range(4):
        examples.keep(update, [played(1.0, text="x" * 10_000, turns=100)])
    Examples(path, updates=2).keep(2, [played(5.0)])
    rows = read_examples(path)
    assert [row["update"] for row in rows if row["which"] == "best"] == [0, 1, 2]
    assert rows[-1]["return"] == 5.0
    assert len(rows[0]["turns"]) == 40
    assert rows[0]["n_turns"] == 100
    assert "characters …]" in rows[0]["turns"][0]["action"]
    assert path.stat().st_size < 3_000_000


def test_a_resumed_run_has_the_examples_of_an_uninterrupted_one(tmp_path, monkeypatch):
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
