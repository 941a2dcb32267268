"""A dataset is set up once: other machines take its layers, without clones or network, and grade alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swegym_env.languages.python.interpreters import shared_interpreter
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import start_sandbox
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of
from swegym_env.sandbox.sharing import open_shared_store, share_layer
from swegym_env.tasks.datasets import load_tasks
from tests.env.calc import FILES, GOLD, TEST_PATCH
from tests.env.sandbox.layer_servers import serving_static
from tests.programs import ROOT, run_to_end

pytestmark = pytest.mark.skipif(
    shutil.which("mksquashfs") is None, reason="no mksquashfs: scripts/install_apptainer.sh"
)
TABLE = """
some/calc:
- versions: ['1.0']
  build_tools: []
  commands:
  - echo /testbed > "$(python -c 'import site; print(site.getsitepackages()[0])')/calc.pth"
  - cat /proc/uptime > /opt/testbed/when
  test_command: python -m unittest -v
"""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Rows of two commits of one version, and a folder of clones beside them."""
    clone = tmp_path / "clones/some+calc"
    for path, text in FILES.items():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(text)
    git = ["git", "-C", str(clone), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    rows = []
    for number in range(2):
        (clone / "notes").write_text(f"{number}\n")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", str(number)], check=True)
        listed = subprocess.run([*git, "rev-list", "HEAD"], check=True, capture_output=True, text=True)
        commits = listed.stdout.split()
        row = {"instance_id": f"some__calc-{number}", "repo": "some/calc", "base_commit": commits[0], "version": "1.0"}
        tests = {"FAIL_TO_PASS": ["tests.test_add.AddTest.test_add"], "PASS_TO_PASS": []}
        row |= {"problem_statement": "add subtracts", "patch": GOLD, "test_patch": TEST_PATCH}
        rows.append({**row, **tests, "environment_setup_commit": commits[-1], "log_parser": "unittest"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "table.yaml").write_text(TABLE)
    return tmp_path / "rows.jsonl"


def swegym(machine: Path, dataset: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `swegym` on a machine whose store is in `machine`."""
    here = {"SWEGYM_WORKDIR": str(machine), "SWEGYM_SETUP_COMMANDS": str(dataset.parent / "table.yaml")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GIT_TERMINAL_PROMPT": "0", **here, **variables}
    return run_to_end([sys.executable, "-m", "swegym_env", *arguments], environment, timeout_s=300)


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_layers_are_listed_by_kind_and_removed_when_unused_for_long(dataset: Path, store: LayerStore) -> None:
    def add(name: str) -> Path:
        def build(layer: Path) -> None:
            (layer / "file").write_text("x" * 10_000)
            os.utime(layer / "file", (1_000_000_000, 1_000_000_000))

        return store.get_or_build(("repository", name), build)

    old, new = add("old"), add("new")
    known = store.root.parent / "findings/of-an-old-task/blind.json"
    known.parent.mkdir(parents=True)
    known.write_text("{}")
    for path in (store.root / ".uses" / old.name, known, known.parent):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    here = store.root.parent, dataset, "layers"
    listed = objects(swegym(*here, "list", "--json"))
    assert [layer["layer"] for layer in listed] == [old.name, new.name]
    assert {layer["kind"] for layer in listed} == {"repository"}
    assert int(str(listed[0]["size_bytes"])) > int(str(listed[1]["size_bytes"])) > 0  # they share the file
    shown = swegym(*here, "list").stdout
    assert shown.split()[:3] == ["repository", "2", "0.00"] and shown.endswith(f"in {store.root}\n")

    for days in ("1", "nan"):
        refused = swegym(*here, "prune", "--unused-for", days)
        assert refused.returncode == 2 and f"--unused-for: expected at least 2, got {days}" in refused.stderr
    for more, is_there in (("--dry-run", True), ("--json", False)):
        done = swegym(*here, "prune", "--unused-for", "30", more)
        assert done.returncode == 0 and old.is_dir() is known.exists() is is_there
    assert [one.get("layer", one.get("findings")) for one in objects(done)] == [old.name, "of-an-old-task"]
    assert (new / "file").read_text() == "x" * 10_000


def test_a_machine_with_an_empty_store_and_no_clones_grades_what_another_one_set_up(
    dataset: Path, public_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laboratory, node, late = (public_tmp_path / name for name in ("laboratory", "node", "late"))
    shared, clones = dataset.parent / "shared", str(dataset.parent / "clones")
    sent = objects(
        swegym(laboratory, dataset, "layers", "export", str(shared), "--for", str(dataset), "--repos", clones, "--json")
    )
    kinds = sorted(str(layer["layer"]).partition("-")[0] for layer in sent)
    assert kinds == ["environment", "installation", "installation", "repository", "repository"]
    assert {layer["status"] for layer in sent} == {"sent"}
    again = objects(swegym(laboratory, dataset, "layers", "export", str(shared), "--json"))
    assert {layer["status"] for layer in again if layer["layer"] in {one["layer"] for one in sent}} == {"present"}

    taken = objects(swegym(node, dataset, "layers", "import", str(shared), "--json"))
    assert {layer["layer"] for layer in taken} >= {layer["layer"] for layer in sent}
    assert {layer["status"] for layer in taken} == {"taken"}
    verdicts = objects(swegym(node, dataset, "grade", "--dataset", str(dataset), "--patch", "gold", "--json"))
    assert [(verdict["resolved"], verdict["valid"]) for verdict in verdicts] == [(True, True)] * 2
    empty = objects(swegym(node, dataset, "grade", "--dataset", str(dataset), "--patch", "empty", "--json"))
    assert [(verdict["resolved"], verdict["valid"]) for verdict in empty] == [(False, True)] * 2

    monkeypatch.setenv("SWEGYM_SETUP_COMMANDS", str(dataset.parent / "table.yaml"))
    (task, _) = load_tasks(str(dataset))
    seen = []
    for machine in (laboratory, node):
        space = prepare_locally(task, store=LayerStore(machine / "layers"))
        sandbox = start_sandbox(space.spec)
        seen.append(sandbox.run("cat /opt/testbed/when; git status --short; cat notes").output)
        sandbox.close()
    assert seen[0] == seen[1] and seen[0].endswith("\n0\n")  # set up once: each set-up has another time

    # On demand, from a server, and nothing is built where that is asked for.
    with serving_static(shared) as address:
        built = ("images", "build", "--for", str(dataset), "--layers", address, "--json")
        assert [row["error"] for row in objects(swegym(late, dataset, *built))] == ["", ""]
        when = f"layers/{space.spec.layers[0].name}/opt/testbed/when"
        assert (late / when).read_text() == (laboratory / when).read_text()
    row = json.loads(dataset.read_text().splitlines()[0])
    (shared / "layers").joinpath(f"{space.spec.layers[-1].name}.json").unlink()
    one = dataset.with_name("one.jsonl")
    one.write_text(json.dumps(row) + "\n")
    refused = swegym(public_tmp_path / "fourth", dataset, "layers", "import", str(shared), "--for", str(one))
    assert refused.returncode == 2 and f"{space.spec.layers[-1].name} is not in {shared}" in refused.stderr


def test_options_without_an_effect_and_empty_stores_are_errors(dataset: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("layers", "export", str(tmp_path / "x")), "no layers that travel under"),
        (("layers", "pull", str(tmp_path / "none")), "no such folder"),
        (("layers", "import", str(tmp_path)), "no layers at"),
        (("layers", "import", str(tmp_path), "setup-1"), "setup-1 is not in"),
        (
            ("layers", "export", str(tmp_path), "--repos", str(tmp_path)),
            "--repos has an effect with --for DATASET only",
        ),
        (("images", "build", "a.def", "--layers", "x"), "--layers has an effect with --for DATASET only"),
        (("layers", "push", "ftp://x/y"), "expected the address of a store of layers"),
    ):
        done = swegym(tmp_path / "machine", dataset, *arguments)
        assert done.returncode == 2 and message in done.stderr.splitlines()[-1]


def test_the_interpreter_of_taken_environments_is_preferred(store: LayerStore, tmp_path: Path) -> None:
    shared = open_shared_store(str(tmp_path / "shared"))
    shared.create()
    for version in ("3.9.7", "3.9.18", "3.10.2"):
        key = ("interpreter", version, f"/home/lab/python-{version}")
        layer = store.get_or_build(key, lambda layer: (layer / "x").touch(), Provenance(requires=system_of("host")))
        share_layer(store, layer.name, shared)
    assert shared_interpreter("3.9", store) is None  # its own, made from what this machine has
    found = shared_interpreter("3.9", LayerStore(store.root.parent / "node", shared=str(tmp_path / "shared")))
    assert found is not None
    assert (found.version, str(found.executable)) == ("3.9.18", "/home/lab/python-3.9.18/bin/python3.9")
    assert shared_interpreter("3.1", LayerStore(store.root.parent / "node", shared=str(tmp_path / "shared"))) is None
