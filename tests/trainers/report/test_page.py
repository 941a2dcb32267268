"""The report in a real browser; what it complains about fails the test."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import yaml

from swe_trainers.cli import main
from swe_trainers.report.examples import Examples, read_examples
from swe_trainers.report.html_page import RunningReport, write_report
from swe_trainers.rollout.trajectory import Trajectory, Turn

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> @DATA@ @SCRIPT@ <!--"


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
        {"update": u, "stage": "ppo", "reward_mean": math.tanh(u / 20) + 0.05 * seed, "loss": 1 / u, "kl_old": 0.01,
         "clip_fraction": 0.1, "entropy": 3 / u, "seconds/collect": 2.0, "seconds/learn": 1.0, "episodes": 32.0,
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


def test_a_run_is_shown_with_its_figures_its_diagrams_and_its_episodes(open_page, tmp_path):
    page = open_page(write_report([recorded(tmp_path / "run", text=HOSTILE)]))
    assert page.locator("h1").text_content() == "run"
    tiles = dict(zip(page.locator(".tiles dt").all_text_contents(), page.locator(".tiles dd").all_text_contents(),
                     strict=True))  # fmt: skip
    assert tiles["Success"] == "0.167 → 1"
    assert (tiles["Updates"], tiles["Episodes learnt from"], tiles["Time"]) == ("60", "1920", "3 min")
    titles = page.locator("figure h3").all_text_contents()
    assert {"Success when measured", "Loss", "Divergence", "Clipped share", "Seconds of an update"} <= set(titles)
    heads = page.locator(".episode summary").all_text_contents()
    # The middle one of three returned update / 10; the worst of the last third is the least of update 40.
    assert [head.split("update")[0] for head in heads] == ["early", "middle", "late", "worst"]
    assert [f"return {h.split('return ')[1][0]}" for h in heads] == ["return 0", "return 3", "return 5", "return 3"]
    assert page.locator(".episode pre.action").first.text_content() == f"{HOSTILE} 0"
    assert page.evaluate("[window.hacked, document.images.length, document.scripts.length]") == [None, 0, 2]


def test_a_pointer_reads_a_value_and_the_theme_can_be_changed(open_page, tmp_path):
    page = open_page(
        write_report([recorded(tmp_path / "run")]), viewport={"width": 1200, "height": 900}, color_scheme="dark"
    )
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    svg = page.locator("figure", has_text="Success when measured").locator("svg")
    box = svg.bounding_box()
    svg.hover(position={"x": box["width"] - 12, "y": 60})
    assert page.locator(".tip:visible").text_content() == "update 60success 1"
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.locator("figure details summary").first.click()
    assert page.locator("figure table:visible tbody tr").last.text_content() == "601"


def test_a_narrow_page_does_not_scroll_sideways(open_page, tmp_path):
    page = open_page(write_report([recorded(tmp_path / "run")]), viewport={"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_runs_of_several_seeds_share_diagrams_and_a_difference_is_told(open_page, tmp_path, capsys):
    runs = [str(recorded(tmp_path / f"seed{seed}", seed=seed)) for seed in range(3)]
    odd = str(recorded(tmp_path / "odd", seed=3, rate=1e-2))
    assert main(["report", *runs, "--output", str(tmp_path / "all.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'all.html'}\n"
    page = open_page(tmp_path / "all.html")
    assert "3 runs" in page.locator("h1").text_content()
    assert "seed 0, 1, 2" in page.locator(".facts").text_content()
    assert page.locator("figure", has_text="Return of training episodes").locator("path.band").count() == 1
    assert page.locator(".warning").count() == 0
    different = open_page(write_report([*runs, odd], tmp_path / "odd.html"))
    assert "trainer.learning_rate" in different.locator(".warning").text_content()


def test_ten_thousand_updates_make_a_small_page(tmp_path):
    path = write_report([recorded(tmp_path / "run", updates=10_000)])
    assert path.stat().st_size < 1_500_000


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"swe-train report: {tmp_path}: no metrics.jsonl there. Try: the output_dir of a swe-train run\n"
    )


def test_the_report_of_a_run_is_written_while_it_runs_and_not_at_every_update(tmp_path):
    run = recorded(tmp_path / "run", updates=3)
    report = RunningReport(run)
    report.refresh()
    first = (run / "report.html").stat().st_mtime_ns
    time.sleep(0.01)
    report.refresh()
    assert (run / "report.html").stat().st_mtime_ns == first


def test_examples_of_a_long_run_stay_few_and_evenly_spread(tmp_path):
    path = tmp_path / "examples.jsonl"
    examples = Examples(path)
    for update in range(400):
        examples.keep(update, [played(1.0)])
    kept = sorted({row["update"] for row in read_examples(path)})
    assert 32 <= len(kept) <= 64
    assert len({b - a for a, b in zip(kept, kept[1:])}) == 1  # noqa: B905, RUF007 - pairs of neighbours
    assert (kept[0], kept[-1]) == (0, 392)


def test_examples_later_than_a_checkpoint_are_forgotten_and_long_texts_cut(tmp_path):
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
