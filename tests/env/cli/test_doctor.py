"""The findings of the doctor agree with what works on this machine."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.cli.doctor import Finding, can_run, diagnose, render
from swegym_env.cli.main import main
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.layers import LayerStore, Provenance
from tests.places import public_directory


@pytest.fixture
def public() -> Iterator[Path]:
    with public_directory("run") as directory:
        yield directory


def test_findings_agree_with_sandboxes_images_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    with public_directory("doctor") as work:
        for name in ("image-one", "image-two"):
            (work / "images" / name).mkdir(parents=True)
        monkeypatch.setenv("SWEGYM_WORKDIR", str(work))
        monkeypatch.setenv("SWEGYM_IMAGE_BUDGET", "5G")
        monkeypatch.delenv("SWEGYM_REGISTRY_MIRROR", raising=False)
        monkeypatch.delenv("APPTAINER_CACHEDIR", raising=False)
        findings = {finding.name: finding for finding in diagnose()}
    assert findings["images"] == Finding("images", True, f"2 in {work}/images, 0.0 GiB, SWEGYM_IMAGE_BUDGET=5G")
    assert findings["work directory"].ok and findings["work directory"].detail.startswith(f"{work}, ")
    assert can_run(list(findings.values())) == any(
        not make_backend(name).problem(fresh=True) for name in LOCAL_BACKENDS
    )
    for backend in LOCAL_BACKENDS:
        assert findings[f"{backend} sandboxes"].ok == (make_backend(backend).problem(fresh=True) == "")
    # Namespace sandboxes need these three, and Apptainer's none that these would lack.
    needed = [findings[name].ok for name in ("user namespaces", "overlay", "network isolation")]
    assert all(needed) or not findings["namespace sandboxes"].ok
    assert findings["git"].detail.startswith("git version")
    assert all(finding.ok != bool(finding.remedy) for finding in findings.values())


def test_findings_on_the_kernel_agree_with_what_a_sandbox_has(monkeypatch: pytest.MonkeyPatch, public: Path) -> None:
    kernel = ("CPU shares", "system call filter", "masked /proc", "shared memory", "cgroup namespace", "user charges")
    findings = {finding.name: finding for finding in diagnose()}
    if not can_run(list(findings.values())):
        pytest.skip("no sandbox can be started here")
    assert {name for name in ("system call filter", "masked /proc", "shared memory") if not findings[name].ok} == set()
    assert {*kernel, "time namespace"} <= findings.keys()
    assert "seccomp.json" in findings["system call filter"].detail
    assert findings["cgroup namespace"].ok == Path("/proc/self/ns/cgroup").exists()
    monkeypatch.setenv("SWEGYM_WITHOUT", "seccomp,cgroups")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(public))  # another supervisor
    without = {finding.name: finding for finding in diagnose()}
    assert not without["system call filter"].ok and "mode 0" in without["system call filter"].detail
    assert "CONFIG_SECCOMP_FILTER" in without["system call filter"].remedy and without["masked /proc"].ok


def test_missing_tools_and_directories_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SWEGYM_WORKDIR", str(blocked / "work"))
    monkeypatch.setenv("SWEGYM_RUNDIR", str(blocked / "run"))
    findings = {finding.name: finding for finding in diagnose()}
    assert not any(
        findings[name].ok
        for name in ("git", "apptainer", "work directory", "run directory", "user namespaces", "overlay")
    )
    assert "install_apptainer.sh" in findings["apptainer"].remedy
    assert findings["images"].detail == "fails with: work directory" and not findings["images"].remedy
    assert findings["overlay"].detail == "fails with: work directory"
    assert main(["doctor", "--json"]) == 1, "a script learns from the exit code that nothing can run"
    assert not can_run([finding for name, finding in findings.items() if name != "git"])
    text = render(list(findings.values()))
    assert "--  git" in text and "without it: repositories cannot be read" in text


def test_one_cause_is_reported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("SWEGYM_WORKDIR", str(blocked / "work"))
    findings = {finding.name: finding for finding in diagnose()}
    assert findings["work directory"].remedy
    alike = [finding for finding in findings.values() if finding.detail == "fails with: work directory"]
    assert {"images", "namespace sandboxes", "masked /proc", "time namespace"} <= {one.name for one in alike}
    assert not any(one.ok or one.remedy for one in alike)


def test_table_has_one_line_per_finding_and_remedies_below() -> None:
    assert render([Finding("a", True, "yes"), Finding("bcd", False, "no", "do this")]) == (
        "ok  a    yes\n--  bcd  no\n         without it: do this"
    )


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("overlay", {"overlay"}),
        ("cgroups", {"cgroups", "CPU shares"}),
        ("users", {"user ids"}),
        ("tmpfs", {"writable layers"}),
    ],
)
def test_what_is_switched_off_is_not_reported_as_working(
    monkeypatch: pytest.MonkeyPatch, public: Path, word: str, names: set[str]
) -> None:
    monkeypatch.setenv("SWEGYM_WITHOUT", word)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(public))
    off = {finding.name for finding in diagnose() if finding.detail == f"switched off by SWEGYM_WITHOUT={word}"}
    assert off == names


@pytest.mark.skipif(shutil.which("apptainer") is None, reason="no Apptainer: scripts/install_apptainer.sh")
def test_how_apptainer_starts_sandboxes_and_what_it_costs_is_reported(
    monkeypatch: pytest.MonkeyPatch, public: Path
) -> None:
    found = {}
    for word in ("", "container"):
        monkeypatch.setenv("SWEGYM_WITHOUT", word)
        monkeypatch.setenv("SWEGYM_RUNDIR", str(public / f"run-{word}"))
        (found[word],) = (finding for finding in diagnose() if finding.name == "apptainer sandboxes")
    cost = r"closed in \d+ ms, the first one in \d+ ms; "
    assert re.search(cost + "one container an image stays up$", found[""].detail)
    assert re.search(
        cost + r"one `apptainer exec` a sandbox \(switched off by .*=container\)$", found["container"].detail
    )


def test_rows_that_can_be_set_up_are_counted_by_repository_and_toolchain(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    table = tmp_path / "table.yaml"
    table.write_text(
        f"a/has: [{{python: '{own}', commands: ['true']}}]\na/lacks: [{{python: '3.1', commands: ['true']}}]\n"
    )
    monkeypatch.setenv("SWEGYM_SETUP_COMMANDS", str(table))
    diff = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n"
    row = {"base_commit": "0" * 40, "problem_statement": "p", "patch": diff, "test_patch": diff, "version": "1.0"}
    row |= {"FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [], "eval_script": "true"}
    rows = [
        {**row, "instance_id": f"x-{n}", "repo": repo} for n, repo in enumerate(["a/has", "a/has", "a/lacks", "b/c"])
    ]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "FAIL_TO_PASS": []}])
    )
    assert main(["doctor", "--dataset", str(tmp_path / "rows.jsonl"), "--json"]) == 1
    found = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["a/has"]["ok"] and found["a/has"]["detail"].startswith(f"2 rows: Python {own}.")
    assert {name: line["instances"] for name, line in found.items()} == {
        "a/has": ["x-0", "x-1"],
        "a/lacks": ["x-2"],
        "b/c": ["x-3"],
    }
    assert not found["a/lacks"]["ok"] and found["a/lacks"]["detail"].startswith("1 row: no Python 3.1 on this machine")
    assert (
        found["b/c"]["detail"] == "1 row: no set-up for b/c 1.0" and "SWEGYM_SETUP_COMMANDS" in found["b/c"]["remedy"]
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    monkeypatch.setenv("SWEGYM_WORKDIR", str(public / "work"))
    assert main(["doctor", "--dataset", str(tmp_path / "rows.jsonl")]) == 0
    assert re.search(r"ok  a/has  2 rows: Python [\d.]+$", capsys.readouterr().out, re.MULTILINE)
    # As `build_setup` stores the layer of a row.
    LayerStore().get_or_build(("installation", "environment-0", "0" * 40), lambda layer: None, Provenance())
    assert main(["doctor", "--dataset", str(tmp_path / "rows.jsonl")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"ok  a/has  2 rows: Python [\d.]+; 2 are set up$", shown, re.MULTILINE)
    assert shown.endswith("\n2 of 2 rows can be set up here, 2 are set up already\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["doctor", "--dataset", str(tmp_path / "rows.jsonl")]) == 1
    assert capsys.readouterr().out.endswith("\n2 of 4 rows can be set up here, 3 are set up already\n")
