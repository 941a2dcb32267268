"""What the first verdict on a task finds out is used by later verdicts, also on other machines."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.grading.findings import find_findings, keep_findings, place_to_read, write_finding
from swegym_env.grading.grading import grade
from swegym_env.languages.python.setup import TABLE_VARIABLE
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.sharing import open_shared_store, share_layer
from swegym_env.tasks.task import task_to_row
from tests.env.grading.test_merged import _REWRITE, _TASK, _noted, _patch

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None, reason="no mksquashfs: scripts/install_apptainer.sh"
)
_WRONG = _REWRITE.replace("first + second", "first + second + 9")


def _shared(directory: Path) -> tuple[str, LayerStore]:
    """The address of a shared store with the findings of a machine that has graded the gold patch, and its store."""
    address, store = str(directory / "shared"), LayerStore(directory / "laboratory/layers")
    assert keep_findings(_TASK, store) is None
    assert grade(_TASK, _TASK.patch, store=store, backend="namespace").resolved
    layer = keep_findings(_TASK, store)
    assert layer is not None and keep_findings(_TASK, store) == layer
    assert all(place.stat().st_mode & 0o77 == 0 for place in layer.iterdir())  # they contain expected values
    shared = open_shared_store(address)
    shared.create()
    assert share_layer(store, layer.name, shared)[1]
    return address, store


def test_another_machine_grades_as_if_it_had_graded_the_gold_patch(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, laboratory = _shared(public_directory)
    node = LayerStore(public_directory / "node/layers", shared=address)
    alone = LayerStore(public_directory / "alone/layers", shared="")
    kinds = _noted(monkeypatch)
    runs = []
    for store in (laboratory, node, alone):
        verdict = grade(_TASK, _patch(_REWRITE), store=store, backend="namespace")
        assert verdict.resolved and not grade(_TASK, _patch(_WRONG), store=store, backend="namespace").resolved
        runs.append([*kinds])
        kinds.clear()
    assert runs[0] == runs[1] == ["patch blind"] * 2
    assert len(runs[2]) > 8
    taken = find_findings(_TASK, node)
    assert taken is not None and taken.is_relative_to(node.root)
    assert find_findings(_TASK, alone) is None


def test_a_shared_store_that_does_not_answer_delays_a_verdict_and_no_more(
    public_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LayerStore(public_directory / "cut-off/layers", shared="http://127.0.0.1:9/layers")
    assert grade(_TASK, _TASK.patch, store=store, backend="namespace").resolved
    assert [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]


def test_layers_of_tasks_include_what_is_known_of_their_tests(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    public_directory /= "by-command"
    public_directory.mkdir(mode=0o755)
    rows, shared = public_directory / "rows.jsonl", str(public_directory / "shared")
    rows.write_text(json.dumps(task_to_row(_TASK)) + "\n")
    given = ("--for", str(rows), "--json")

    def moved(machine: str, action: str) -> list[tuple[str, str]]:
        monkeypatch.setenv("SWEGYM_WORKDIR", str(public_directory / machine))
        assert main(["layers", action, shared, *given]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(layer["layer"].partition("-")[0], layer["status"]) for layer in found]

    monkeypatch.setenv("SWEGYM_WORKDIR", str(public_directory / "laboratory"))
    assert grade(_TASK, _TASK.patch, backend="namespace").resolved
    assert moved("laboratory", "export") == [("findings", "sent")]
    assert moved("laboratory", "export") == [("findings", "present")]
    assert moved("node", "import") == [("findings", "taken")]


def test_what_was_found_out_with_another_set_up_is_not_used(
    store: LayerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever corrects a table of set-ups may have graded with the wrong one before."""
    task = dataclasses.replace(_TASK, repo="own/project", version="1", setup=(), files={})
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
