"""Choosing among tasks: parts by digest, filters, seeds, slices; reading no more of a set than is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swegym_env.answers.vulnerability import VulnerabilityExample
from swegym_env.errors import ConfigurationError, TaskFormatError
from swegym_env.tasks.datasets import load_tasks, stream_tasks
from swegym_env.tasks.task import TaskSet
from tests.env.tasks.test_datasets import row, write_lines


def examples(count: int) -> TaskSet[VulnerabilityExample]:
    return TaskSet(VulnerabilityExample(f"x-{number}", "code", vulnerable=True) for number in range(count))


def test_parts_partition_a_set_and_do_not_depend_on_other_tasks() -> None:
    tasks = examples(2000)
    parts = {name: tasks.part(name) for name in ("train", "validation", "test")}
    assert sorted(instance for part in parts.values() for instance in part.ids) == sorted(tasks.ids)
    assert {name: round(len(part) / 2000, 1) for name, part in parts.items()} == {
        "train": 0.8,
        "validation": 0.1,
        "test": 0.1,
    }
    fewer = tasks[::3].shuffled(1).part("test")
    assert set(fewer.ids) == set(parts["test"].ids) & set(tasks[::3].ids)
    # The digest is part of the contract: who trained on a part must find it again. SHA-256 of "x-0" begins with ab61,
    # which is 0.6694 of ffff.
    assert "x-0" in tasks.part("high", {"low": 0.669, "high": 0.331}).ids
    assert "x-0" in tasks.part("low", {"low": 0.670, "high": 0.330}).ids


def test_fractions_of_custom_parts_must_add_up_to_one() -> None:
    tasks = examples(10)
    thirds = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    assert sum(len(tasks.part(name, thirds)) for name in thirds) == 10
    with pytest.raises(ConfigurationError, match=r"must add up to 1, got 0\.9"):
        tasks.part("a", {"a": 0.5, "b": 0.4})
    with pytest.raises(ConfigurationError, match="no part 'tset'; did you mean test"):
        tasks.part("tset")


def test_hash_split_selects_a_part(tmp_path: Path) -> None:
    rows = [row(instance_id=f"octo__hello-{number}", split="train" if number < 9 else "test") for number in range(40)]
    path = write_lines(tmp_path / "rows.jsonl", *rows)
    found = [load_tasks(path, split=f"hash:{name}").ids for name in ("train", "validation", "test")]
    assert sorted(sum(found, ())) == sorted(load_tasks(path).ids)
    assert len(load_tasks(path, split="train")) == 9  # a plain name is still the file's own


def test_filter_seed_and_slice_apply_in_this_order(tmp_path: Path) -> None:
    rows = [row(instance_id=f"octo__x-{number}", repo=f"octo/{'ab'[number % 2]}") for number in range(20)]
    path = write_lines(tmp_path / "rows.jsonl", *rows)
    chosen = load_tasks(path, where={"repo": "octo/a"}, seed=3, select=":4")
    assert len(chosen) == 4
    assert {task.repo for task in chosen} == {"octo/a"}
    assert chosen.ids == load_tasks(path, where={"repo": "octo/a"}, seed=3, select=":4").ids
    assert chosen.ids != load_tasks(path, where={"repo": "octo/a"}, seed=4, select=":4").ids
    assert load_tasks(path, where={"repo": "octo/?", "instance_id": "*-1?"}).ids == tuple(
        f"octo__x-{n}" for n in range(10, 20)
    )
    with pytest.raises(ConfigurationError, match="no text field 'rpeo' to filter by; did you mean repo"):
        load_tasks(path, where={"rpeo": "x"})


def test_only_the_rows_of_a_slice_are_read(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "rows.jsonl", row(instance_id="a"), "not json", row(instance_id="b"), row(instance_id="c")
    )
    assert load_tasks(path, select="0:1").ids == ("a",)
    chosen = load_tasks(path, select=":2", on_bad_row="skip")
    assert chosen.ids == ("a", "b")
    assert len(chosen.skipped) == 1
    with pytest.raises(TaskFormatError, match="row 2: expected JSON"):
        load_tasks(path, select="-1:", on_bad_row="raise")  # the end cannot be known without the rest


def test_tasks_are_streamed_one_by_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", row(instance_id="a"), "not json", row(instance_id="b"))
    stream = stream_tasks(path, on_bad_row="raise")
    assert next(stream).instance_id == "a"
    with pytest.raises(TaskFormatError, match="row 2"):
        next(stream)
    assert [task.instance_id for task in stream_tasks(path, on_bad_row="skip")] == ["a", "b"]


def test_official_image_is_used_if_it_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "rows.jsonl", row())
    monkeypatch.setenv("SWEGYM_REGISTRY_MIRROR", "127.0.0.1:9/hub")  # nothing listens there
    assert load_tasks(path, official_images="auto")[0].image == "host"
    assert load_tasks(path, official_images=True)[0].image.startswith("docker://swebench/")
    with pytest.raises(ConfigurationError, match="official_images: expected True, False or 'auto', got 'yes'"):
        load_tasks(path, official_images="yes")  # type: ignore[arg-type]


def test_repository_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([row(repository="clones/x")]))
    assert load_tasks(str(tmp_path / "rows.json"))[0].repository == str(tmp_path / "clones/x")
