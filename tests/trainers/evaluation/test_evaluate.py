"""`swe-eval` with a scripted model behind a real server, on cheap environments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from swe_trainers.evaluation.statistics import wilson
from tests.disk import left_on, on_small_disk
from tests.trainers.evaluation.conftest import GUESS
from tests.trainers.evaluation.guessing import right_answer
from tests.trainers.evaluation.scripted import Body, say, serving

ROOT = Path(__file__).parents[3]
NAMELESS = "tests.trainers.evaluation.guessing:Nameless-v0"
SCARCE = "tests.trainers.evaluation.guessing:Scarce-v0"


def _prompt(body: Body) -> str:
    return next(message["content"] for message in body["messages"] if message["role"] == "user")


def _number(body: Body) -> int:
    """Of the instance."""
    return int(_prompt(body).split("+")[0])


def _even_right(body: Body) -> object:
    """Solves the even instances at the second answer, and no other."""
    second = sum(message["role"] == "assistant" for message in body["messages"]) == 1
    return say(
        right_answer(_prompt(body)) if second and _number(body) % 2 == 0 else "no idea", read=50, wrote=3, cached=20
    )


def test_summary_matches_hand_computed_values(evaluate, results, tmp_path):
    with serving(_even_right) as served:
        prices = ("--price-in", "2", "--price-out", "10", "--price-cached", "0.5")
        code, out, err = evaluate(served.url, "--slice", ":5", *prices)
    rows, summary = results()
    assert (code, err) == (0, "")
    # Even instances take two answers, odd ones the three turns that there are: 3 · 2 + 2 · 3 = 12 requests.
    assert [row["instance_id"] for row in rows] == [f"sum__add-0{number}" for number in range(5)]
    assert [row["resolved"] for row in rows] == [True, False, True, False, True]
    assert [row["turns"] for row in rows] == [2, 3, 2, 3, 2]
    assert [row["end_reason"] for row in rows] == ["submitted", "max_turns"] * 2 + ["submitted"]
    assert summary["resolve_rate"] == 0.6 and summary["resolve_rate_95"] == pytest.approx(wilson(3, 5))
    assert (summary["resolved"], summary["valid"], summary["invalid"], summary["episodes"]) == (3, 5, 0, 5)
    assert summary["mean_turns"] == pytest.approx(12 / 5)
    assert summary["end_reasons"] == {"submitted": 3, "max_turns": 2}
    assert (summary["requests"], summary["prompt_tokens"], summary["completion_tokens"]) == (12, 600, 36)
    assert summary["cost"] == pytest.approx(12 * (30 * 2 + 20 * 0.5 + 3 * 10) / 1e6)
    assert summary["pass_at"] == {"1": pytest.approx(0.6)}
    last, resolved, *_, page = out.splitlines()[-4:]
    assert last.startswith("[5/5] ") and resolved.startswith("resolved 3 of 5: 60.0%")
    assert page == f"look at the report: python -m webbrowser {tmp_path}/out/report.html"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [".lock", "episodes", "predictions.jsonl", "report.html", "results.jsonl", "settings.json", "summary.json"]
    )


def test_without_prices_there_is_no_cost(evaluate, results):
    with serving(_even_right) as served:
        evaluate(served.url, "--slice", ":2")
    assert results()[1]["cost"] is None


def test_samples_of_an_instance_give_pass_at_k(evaluate, results):
    asked: dict[int, int] = {}

    def script(body: Body) -> object:
        if len(body["messages"]) > 2:
            return say("no idea")
        number = _number(body)
        asked[number] = asked.get(number, 0) + 1
        return say(right_answer(_prompt(body)) if asked[number] <= number else "no idea")

    with serving(script) as served:
        evaluate(served.url, "--slice", ":4", "--samples", "3")
    rows, summary = results()
    # 0, 1, 2 and 3 of three samples are right: pass@1 = ½, pass@2 = (0 + 2/3 + 1 + 1)/4, pass@3 = 3/4.
    assert summary["pass_at"] == {"1": pytest.approx(1 / 2), "2": pytest.approx(2 / 3), "3": pytest.approx(3 / 4)}
    assert summary["pass_at_instances"] == {"1": 4, "2": 4, "3": 4}
    assert [(row["instance_id"][-1], row["sample"]) for row in rows][:5] == [
        ("0", 0),
        ("1", 0),
        ("2", 0),
        ("3", 0),
        ("0", 1),
    ]
    assert rows[-1]["episode"] == "episodes/sum__add-03__2"


def test_server_failure_makes_an_episode_invalid_not_unresolved(evaluate, results):
    broken = True

    def script(body: Body) -> object:
        failing = _number(body) == 1 and len(body["messages"]) > 2
        return None if failing and broken else _even_right(body)

    with serving(script) as served:
        code, out, err = evaluate(served.url, "--slice", ":3", "--retries", "2")
        rows, summary = results()
        assert (code, err) == (1, "")
        assert [row["valid"] for row in rows] == [True, False, True]
        assert rows[1]["resolved"] is None and rows[1]["end_reason"] == "error"
        assert "no answer after 2 tries" in rows[1]["failure_reason"]
        assert (summary["resolved"], summary["valid"], summary["invalid"]) == (2, 2, 1)
        assert summary["resolve_rate"] == 1.0
        assert "1 invalid" in out
        # Once the server is well, only that one is played.
        broken, before = False, len(served.asked)
        code, _, _ = evaluate(served.url, "--slice", ":3", "--retries", "2", "--resume")
        assert {_number(body) for body in served.asked[before:]} == {1}
    rows, summary = results()
    assert code == 0 and [row["resolved"] for row in rows] == [True, False, True] and summary["invalid"] == 0


def test_unreachable_server_stops_the_evaluation_which_can_be_resumed(evaluate, results, tmp_path):
    up = 2
    down = threading.Event()

    def script(body: Body) -> object:
        return (500, "down") if down.is_set() or _number(body) >= up else _even_right(body)

    with serving(script) as served:
        code, _, err = evaluate(served.url, "--dataset", "40", "--retries", "1")
        assert code == 2 and err.count("\n") == 1
        assert "failed in 5 episodes in a row" in err and "500: down" in err and "--resume" in err
        assert not (tmp_path / "out" / "summary.json").exists()
        rows = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
        kept = {row["instance_id"] for row in rows if row["valid"]}
        up, before = 40, len(served.asked)
        assert evaluate(served.url, "--dataset", "40", "--retries", "1", "--resume")[0] == 0
        again = {_number(body) for body in served.asked[before:]}
    rows, _ = results()
    assert {f"sum__add-{number:02}" for number in again} == {row["instance_id"] for row in rows} - kept
    assert kept <= {"sum__add-00", "sum__add-01"} and len(rows) == 40 and all(row["valid"] for row in rows)


@pytest.mark.parametrize(("status", "named"), [(401, "--api-key-env"), (403, "key"), (404, "--base-url")])
def test_authentication_and_model_errors_stop_at_once(evaluate, tmp_path, status, named):
    with serving(lambda _: (status, {"error": {"message": "no\nway"}})) as served:
        code, _, err = evaluate(served.url)
        assert code == 2 and err.count("\n") == 1 and f"{status}: no way" in err and named in err
        assert len(served.asked) <= 2
        # Nothing was measured: the same command, once what it needs is there, needs no --resume.
    with serving(_even_right) as served:
        assert evaluate(served.url, "--slice", ":2")[0] == 0


def test_environment_failure_makes_an_episode_invalid(evaluate, results, tmp_path):
    with serving(_even_right) as served:
        code, _, _ = evaluate(served.url, "--slice", ":4", "--env.broken", "sum__add-02")
    rows, summary = results()
    assert code == 1 and summary["invalid"] == 1
    assert summary["failure_reasons"] == {"RuntimeError: the machine is on fire": 1}
    assert rows[2]["resolved"] is None and rows[2]["episode"] is None
    log = (tmp_path / "out" / "errors.log").read_text()
    assert log.count("Traceback (most recent call last)") == 1 and "in step" in log


def test_environment_that_cannot_be_made_makes_an_episode_invalid_that_took_no_time(evaluate, results):
    with serving(_even_right) as served:
        code, _, _ = evaluate(served.url, "--dataset", "3", "--max-invalid-fraction", "1", env=SCARCE)
    rows, summary = results()
    lost = [row for row in rows if not row["valid"]]
    assert code == 1 and lost and len(lost) < 3
    assert {row["failure_reason"] for row in lost} == {"RuntimeError: no sandbox is left"}
    assert max(row["seconds"] for row in lost) < 60 and summary["episode_seconds"] < 180


def test_environment_that_hangs_makes_an_episode_invalid_and_is_replaced(evaluate, results):
    with serving(_even_right) as served:
        code, _, err = evaluate(
            served.url, "--slice", ":6", "--env.hangs", "sum__add-02", "--step-timeout", "0.3", "--n-parallel", "1"
        )
    rows, summary = results()
    assert (code, err) == (1, "")
    assert summary["failure_reasons"] == {"the environment did not respond to step for 0.3 s": 1}
    assert [row["valid"] for row in rows] == [True, True, False, True, True, True]
    assert [row["resolved"] for row in rows] == [True, False, None, False, True, False]


def test_evaluation_stops_with_one_line_where_too_many_episodes_are_invalid(evaluate, results, tmp_path):
    with serving(_even_right) as served:
        code, _, err = evaluate(served.url, "--env.broken", "all")
        assert code == 2 and err.count("\n") == 1 and "Traceback (most" not in err
        assert "evaluation: 5 of 8 episodes are invalid, max_invalid_fraction allows 0.5 of them. 5 times: " in err
        assert f"RuntimeError: the machine is on fire. Tracebacks are in {tmp_path}/out/errors.log" in err
        assert (tmp_path / "out" / "errors.log").read_text().count("Traceback (most recent call last)") == 1
        code, out, err = evaluate(served.url, "--env.broken", "all", "--max-invalid-fraction", "1", "--resume")
        assert (code, err) == (1, "") and "8 invalid" in out
    assert results()[1]["invalid"] == 8


def test_context_overflow_ends_the_episode_and_counts(evaluate, results, tmp_path):
    def script(body: Body) -> object:
        if len(body["messages"]) > 2:
            return 400, {"error": {"code": "context_length_exceeded", "message": "maximum context length is 5 tokens"}}
        return say("no idea")

    with serving(script) as served:
        code, _, _ = evaluate(served.url, "--slice", ":1")
    (row,), _ = results()
    assert (code, row["end_reason"], row["valid"], row["resolved"]) == (0, "tokens", True, False)
    trajectory = json.loads((tmp_path / "out" / row["episode"] / "traj.json").read_text())
    assert [turn["action"] for turn in trajectory["turns"]] == ["no idea", ""]
    assert "maximum context length" in trajectory["turns"][1]["info"]["model"]["no_room"]


def test_environment_without_instances_is_played_by_seeds_and_limits(evaluate, results):
    def script(body: Body) -> object:
        return say("odd" if int(_prompt(body).split(":")[0]) % 2 else "even")

    limits = ("--episodes", "4", "--max-turns", "3", "--success-above", "2.5", "--samples", "2")
    with serving(script) as served:
        evaluate(served.url, *limits, env=NAMELESS)
        seeds = {_prompt(body) for body in served.asked}
    rows, summary = results()
    assert [row["return"] for row in rows] == [3.0] * 8 and [row["turns"] for row in rows] == [3] * 8
    assert summary["end_reasons"] == {"max_turns": 8} and summary["resolve_rate"] == 1.0
    assert len(seeds) == 4  # both samples of an episode begin alike


def test_time_limit_ends_an_episode(evaluate, results):
    def script(_: Body) -> object:
        time.sleep(0.15)
        return say("even")

    with serving(script) as served:
        evaluate(served.url, "--episodes", "1", "--time-limit", "0.4", env=NAMELESS)
    (row,), summary = results()
    assert row["end_reason"] == "time" and 1 <= row["turns"] <= 4 and row["resolved"] is None
    assert summary["resolve_rate"] is None and summary["mean_return"] is not None


def test_episode_that_a_limit_ends_before_the_environment_reports_is_not_resolved(evaluate, results):
    def script(body: Body) -> object:
        if _number(body):
            time.sleep(1.6)
            return say("no idea")
        return _even_right(body)

    with serving(script) as served:
        code, out, _ = evaluate(served.url, "--slice", ":3", "--time-limit", "1.5")
    rows, summary = results()
    assert code == 0 and [row["end_reason"] for row in rows] == ["submitted", "time", "time"]
    assert [row["resolved"] for row in rows] == [True, False, False]
    assert summary["resolve_rate"] == pytest.approx(1 / 3) and "resolved 1 of 3: 33.3%" in out


def test_failures_are_shown_whatever_their_text_is(evaluate, results):
    with serving(_even_right) as served:
        garbled = GUESS.replace("Guess", "Garbled")
        code, out, _ = evaluate(served.url, "--slice", ":2", "--max-invalid-fraction", "1", env=garbled)
    assert code == 1 and out.count(r"FileNotFoundError: caf\udce9.txt") == 3  # of both episodes, and the most frequent
    assert results()[1]["failure_reasons"] == {"FileNotFoundError: caf\udce9.txt": 2}


def test_verdicts_and_counts_may_be_of_numpy(evaluate, results):
    with serving(_even_right) as served:
        code, out, _ = evaluate(served.url, "--slice", ":3", "--json", env=GUESS.replace("Guess", "NumpyGuess"))
    rows, summary = results()
    assert code == 0 and [row["resolved"] for row in rows] == [True, False, True] and summary["resolved"] == 2
    assert [json.loads(line)["fail_to_pass"][1] for line in out.splitlines()[:3]] == [1, 1, 1]


def test_killed_evaluation_resumes_without_repeating_episodes(evaluate, results, tmp_path):
    reached, release = threading.Event(), threading.Event()

    def script(body: Body) -> object:
        if _number(body) == 5 and not release.is_set():
            reached.set()
            release.wait(30)
        return _even_right(body)

    with serving(script) as served:
        command = ["--model", "scripted", "--base-url", served.url, "--env", GUESS, "--dataset", "12"]
        command += ["--n-parallel", "1", "--output", str(tmp_path / "out")]
        code = f"from swe_trainers.cli.main import main_eval; raise SystemExit(main_eval({command!r}))"
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            assert reached.wait(60)
            deadline = time.monotonic() + 30  # the next episode begins before the last one is written
            while (tmp_path / "out" / "results.jsonl").read_bytes().count(b"\n") < 5:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        release.set()
        with (tmp_path / "out" / "results.jsonl").open("a") as file:
            file.write('{"instance_id": "sum__add-05", "sam')  # what a death in the middle of a line leaves
        code, _, err = evaluate(served.url, "--dataset", "12", "--n-parallel", "1")
        assert code == 2 and "holds an evaluation already. Try: --resume" in err
        before = len(served.asked)
        assert evaluate(served.url, "--dataset", "12", "--n-parallel", "3", "--resume")[0] == 0
        assert {_number(body) for body in served.asked[before:]} == set(range(5, 12))
        before = len(served.asked)
        assert evaluate(served.url, "--dataset", "12", "--resume")[0] == 0
        assert len(served.asked) == before
    rows, summary = results()
    assert [row["resolved"] for row in rows] == [True, False] * 6 and summary["resolved"] == 6
    assert not list((tmp_path / "out").rglob("*partial*"))


def test_ctrl_c_ends_the_evaluation_during_a_request(tmp_path):
    reached, release = threading.Event(), threading.Event()

    def script(body: Body) -> object:
        if _number(body) == 2:
            reached.set()
            release.wait(60)
        return _even_right(body)

    with serving(script) as served:
        command = ["--model", "scripted", "--base-url", served.url, "--env", GUESS, "--output", str(tmp_path / "out")]
        code = f"from swe_trainers.cli.main import main_eval; raise SystemExit(main_eval({command!r}))"
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            assert reached.wait(60)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
            release.set()
    assert (process.returncode, err) == (130, "swe-eval: interrupted; with --resume it goes on\n")
    assert (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (("--temperature", "0.5"), ("sampling", '"temperature": null', '"temperature": 0.5')),
        (("--slice", ":3"), ("select", '":2"', '":3"')),
        (("--samples", "2"), ("samples", "1", "2")),
        (("--model", "another"), ("model", '"scripted"', '"another"')),
        (("--env.broken", "x"), ("arguments", "{}", '"broken"')),
    ],
)
def test_resume_with_other_settings_is_rejected(evaluate, tmp_path, changed, named):
    with serving(_even_right) as served:
        evaluate(served.url, "--slice", ":2")
        kept = (tmp_path / "out" / "results.jsonl").read_bytes()
        code, _, err = evaluate(served.url, "--slice", ":2", *changed, "--resume")
    assert code == 2 and err.count("\n") == 1 and "Try: another --output" in err
    for name in named:
        assert name in err
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == kept


def test_execution_options_may_change_on_resume(evaluate):
    with serving(_even_right) as served, serving(_even_right) as moved:
        evaluate(served.url, "--slice", ":2")
        how = ("--requests-per-minute", "6000", "--timeout", "9", "--price-in", "1", "--price-out", "1")
        assert evaluate(moved.url, "--slice", ":2", "--resume", *how)[0] == 0


def test_json_output_has_one_object_per_episode(evaluate):
    with serving(_even_right) as served:
        code, out, _ = evaluate(served.url, "--slice", ":3", "--json")
    *rows, summary = map(json.loads, out.splitlines())
    assert code == 0 and {row["instance_id"] for row in rows} == {f"sum__add-0{n}" for n in range(3)}
    assert summary["resolved"] == 2


def test_api_key_is_sent_to_the_server_only(evaluate, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")

    def script(body: Body) -> object:
        return (400, {"error": "bad key sk-very-secret"}) if _number(body) == 1 else _even_right(body)

    with serving(script) as served:
        _, out, err = evaluate(served.url, "--slice", ":3", "--api-key-env", "MY_KEY", "--request.top_p", "0.5")
        assert all(headers["Authorization"] == "Bearer sk-very-secret" for headers in served.headers)
        assert all(body["top_p"] == 0.5 for body in served.asked)
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"bad key" in written and b"sk-very-secret" not in written and "sk-very-secret" not in out + err


@pytest.mark.parametrize("free_kib", [0, pytest.param(8, marks=pytest.mark.campaign), 40])
def test_full_disk_is_reported_and_files_are_complete(tmp_path, free_kib):
    disk = tmp_path / "disk"
    disk.mkdir()
    with serving(_even_right) as served:
        command = ["--model", "scripted", "--base-url", served.url, "--env", GUESS, "--output", str(disk / "out")]
        command += ["--dataset", "30", "--n-parallel", "2"]
        code = f"from swe_trainers.cli.main import main_eval; raise SystemExit(main_eval({command!r}))"
        whole = [*on_small_disk(disk, free_kib=free_kib), sys.executable, "-c", code]
        done = subprocess.run(whole, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"--output {disk}/out" in done.stderr and "No space left on device" in done.stderr
    left = left_on(disk)
    assert "out/summary.json" not in left and not [name for name in left if "partial" in name]
    for folder in {
        name.rpartition("/")[0] for name in left if name.startswith("out/episodes/") and name.count("/") == 3
    }:
        assert {f"{folder}/{name}" for name in ("traj.json", "patch.diff", "meta.json")} <= set(left)


def test_an_evaluation_that_is_replaced_leaves_no_file_behind(tmp_path: Path):
    from swe_trainers.evaluation.records import EvaluationFolder

    names = ("results.jsonl", "summary.json", "report.html", "errors.log", "predictions.jsonl", "predictions.1.jsonl")
    for name in (*names, "notes.md", "predictions.gold.jsonl"):
        (tmp_path / name).write_text("{}\n")
    with EvaluationFolder(tmp_path, {"samples": 1}, resume=False, replace=True):
        kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {".lock", "settings.json", "results.jsonl", "notes.md", "predictions.gold.jsonl"}
    assert (tmp_path / "results.jsonl").read_text() == ""


def test_results_folder_is_locked(evaluate, tmp_path):
    from swe_trainers.errors import ConfigurationError
    from swe_trainers.evaluation.records import EvaluationFolder

    with EvaluationFolder(tmp_path / "out", {"samples": 1}, resume=False), serving(_even_right) as served:
        code, _, err = evaluate(served.url)
        assert code == 2 and "another process is writing there" in err
        with pytest.raises(ConfigurationError), EvaluationFolder(tmp_path / "out", {"samples": 1}, resume=False):
            pass


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--env Nothing-v0", ("--env Nothing-v0", "Nothing")),
        ("--env nowhere:X-v0", ("--env nowhere:X-v0", "nowhere")),
        ("--env CartPole-v1", ("CartPole-v1 observes", "--adapter text")),
        ("--slice 3", ("--slice", "'3'", ":50")),
        ("--slice 50:", ("--slice 50:", "none of the 8")),
        ("--instance sum__add-0", ("sum__add-0", "did you mean sum__add-0")),
        ("--episodes 3", ("--episodes", "--slice")),
        ("--split test", ("--split", "has no such parameter")),
        ("--env.brokn x", ("brokn",)),
        ("--envv.x 1", ("--envv.x", "--env.KEY")),
        ("--temprature 0", ("--temprature: no such option. Did you mean '--temperature'?",)),
        ("--n_parallel 2", ("--n_parallel: no such option. Did you mean '--n-parallel'?",)),
        ("--select :3", ("--select: no such option. Try: --slice",)),
        ("--zzzzzzzzz", ("--zzzzzzzzz: no such option. Try: swe-eval --help",)),
        ("--env.dataset 3 --dataset 4", ("--env.dataset", "given twice")),
        ("--env.id Mini-v0", ("--env.id", "Try: --env ID")),
        ("--samples 0", ("--samples", "positive")),
        ("--temperature -1", ("--temperature", "0 or more")),
        ("--requests-per-minute 0", ("--requests-per-minute", "above 0")),
        ("--price-in 1", ("--price-in, --price-out", "one has no effect without the other")),
        ("--prices nowhere.yaml", ("--prices nowhere.yaml", "No such file")),
        ("--api-key-env NO_SUCH_KEY", ("--api-key-env", "NO_SUCH_KEY is not set")),
        ("--base-url localhost", ("--base-url", "'localhost'", "http://")),
        ("--dtype float32", ("--dtype", "has no effect on a server")),
        ("--output /proc/nowhere", ("--output /proc/nowhere", "cannot be written")),
    ],
)
def test_invalid_options_are_a_one_line_error_and_create_nothing(evaluate, tmp_path, arguments, named):
    code, out, err = evaluate("http://127.0.0.1:9/v1", "--no-preflight", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("swe-eval: ")
    for name in named:
        assert name in err
    assert os.listdir(tmp_path) == []


def test_server_options_are_rejected_for_a_folder(tmp_path, capsys):
    from swe_trainers.cli.main import main_eval

    for arguments, named in (
        (["--model", str(tmp_path), "--requests-per-minute", "5"], "without --base-url"),
        (["--model", str(tmp_path / "none")], "no such folder"),
        (["--model", str(tmp_path)], "not a model folder"),
    ):
        assert main_eval(arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and named in err
