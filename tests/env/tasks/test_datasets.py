"""Datasets by name: files, folders and the hub; errors of malformed rows; selection of tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.errors import ConfigurationError, TaskFormatError, UnknownTaskError
from swegym_env.tasks.adapters import task_from_row
from swegym_env.tasks.datasets import load_tasks, stream_tasks
from swegym_env.tasks.task import TaskSet, task_to_row

ROW: dict[str, Any] = {
    "repo": "octo/hello.py",
    "instance_id": "octo__hello-17",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "test_patch": "diff --git a/t.py b/t.py\n",
    "problem_statement": "x should be 2 — not 1",
    "hints_text": "",
    "created_at": "2021-10-13T11:35:29Z",
    "version": "0.6",
    "FAIL_TO_PASS": '["t.py::test_x"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": "67023b85c41d23d6c6d69812a41b207c4f8a9331",
    "image": "swebench/sweb.eval.x86_64.octo_1776_hello-17:latest",
    "eval_script": "#!/bin/bash\npytest t.py\n",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


def without(*columns: str) -> dict[str, Any]:
    return {column: value for column, value in ROW.items() if column not in columns}


def write_lines(path: Path, *rows: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows))
    return str(path)


def test_a_row_of_the_2026_release_loads_field_by_field() -> None:
    task = task_from_row(ROW)
    assert (task.instance_id, task.repo, task.version) == ("octo__hello-17", "octo/hello.py", "0.6")
    assert task.fail_to_pass == ("t.py::test_x",)
    assert task.pass_to_pass == ()
    assert task.image == "host"
    assert task.official_image == "docker://swebench/sweb.eval.x86_64.octo_1776_hello-17:latest"
    assert (task.eval_script, task.log_parser) == (ROW["eval_script"], "parse_log_pytest")


def test_optional_columns_may_be_null_or_absent() -> None:
    task = task_from_row(row(FAIL_TO_PASS=["a", "b"], PASS_TO_PASS=None, hints_text=None, version=None))
    assert (task.fail_to_pass, task.pass_to_pass, task.hints_text) == (("a", "b"), (), "")
    older = without("image", "eval_script", "log_parser", "eval_type", "hints_text", "created_at", "PASS_TO_PASS")
    assert task_from_row(older).eval_type == "pass_and_fail"


@pytest.mark.parametrize(
    ("given_image", "image", "official"),
    [
        ("host", "host", ""),
        ("swebench/x:latest", "host", "docker://swebench/x:latest"),
        ("docker://python:3.12", "docker://python:3.12", ""),
        ("/images/py312.sif", "/images/py312.sif", ""),
        ("task.def", "task.def", ""),
        (None, "host", ""),
    ],
)
def test_image_column_selects_image_and_official_image(given_image: str | None, image: str, official: str) -> None:
    task = task_from_row(row(image=given_image))
    assert (task.image, task.official_image) == (image, official)


BAD_FIELDS = [
    (row(base_commit="abc"), "base_commit", "40 hex digits, got 'abc'"),
    (row(base_commit=7), "base_commit", "got 7"),
    (without("base_commit"), "base_commit", "missing"),
    (row(repo="hello"), "repo", "'owner/name', got 'hello'"),
    (row(instance_id="a b"), "instance_id", "without blanks or slashes"),
    (row(instance_id="../x"), "instance_id", "without blanks or slashes"),
    (without("instance_id"), "instance_id", "missing"),
    (row(problem_statement="  "), "problem_statement", "the issue's text"),
    (row(patch=""), "patch", "a git diff"),
    (row(patch=None), "patch", "got None"),
    (row(test_patch=["x"]), "test_patch", "a git diff"),
    (row(FAIL_TO_PASS="[]"), "FAIL_TO_PASS", "non-empty list"),
    (row(FAIL_TO_PASS="test_x"), "FAIL_TO_PASS", "list of names"),
    (row(FAIL_TO_PASS='{"a": 1}'), "FAIL_TO_PASS", "list of names"),
    (row(PASS_TO_PASS=["a", 1]), "PASS_TO_PASS", "list of names"),
    (row(setup="pip install x"), "setup", "list of commands"),
    (row(version=3.0), "version", "a text, got 3.0"),
    (row(eval_type="fail"), "eval_type", "'pass_and_fail' or 'fail_only', got 'fail'"),
    (row(problem_statement="a\x00b"), "problem_statement", "NUL"),
    (row(problem_statement="\ud800"), "problem_statement", "lone surrogates"),
    (row(test_timeout_s=0), "test_timeout_s", "positive number"),
    (row(test_timeout_s=float("inf")), "test_timeout_s", "positive number"),
    (row(test_timeout_s=True), "test_timeout_s", "positive number"),
    (row(files={"../x": ""}), "files", "inside the repository"),
    (row(files={"/etc/passwd": ""}), "files", "inside the repository"),
    (row(files={".git/config": ""}), "files", "outside .git"),
    (row(files={"a.py": 1}), "files", "from path to text"),
    (row(files="{"), "files", "from path to text"),
]


@pytest.mark.parametrize(("bad", "column", "expected"), BAD_FIELDS)
def test_malformed_field_is_reported_with_row_and_instance(bad: dict[str, Any], column: str, expected: str) -> None:
    with pytest.raises(TaskFormatError) as caught:
        task_from_row(bad, where="FILE row 7")
    message = str(caught.value)
    assert message.startswith("FILE row 7")
    assert f"field '{column}': " in message
    assert expected in message
    assert "\n" not in message
    if column != "instance_id":
        assert "(instance octo__hello-17)" in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
COLUMNS = [*ROW, "files", "setup", "test_command", "test_timeout_s", "docker_image", "official_image", "unknown"]


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), JSON, max_size=4), st.sets(st.sampled_from(COLUMNS), max_size=2))
def test_any_row_loads_or_is_rejected_by_row_and_field(changes: dict[str, Any], dropped: set[str]) -> None:
    candidate = {column: value for column, value in {**ROW, **changes}.items() if column not in dropped}
    task, complaint = None, ""
    try:
        task = task_from_row(candidate, where="FILE row 3")
    except TaskFormatError as error:
        complaint = str(error)
    if task is None:
        assert complaint.startswith("FILE row 3")
        assert complaint.partition("field '")[2].partition("'")[0] in {*changes, *dropped}
    else:
        assert task_from_row(json.loads(json.dumps(task_to_row(task)))) == task
        "".join((task.patch, task.problem_statement, *task.fail_to_pass, *task.files)).encode()


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_value_that_is_not_a_row_is_rejected(value: Any) -> None:
    with pytest.raises(TaskFormatError, match=r"^FILE row 1\b"):
        task_from_row(value, where="FILE row 1")


def test_shipped_tasks_are_read_back_from_a_file(tmp_path: Path) -> None:
    tasks = load_tasks("mini", select="::20")
    path = write_lines(tmp_path / "mini.jsonl", *map(task_to_row, tasks))
    assert list(load_tasks(path)) == list(tasks)


def published_rows() -> list[dict[str, Any]]:
    """Real rows, from `$SWEGYM_TEST_DATA/swe-bench-lite-dev.jsonl` where that is set; else one of the same shape."""
    folder = os.environ.get("SWEGYM_TEST_DATA")
    if not folder:
        return [ROW]
    text = Path(folder, "swe-bench-lite-dev.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_rows_are_equal_from_jsonl_json_and_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="install `datasets`, which brings pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = published_rows()
    lines = write_lines(tmp_path / "rows.jsonl", *rows)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    tasks = list(load_tasks(lines))
    assert [task.instance_id for task in tasks] == [published["instance_id"] for published in rows]
    assert tasks == list(load_tasks(str(tmp_path / "rows.json"))) == list(load_tasks(str(tmp_path / "rows.parquet")))


def test_inline_repositories_are_equal_from_jsonl_and_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="install `datasets`, which brings pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    tasks = load_tasks("mini", select="::20")
    # A column of mappings has the keys of all rows, with null where a row lacks one.
    parquet.write_table(pyarrow.Table.from_pylist([task_to_row(task) for task in tasks]), tmp_path / "mini.parquet")
    assert list(load_tasks(str(tmp_path / "mini.parquet"))) == list(tasks)


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, "", row(instance_id="b", base_commit="abc"))
    with pytest.raises(TaskFormatError, match=r"rows\.jsonl row 3 \(instance b\): field 'base_commit'"):
        load_tasks(path, on_bad_row="raise")


def test_line_that_is_not_json_is_reported(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, '{"instance_id": ')
    with pytest.raises(TaskFormatError, match="row 2: expected JSON"):
        load_tasks(path, on_bad_row="raise")
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(TaskFormatError, match="row 1: expected JSON in UTF-8"):
        load_tasks(path, on_bad_row="raise")


def test_ids_must_be_unique(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, row(instance_id="b"), ROW)
    with pytest.raises(TaskFormatError, match=r"row 3 \(instance octo__hello-17\): field 'instance_id'.*row 1"):
        load_tasks(path, on_bad_row="raise")
    task = task_from_row(ROW)
    with pytest.raises(TaskFormatError, match="used twice"):
        TaskSet([task, task])


def test_skipped_rows_are_listed(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rows.jsonl", ROW, "nonsense", ROW, row(instance_id="b"), row(instance_id="c", patch="")
    )
    tasks = load_tasks(path, on_bad_row="skip")
    assert tasks.ids == ("octo__hello-17", "b")
    assert [message.partition("row ")[2][0] for message in tasks.skipped] == ["2", "3", "5"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_one_bad_row_is_named_in_one_warning_and_the_others_are_loaded(suffix: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="install `datasets`, which brings pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    # Multilingual's tokio-rs__axum-1730 lists no test that the repair makes pass.
    rows = [row(instance_id=name, FAIL_TO_PASS=["t"] * (name != "axum")) for name in ("a", "axum", "b")]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) if suffix == ".jsonl" else json.dumps(rows))
    for load in (load_tasks, lambda name: list(stream_tasks(name))):
        with pytest.warns(UserWarning, match=r"skipped 1 malformed row") as warned:
            tasks = load(str(path))
        assert [task.instance_id for task in tasks] == ["a", "b"]
        (message,) = [str(each.message) for each in warned]
        assert message.splitlines()[1].endswith(
            "row 2 (instance axum): field 'FAIL_TO_PASS': "
            "expected a non-empty list of names, or one written as JSON, got []"
        )


def test_a_row_without_a_repository_form_beside_others_is_skipped(tmp_path: Path) -> None:
    answer = json.dumps({"instance_id": "v", "code": "x = 1", "vulnerable": 0})
    path = write_lines(tmp_path / "rows.jsonl", answer, ROW)
    tasks = load_tasks(path, on_bad_row="skip")
    assert tasks.ids == ("octo__hello-17",)
    assert "row 1: v: vulnerability detection has nothing to run" in tasks.skipped[0]


def test_file_without_a_usable_row_is_rejected(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", row(patch=""))
    with pytest.raises(UnknownTaskError, match=r"no usable row; the first of 1: .*field 'patch'"):
        load_tasks(path, on_bad_row="skip")
    with pytest.raises(UnknownTaskError, match=r"no usable row$"):
        load_tasks(write_lines(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "error", "complaint"),
    [
        ("rows.json", b'{"a": 1}', TaskFormatError, "expected a list of rows, got dict"),
        ("rows.json", b"[", TaskFormatError, "expected JSON"),
        ("rows.json", b"[1]", UnknownTaskError, "no usable row; .* row 1: expected an object, got 1"),
        ("rows.parquet", b"not parquet", ConfigurationError, "not a parquet file"),
    ],
)
def test_file_with_other_content_is_rejected(
    name: str, content: bytes, error: type[Exception], complaint: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=complaint):
        load_tasks(str(tmp_path / name))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_missing_file_is_an_unknown_dataset(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownTaskError, match="there is no such file"):
        load_tasks(str(tmp_path / ("rows" + suffix)))


def test_a_missing_file_is_answered_with_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").touch()
    (tmp_path / "tasks.txt").touch()
    meant = r"; did you mean tasks\.jsonl\?"
    for name in ("tasks.json", "taks.jsonl", "tasks.parquet"):
        with pytest.raises(UnknownTaskError, match=f"there is no such file{meant}$"):
            load_tasks(str(tmp_path / name))
    for name in ("tasks", "tasks.csv"):
        with pytest.raises(UnknownTaskError, match=f"no dataset .*{meant}"):
            load_tasks(str(tmp_path / name))
    for name in ("other.json", "other/tasks.json"):
        with pytest.raises(UnknownTaskError, match=r"there is no such file$"):
            load_tasks(str(tmp_path / name))


def test_folder_with_the_name_of_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_tasks(str(tmp_path / "rows.jsonl"))


def test_folder_without_rows_is_rejected_before_its_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"instance_id": "a"}')
    (tmp_path / ".hidden").mkdir()
    write_lines(tmp_path / ".hidden" / "test.jsonl", ROW)
    for number in range(3):
        (tmp_path / f"notes-{number}.txt").write_text("a line\n")
    with pytest.raises(UnknownTaskError, match=r"no dataset in this folder: expected \.jsonl.* with rows below it$"):
        load_tasks(str(tmp_path))


def test_folder_with_very_many_files_is_rejected_before_they_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "below"
    folder.mkdir()
    write_lines(tmp_path / "test.jsonl", ROW)
    for number in range(10_000):
        (folder / f"{number}.txt").touch()
    with pytest.raises(UnknownTaskError, match=r"more than 10,000 files below it\. Try: one of its \.jsonl"):
        load_tasks(str(tmp_path))
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: test.jsonl\n---\n")
    assert load_tasks(str(tmp_path)).ids == (ROW["instance_id"],)


def test_an_empty_name_is_no_dataset_and_a_folder_below_the_home_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownTaskError, match=r"no dataset ''\. Expected one of mini"):
        load_tasks("")
    (tmp_path / "rows").mkdir()
    write_lines(tmp_path / "rows" / "test.jsonl", ROW)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_tasks("~/rows").ids == (ROW["instance_id"],)


def test_unknown_dataset_error_lists_the_known_ones() -> None:
    with pytest.raises(UnknownTaskError, match=r"'minni'; did you mean mini.*OWNER/NAME"):
        load_tasks("minni")


def test_splits_of_a_file_come_from_its_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", row(split="dev"), row(instance_id="b", split="test"))
    assert load_tasks(path, split="test").ids == ("b",)
    assert len(load_tasks(path)) == 2
    with pytest.raises(UnknownTaskError, match="no split 'train'; there are dev, test"):
        load_tasks(path, split="train")
    plain = write_lines(tmp_path / "plain.jsonl", ROW)
    with pytest.raises(UnknownTaskError, match="no field 'split'"):
        load_tasks(plain, split="test")


def test_official_images_are_used_on_request(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", ROW, row(instance_id="b", image=None))
    first, second = load_tasks(path, official_images=True)
    assert (first.image, second.image) == (f"docker://{ROW['image']}", "host")


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        (None, "abcde"),
        ("", "abcde"),
        ("1:3", "bc"),
        (":2", "ab"),
        ("-2:", "de"),
        ("::2", "ace"),
        ("9:", ""),
        ("3:1:-1", "dc"),
        (":2:-1", "ed"),
    ],
)
def test_select_takes_a_slice(select: str | None, chosen: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *(row(instance_id=name) for name in "abcde"))
    assert "".join(load_tasks(path, select=select).ids) == chosen


@pytest.mark.parametrize("select", ["3", "a:b", "1:2:0", "1:2:3:4"])
def test_invalid_slice_is_rejected(select: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a slice"):
        load_tasks("mini", select=select)


def test_on_bad_row_has_three_values() -> None:
    with pytest.raises(ConfigurationError, match="'raise', 'skip' or 'warn', got 'ignore'"):
        load_tasks("mini", on_bad_row="ignore")  # type: ignore[arg-type]


def test_task_set_is_indexed_by_position_and_id() -> None:
    tasks = TaskSet(
        [task_from_row(row(instance_id=name)) for name in ("octo__a-1", "octo__b-2", "cat__c-3")], name="demo"
    )
    assert tasks["octo__b-2"] is tasks[1]
    assert tasks[-1].instance_id == "cat__c-3"
    assert tasks[:2].ids == ("octo__a-1", "octo__b-2")
    assert "cat__c-3" in tasks
    assert tasks[0] in tasks
    assert "cat__c-4" not in tasks
    assert tasks.subset(["cat__c-3", "octo__a-1"]).ids == ("cat__c-3", "octo__a-1")
    with pytest.raises(UnknownTaskError, match=r"demo: no instance 'octo__a-2' among 3; did you mean octo__"):
        tasks["octo__a-2"]
    with pytest.raises(IndexError):
        tasks[3]


def test_shuffling_depends_on_the_seed_and_not_on_the_order() -> None:
    tasks = load_tasks("mini", split="train")
    shuffled = tasks.shuffled(7)
    assert sorted(shuffled.ids) == sorted(tasks.ids)
    assert shuffled.ids == tasks[::-1].shuffled(7).ids
    assert shuffled.ids != tasks.shuffled(8).ids != tasks.ids


def test_mini_edit_has_disjoint_splits() -> None:
    train, test = (
        load_tasks("mini-edit", split="train", select=":5"),
        load_tasks("mini-edit", split="test", select=":5"),
    )
    assert len(train) == len(test) == 5
    assert not set(train.ids) & set(test.ids)


def run_with_hub(code: str, home: Path) -> str:
    """What `code` prints in an interpreter whose hub is offline and whose cache is empty."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_unreachable_hub_is_reported_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    code = (
        "from swegym_env.tasks.datasets import load_tasks, stream_tasks\n"
        "from swegym_env.errors import ConfigurationError\n"
        "try: load_tasks('SWE-bench/SWE-bench_Lite')\n"
        "except ConfigurationError as error: print(error)\n"
    )
    lines = run_with_hub(code, tmp_path).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("SWE-bench/SWE-bench_Lite: the hub cannot be reached")
    assert "HF_HOME" in lines[0]


def test_a_folder_is_loaded_through_datasets(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    write_lines(folder / "train.jsonl", row(instance_id="a"))
    write_lines(folder / "test.jsonl", row(instance_id="b"), row(instance_id="c"))
    code = (
        "from swegym_env.tasks.datasets import load_tasks, stream_tasks\n"
        f"print(load_tasks({str(folder)!r}).ids, load_tasks({str(folder)!r}, split='train').ids)\n"
    )
    assert run_with_hub(code, tmp_path / "home").strip() == "('b', 'c') ('a',)"
