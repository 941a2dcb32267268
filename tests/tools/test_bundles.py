"""A custom bundle is installed once, called, and checked by `swegym tools check`; and pdb with pytest if installed."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from swegym_env.agent.actions import Call
from swegym_env.agent.tools import tool_set
from swegym_env.cli.main import main
from swegym_env.errors import LayerError
from swegym_env.prepare import add_tools
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore
from tests.places import public_directory


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that the sandbox's user can enter."""
    with public_directory("tools") as directory:
        yield directory


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A tool that counts lines by a word that its installation left."""
    folder = tmp_path / "counting"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "count").write_text('#!/bin/sh\ncat "$(dirname "$(realpath "$0")")/../lib/word"; wc -l < "$1"\n')
    (folder / "install.sh").write_text("set -e\nmkdir lib\necho counted: > lib/word\n")
    argument = {"name": "path", "description": "The file.", "required": True, "place": "position"}
    tool = {"description": "Counts lines.", "arguments": [argument], "example": {"path": "/etc/passwd"}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"description": "Counting.", "tools": {"count": tool}}))
    return folder


def test_installed_files_are_in_every_sandbox_and_built_once(bundle: Path, public: Path) -> None:
    store, tools = LayerStore(public / "layers"), tool_set(("bash", str(bundle)))
    first = add_tools(SandboxSpec(workdir="/tmp"), tools, store=store)
    (installed,) = (layer for layer in first.layers if layer.name.startswith("installed-tools-"))
    made = installed.stat().st_mtime_ns
    assert add_tools(SandboxSpec(workdir="/tmp"), tools, store=store) == first and installed.stat().st_mtime_ns == made
    sandbox = open_sandbox(first)
    try:
        sandbox.start()
        assert sandbox.run("printf 'a\\nb\\n' > f; count f").output == "counted:\n2\n"
        action = tools.resolve(Call("count", {"path": "f"}))
        assert sandbox.run(action.text).output == "counted:\n2\n"
        assert sandbox.run("touch /opt/swegym/bin/x; cat /opt/swegym/tools/counting/lib/word").exit_code == 0
    finally:
        sandbox.close()
    assert not list(installed.rglob("x")), "what an episode does to its tools stays in the episode"


def test_failed_installation_is_reported_with_its_output(bundle: Path, public: Path) -> None:
    (bundle / "install.sh").write_text("echo no such wheel; exit 3\n")
    with pytest.raises(LayerError, match=r"install.sh exited with 3: no such wheel"):
        add_tools(SandboxSpec(workdir="/tmp"), tool_set(str(bundle)), store=LayerStore(public / "layers"))


def test_tools_check_shows_a_working_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "check", str(bundle)]) == 0
    output = capsys.readouterr().out
    assert "count(path: string)" in output and "$ count /etc/passwd  → exit code 0\ncounted:" in output
    assert main(["tools", "check", str(bundle), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 0 and found["schema"]["function"]["name"] == "count"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.yaml", "tools: {count: {descriptoin: x}}", "did you mean description"),
        ("bin/count", "#!/no/such/interpreter\n", "count: cannot be run"),
        ("install.sh", "exit 7\n", "exited with 7"),
    ],
)
def test_tools_check_reports_a_broken_bundle_in_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, message: str
) -> None:
    (bundle / file).write_text(text)
    assert main(["tools", "check", str(bundle)]) == 2
    stderr = capsys.readouterr().err
    assert message in stderr and len(stderr.splitlines()) == 1


def test_tools_list_shows_the_shipped_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "list"]) == 0
    output = capsys.readouterr().out
    assert "pdb         A debugger" in output and "rewrite-only  view, edit, submit" in output
    assert main(["tools", "list", "--json"]) == 0
    names = [json.loads(line)["function"]["name"] for line in capsys.readouterr().out.splitlines()]
    folders = sorted((Path(__file__).parents[2] / "tools").glob("*/config.yaml"))
    assert names == [name for folder in folders for name in yaml.safe_load(folder.read_text())["tools"]]
    assert {"edit", "pdb", "run_tests", "search", "submit", "view"} <= set(names)


def test_pytest_is_used_if_it_is_installed(public: Path) -> None:
    """The project's own pytest, pure Python, shown to the sandbox's interpreter."""
    packages = public / "packages" / "opt" / "packages"
    for distribution in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in importlib.metadata.files(distribution) or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, packages / file)
    for path in (packages, *packages.rglob("*"), packages.parents[0], packages.parents[1]):
        path.chmod(0o755)
        own(path)
    spec = SandboxSpec(workdir="/project", layers=(public / "packages",), env={"PYTHONPATH": "/opt/packages"})
    sandbox = open_sandbox(add_tools(spec, tool_set("debug")))
    try:
        sandbox.start()
        test = b"def test_sum():\n    total = 1 + 1\n    assert total == 3\n\ndef test_fine():\n    pass\n"
        sandbox.write("/project/test_it.py", test)
        ran = sandbox.run("run_tests")
        assert ran.exit_code == 1 and "1 failed, 1 passed" in ran.output
        assert "-> total = 1 + 1" in sandbox.run("pdb start test_it.py::test_sum").output
        assert "AssertionError" in sandbox.run("pdb c").output or "assert 2 == 3" in sandbox.run("pdb w").output
        assert sandbox.run("pdb p total").output == "2\n"
        assert sandbox.run("pdb q").exit_code == 0
    finally:
        sandbox.close()
