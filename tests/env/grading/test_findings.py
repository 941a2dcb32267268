"""What the first verdict on a task finds out is used by later verdicts, also on other machines."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.grading.findings import (
    find_findings,
    keep_findings,
    place_to_read,
    unused_findings,
    write_finding,
)
from swegym_env.grading.grading import grade
from swegym_env.languages.python.setup import TABLE_VARIABLE
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.sharing import open_shared_store, share_layer
from swegym_env.tasks.task import task_to_row
from tests.env.grading.points import REWRITE, TASK, noted_runs, patch_of

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None, reason="no mksquashfs: scripts/install_apptainer.sh"
)
_WRONG = REWRITE.replace("first + second", "first + second + 9")


def _shared(directory: Path) -> tuple[str, LayerStore]:
    """The address of a shared store with the findings of a machine that has graded the gold patch, and its store."""
    address, store = str(directory / "shared"), LayerStore(directory / "laboratory/layers")
    assert keep_findings(TASK, store) is None
    assert grade(TASK, TASK.patch, store=store, backend="namespace").resolved
    layer = keep_findings(TASK, store)
    assert layer is not None and keep_findings(TASK, store) == layer
    assert all(place.stat().st_mode & 0o77 == 0 for place in layer.iterdir())  # they contain expected values
    shared = open_shared_store(address)
    shared.create()
    assert share_layer(store, layer.name, shared)[1]
    return address, store


def test_another_machine_grades_as_if_it_had_graded_the_gold_patch(
    public_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, laboratory = _shared(public_tmp_path)
    node = LayerStore(public_tmp_path / "node/layers", shared=address)
    alone = LayerStore(public_tmp_path / "alone/layers", shared="")
    kinds = noted_runs(monkeypatch)
    runs = []
    for store in (laboratory, node, alone):
        verdict = grade(TASK, patch_of(REWRITE), store=store, backend="namespace")
        assert verdict.resolved and not grade(TASK, patch_of(_WRONG), store=store, backend="namespace").resolved
        runs.append([*kinds])
        kinds.clear()
    assert runs[0] == runs[1] == ["patch blind"] * 2
    assert len(runs[2]) > 8
    taken = find_findings(TASK, node)
    assert taken is not None and taken.is_relative_to(node.root)
    assert find_findings(TASK, alone) is None


def test_a_shared_store_that_does_not_answer_delays_a_verdict_and_no_more(
    public_tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LayerStore(public_tmp_path / "cut-off/layers", shared="http://127.0.0.1:9/layers")
    assert grade(TASK, TASK.patch, store=store, backend="namespace").resolved
    assert [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]


def test_layers_of_tasks_include_what_is_known_of_their_tests(
    public_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, shared = public_tmp_path / "rows.jsonl", str(public_tmp_path / "shared")
    rows.write_text(json.dumps(task_to_row(TASK)) + "\n")
    given = ("--for", str(rows), "--json")

    def moved(machine: str, action: str) -> list[tuple[str, str]]:
        monkeypatch.setenv("SWEGYM_WORKDIR", str(public_tmp_path / machine))
        assert main(["layers", action, shared, *given]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(layer["layer"].partition("-")[0], layer["status"]) for layer in found]

    monkeypatch.setenv("SWEGYM_WORKDIR", str(public_tmp_path / "laboratory"))
    assert grade(TASK, TASK.patch, backend="namespace").resolved
    assert moved("laboratory", "export") == [("findings", "sent")]
    assert moved("laboratory", "export") == [("findings", "present")]
    assert moved("node", "import") == [("findings", "taken")]


def test_what_was_found_out_with_another_set_up_is_not_used(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever corrects a table of set-ups may have graded with the wrong one before."""
    task = dataclasses.replace(TASK, repo="own/project", version="1", setup=(), files={})
    table = tmp_path / "table.yaml"
    monkeypatch.setenv(TABLE_VARIABLE, str(table))
    table.write_text("own/project: [{commands: [make], test_command: pytest}]\n")
    write_finding(task, store, "blind", "{}")
    assert place_to_read(task, store, "blind").exists()
    corrected = tmp_path / "corrected.yaml"
    corrected.write_text("own/project: [{commands: [make install], test_command: pytest}]\n")
    monkeypatch.setenv(TABLE_VARIABLE, str(corrected))
    assert not place_to_read(task, store, "blind").exists()
    monkeypatch.setenv(TABLE_VARIABLE, str(table))
    assert place_to_read(task, store, "blind").exists()


def test_what_was_not_used_for_long_is_removed_alone(store: LayerStore) -> None:
    used, unused = TASK, dataclasses.replace(TASK, instance_id="merged-points-2", problem_statement="another")
    for task in (used, unused):
        write_finding(task, store, "blind", "{}")
        place = place_to_read(task, store, "blind")
        for path in (place, place.parent):
            os.utime(path, (time.time() - 10 * 86400, time.time() - 10 * 86400))
    earlier = store.root.parent / "equality/merged-points.json"  # where earlier versions kept them
    earlier.parent.mkdir()
    earlier.write_text("{}")
    for path in (earlier, earlier.parent):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert place_to_read(used, store, "blind").read_text() == "{}"  # a use
    assert unused_findings(store, 11 * 86400) == unused_findings(store, 30 * 86400)
    found = unused_findings(store, 9 * 86400)
    assert [one.directory for one in found] == [earlier.parent, place_to_read(unused, store, "blind").parent]
    assert [one.size_bytes for one in found] == [2, 2]
    for one in (*found, *found):  # a second process may remove the same
        remove_tree(one.directory)
    assert not earlier.parent.exists() and not place_to_read(unused, store, "blind").exists()
    assert sorted(path.name for path in (store.root.parent / "findings").iterdir()) == [
        place_to_read(used, store, "blind").parent.name
    ]
