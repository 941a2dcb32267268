"""Exported files are readable by other tools and are written atomically."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swegym_env.cli.export import EXPORTED
from swegym_env.cli.grade import read_predictions
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError
from swegym_env.tasks.datasets import load_tasks
from tests.env.tasks.test_datasets import row, write_lines


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    rows = [row(instance_id=f"octo__x-{number}", image=f"hub/x:{number % 2}") for number in range(3)]
    return write_lines(tmp_path / "rows.jsonl", *rows)


def test_export_writes_four_files(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main(["export", dataset, "--output", str(output), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lines"] == {
        "instance_ids.txt": 3,
        "docker_images.txt": 2,
        "evaluation.jsonl": 3,
        "predictions.jsonl": 3,
    }
    assert sorted(path.name for path in output.iterdir()) == sorted(EXPORTED)
    assert (output / "instance_ids.txt").read_text().split() == ["octo__x-0", "octo__x-1", "octo__x-2"]
    assert (output / "docker_images.txt").read_text() == "hub/x:0\nhub/x:1\n"
    again = load_tasks(str(output / "evaluation.jsonl"))
    assert list(again) == list(load_tasks(dataset))
    assert read_predictions(output / "predictions.jsonl") == {task.instance_id: task.patch for task in again}
    first = json.loads((output / "evaluation.jsonl").read_text().splitlines()[0])
    assert json.loads(first["FAIL_TO_PASS"]) == ["t.py::test_x"]  # JSON texts, as the harness has them
    prediction = json.loads((output / "predictions.jsonl").read_text().splitlines()[0])
    assert prediction.keys() == {"instance_id", "model_name_or_path", "model_patch"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_predictions_of_any_text_are_read_from_lines_of_json(tmp_path: Path, end: str) -> None:
    place = tmp_path / "predictions.jsonl"
    given = {f"i{number}": f"+a{mark}b\n" for number, mark in enumerate("\u2028\u2029\x85\x0b\x0c\x1c\r\n")}
    lines = [json.dumps({"instance_id": name, "model_patch": text}, ensure_ascii=False) for name, text in given.items()]
    place.write_bytes(("\ufeff" + end.join([*lines, ""])).encode())
    assert read_predictions(place) == given
    place.write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="not JSON"):
        read_predictions(place)
    place.write_text('{"instance_id": "a"}\n')
    with pytest.raises(ConfigurationError, match=r"line 1 \(a\): field 'model_patch': expected text, got nothing"):
        read_predictions(place)


def test_a_selection_of_no_task_is_named(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["tasks"], ["grade", "--predictions", "gold"], ["certify"]):
        assert main([*command, "--dataset", dataset, "--where", "repo=nobody/*"]) == 0
        assert capsys.readouterr().err == f"swegym: no task of {dataset} is selected\n"


def test_existing_files_are_kept_without_force(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "predictions.jsonl").write_text("mine\n")
    assert main(["export", dataset, "--output", str(tmp_path)]) == 2
    assert "predictions.jsonl exists already. Try: --force" in capsys.readouterr().err
    assert (tmp_path / "predictions.jsonl").read_text() == "mine\n"
    assert not (tmp_path / "instance_ids.txt").exists()
    assert main(["export", dataset, "--output", str(tmp_path), "--force", "--predictions", "empty"]) == 0
    assert set(read_predictions(tmp_path / "predictions.jsonl").values()) == {""}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "repo"], "--where: expected FIELD=PATTERN such as repo='django/*', got 'repo'"),
        (["--where", "colour=red"], "no text field 'colour' to filter by"),
        (["--split", "hash:dev"], "no part 'dev'"),
        (["--select", "5"], "select: expected a slice"),
    ],
)
def test_invalid_export_options_are_reported_in_one_line(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["export", dataset, "--output", str(tmp_path / "out"), *options]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_skipped_bad_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "rows.jsonl", row(), row(patch=3, instance_id="octo__bad-1"))
    assert main(["export", path, "--output", str(tmp_path / "out"), "--strict-rows"]) == 2
    assert "row 2 (instance octo__bad-1): field 'patch'" in capsys.readouterr().err
    assert main(["export", path, "--output", str(tmp_path / "out")]) == 0
    assert "skipped 1 malformed row (--strict-rows stops at them):" in capsys.readouterr().err
    assert (tmp_path / "out" / "instance_ids.txt").read_text() == "octo__hello-17\n"


def test_dataset_without_repository_form_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "vulnerabilities-mini", "--output", str(tmp_path / "out")]) == 2
    assert "VulnerabilityDetection-v0" in capsys.readouterr().err


def test_build_for_a_dataset_prepares_every_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [
        json.loads(json.dumps({**row(instance_id=f"octo__x-{n}"), "files": {"x.py": f"x = {n}\n"}})) for n in range(2)
    ]
    for entry in good:
        entry |= {
            "base_commit": "",
            "image": "host",
            "version": "",
            "eval_script": "",
            "test_command": "python3 -m unittest",
        }
    lost = row(instance_id="octo__lost-1", image="host", setup=["true"])
    path = write_lines(tmp_path / "rows.jsonl", *good, lost)
    empty = tmp_path / "clones"
    empty.mkdir()
    options = ["images", "build", "--for", path, "--repos", str(empty), "-j", "2", "--json"]
    assert main(options) == 2
    captured = capsys.readouterr()
    results = {entry["instance_id"]: entry for entry in map(json.loads, captured.out.splitlines())}
    assert [results[f"octo__x-{n}"]["error"] for n in range(2)] == ["", ""]
    assert "no clone of octo/hello.py" in results["octo__lost-1"]["error"]
    assert "1 of 3 tasks cannot be set up; the first:" in captured.err
    assert main([*options, "--where", "instance_id=octo__x-*"]) == 0
    assert main(["images", "build"]) == 2
    assert "expected either files or --for DATASET" in capsys.readouterr().err
