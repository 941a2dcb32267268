"""The registry of back ends: how one is chosen, how one is added, and the errors where none works."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.cli.main import main
from swegym_env.errors import BackendUnavailableError, ImageError, SandboxError
from swegym_env.sandbox import SandboxSpec, backends, local, open_sandbox
from swegym_env.sandbox.namespace import NamespaceBackend


@pytest.fixture(autouse=True)
def no_known_problems() -> Iterator[None]:
    local._known.clear()
    yield
    local._known.clear()


def test_auto_is_the_first_backend_of_the_registry_that_works(verdicts: dict[str, str]) -> None:
    expected = next((name for name in backends.LOCAL_BACKENDS if not verdicts[name]), None)
    assert expected is not None, f"no back end works here: {verdicts}"
    assert open_sandbox(SandboxSpec()).backend == expected


def test_an_unknown_name_lists_the_known_ones() -> None:
    known = ", ".join(backends.BACKENDS)
    with pytest.raises(BackendUnavailableError, match=f"'docker'; there are auto, {known}"):
        open_sandbox(SandboxSpec(), backend="docker")
    with pytest.raises(BackendUnavailableError, match="'ssh://host'; there are"):
        open_sandbox(SandboxSpec(), backend="ssh://host")


def test_a_custom_backend_is_one_class_and_one_registry_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class CustomBackend(NamespaceBackend):
        """Namespaces under another name."""

    module = types.ModuleType("custom_backend")
    module.CustomBackend = CustomBackend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "custom_backend", module)
    monkeypatch.setitem(backends.BACKENDS, "custom", "custom_backend:CustomBackend")  # type: ignore[arg-type]
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend="custom")
    sandbox.start()
    assert (sandbox.backend, sandbox.run("echo $((6 * 7))").output) == ("custom", "42\n")
    sandbox.close()
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "custom" in capsys.readouterr().out


def test_without_apptainer_asking_for_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match=r"no `apptainer` on PATH. Try: scripts/install_apptainer.sh"):
        open_sandbox(SandboxSpec(), backend="apptainer")


def test_a_broken_apptainer_is_detected_by_a_trial(monkeypatch: pytest.MonkeyPatch, public_path: Path) -> None:
    fake = public_path / "apptainer"
    fake.write_text("#!/bin/sh\necho 'FATAL: no such luck' >&2; exit 255\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{public_path}:/usr/bin:/bin")
    with pytest.raises(BackendUnavailableError, match="FATAL: no such luck"):
        open_sandbox(SandboxSpec(), backend="apptainer")


def test_a_missing_image_or_layer_is_one_clear_line(backend: str, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="nowhere"):
        open_sandbox(SandboxSpec(image=str(tmp_path / "nowhere")), backend=backend).start()
    with pytest.raises(SandboxError, match=r"did not start: .*No such file.*/missing"):
        open_sandbox(SandboxSpec(layers=(Path("/usr/missing"),)), backend=backend).start()


@pytest.mark.parametrize("variable", ["SWEGYM_WORKDIR", "SWEGYM_RUNDIR"])
def test_directories_that_apptainer_would_take_apart_are_used_with_namespaces(
    monkeypatch: pytest.MonkeyPatch, public_path: Path, variable: str
) -> None:
    (public_path / "apptainer").write_text("#!/bin/sh\nexit 0\n")
    (public_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{public_path}:/usr/bin:/bin")
    monkeypatch.setenv(variable, f"{public_path}/a b,c:d")
    with pytest.raises(BackendUnavailableError, match=rf"no path with ',' or ':', got .*Try: another \${variable}"):
        open_sandbox(SandboxSpec(), backend="apptainer")
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"))
    sandbox.start()
    assert (sandbox.backend, sandbox.run("echo $((6 * 7))").output) == ("namespace", "42\n")
    sandbox.close()
