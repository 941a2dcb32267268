"""Reading and writing from outside, and the changed paths against a full comparison of two trees."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swegym_env.errors import SandboxError
from swegym_env.sandbox import Change, Sandbox, SandboxSpec
from swegym_env.sandbox.changes import find_changes
from swegym_env.sandbox.identity import sandbox_user
from tests.env.sandbox.conftest import Opener


def make_layer(directory: Path, files: dict[str, str]) -> Path:
    """A layer with `files` under `testbed/`, owned by the sandbox's user as published layers are."""
    for name, content in files.items():
        path = directory / "testbed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (directory / "testbed").mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, *sandbox_user(), follow_symlinks=False)
    return directory


BASE = {
    "a.txt": "a\n",
    "run.sh": "echo\n",
    "d/x": "x\n",
    "d/y": "y\n",
    "d/sub/z": "z\n",
    "e/only": "o\n",
    ".git/HEAD": "ref\n",
}


def test_write_and_read(sandbox: Sandbox) -> None:
    sandbox.write("pkg/new/module.py", b"x = 1\n\xff")
    assert sandbox.read("/testbed/pkg/new/module.py") == b"x = 1\n\xff"
    assert (
        sandbox.run("cat pkg/new/module.py | wc -c; stat -c '%a %U' pkg/new/module.py pkg").output
        == "7\n644 agent\n755 agent\n"
    )
    sandbox.run("chmod 755 pkg/new/module.py; echo y > /tmp/t")
    sandbox.write("pkg/new/module.py", b"z")
    assert sandbox.run("stat -c %a pkg/new/module.py; cat pkg/new/module.py").output == "755\nz"
    assert sandbox.read("/tmp/t") == b"y\n"
    sandbox.write("/tmp/script", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert sandbox.run("/tmp/script").output == "ran\n"


@pytest.mark.parametrize("path", ["missing", "/testbed", "/tmp/pipe", "/tmp/loop", "a.txt/x", "a.txt\0x", "\ud83d"])
def test_only_regular_files_can_be_read(sandbox: Sandbox, path: str) -> None:
    sandbox.run("mkfifo /tmp/pipe; ln -s loop /tmp/loop; touch a.txt")
    with pytest.raises(OSError):
        sandbox.read(path)


@pytest.mark.parametrize("path", ["half\0of it", "half of \ud83d"])
def test_a_path_that_no_file_has_is_refused_and_nothing_is_written(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(OSError):
        sandbox.write(path, b"x")
    assert sandbox.run("ls").output == ""


def test_links_and_dots_cannot_leave_the_sandbox(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    sandbox.run(f"ln -s {secret} link; ln -s / root; ln -s ../../../../../../..{secret} dots; ln -s {tmp_path} dir")
    for path in ("link", f"root{secret}", "dots", f"../../../../../..{secret}", "dir/secret"):
        with pytest.raises(OSError):
            sandbox.read(path)
    with pytest.raises(OSError):
        sandbox.write("dir/planted", b"x")
    assert not (tmp_path / "planted").exists()
    assert sandbox.read("root/etc/passwd").startswith(b"root")


def test_writing_has_only_the_rights_of_the_sandbox_user(sandbox: Sandbox) -> None:
    with pytest.raises(PermissionError):
        sandbox.write("/proc/version", b"")
    with pytest.raises(OSError):
        sandbox.write("/usr/bin/ls", b"")


@pytest.mark.parametrize("name", ["1/cmdline", "1/maps", "1/mountinfo", "1/status", "kallsyms", "version"])
def test_a_link_to_proc_is_not_read_with_the_rights_of_the_owner(shared_sandbox: Sandbox, name: str) -> None:
    shared_sandbox.run(f"ln -sfn /proc/{name} /tmp/link")
    with pytest.raises(FileNotFoundError):
        shared_sandbox.read("/tmp/link")
    with pytest.raises(OSError):
        shared_sandbox.write("/tmp/link", b"x")


def test_using_a_closed_sandbox_is_an_error(opened: Opener) -> None:
    sandbox = opened()
    sandbox.close()
    sandbox.close()
    for use in (lambda: sandbox.run("true"), lambda: sandbox.read("x"), sandbox.start):
        with pytest.raises(SandboxError, match="closed"):
            use()


def seen(directory: Path) -> dict[str, tuple[str, object]]:
    """Every file and link of a tree, by what a patch could tell apart."""
    entries: dict[str, tuple[str, object]] = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, directory)
            if relative == ".git" or relative.startswith(".git/"):
                continue
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                entries[relative] = ("symlink", os.readlink(path))
            elif stat.S_ISREG(mode):
                entries[relative] = ("written", (Path(path).read_bytes(), stat.S_IMODE(mode)))
    return entries


def applied(base: dict[str, tuple[str, object]], changes: list[Change]) -> dict[str, tuple[str, object]]:
    """The base tree with changes made to it."""
    tree = dict(base)
    for change in changes:
        if change.kind == "deleted":
            gone = [
                path for path in tree if path == change.path or path.startswith(change.path + "/") or change.path == "."
            ]
            assert gone, f"{change} deletes nothing"
            for path in gone:
                del tree[path]
        else:
            assert change.host_path is not None
            mode = stat.S_IMODE(os.lstat(change.host_path).st_mode)
            symlink = change.kind == "symlink"
            content = os.readlink(change.host_path) if symlink else (change.host_path.read_bytes(), mode)
            assert tree.get(change.path) != (change.kind, content), f"{change} changes nothing"
            tree[change.path] = (change.kind, content)
    return tree


COMMANDS = [
    "echo new > a.txt",
    "echo a > a.txt",
    "touch a.txt",
    "chmod +x a.txt",
    "echo n > new",
    "mkdir -p n1/n2; echo 1 > n1/n2/f",
    "rm -f a.txt",
    "rm -rf d",
    "rm -rf d; mkdir d; echo x > d/x",
    "rm -rf d; echo file > d",
    "rm -rf e/only; rmdir e",
    "mv d moved",
    "mv e/only e/renamed",
    "rm -f a.txt; mkdir a.txt; echo in > a.txt/in",
    "ln -sf x d/link",
    "rm -f a.txt; ln -s run.sh a.txt",
    "ln d/x hard",
    "mkfifo pipe",
    "mkdir empty",
    "echo g > .git/config",
    "rm -rf .git",
    "printf n > 'odd\nname'; printf o > $'\\377'; mkdir -p ' '; echo s > ' /.wh.s'",
    "rm -rf ./* ./.[!.]*",
    "cp -r d copy",
    "rm -rf d/sub; mkdir -p d/sub; echo zz > d/sub/z",
]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands=st.lists(st.sampled_from(COMMANDS), min_size=1, max_size=5))
def test_changes_are_the_difference_between_the_trees(opened: Opener, public_path: Path, commands: list[str]) -> None:
    layer = make_layer(Path(tempfile.mkdtemp(dir=public_path)), BASE)
    sandbox = opened(SandboxSpec(layers=(layer,)))
    for command in commands:
        sandbox.run(command)
    changes = list(sandbox.changes("/testbed"))
    order = [os.fsencode(change.path) for change in changes]
    assert order == sorted(order)
    root = Path(f"/proc/{sandbox._shell.pid}/root/testbed")  # type: ignore[attr-defined]
    assert applied(seen(layer / "testbed"), changes) == seen(root)
    sandbox.close()


def test_every_file_can_be_changed_on_top_of_several_layers(opened: Opener, public_path: Path) -> None:
    lower = make_layer(public_path / "lower", {"a": "a\n", "b": "b\n", "dir/one": "1\n"})
    upper = make_layer(public_path / "upper", {"b": "B\n", "dir/two": "2\n"})
    sandbox = opened(SandboxSpec(layers=(lower, upper)))
    assert sandbox.changes("/testbed") == []
    assert sandbox.run("cat a b dir/*").output == "a\nB\n1\n2\n"
    sandbox.run("echo b > b; rm -r dir; mkdir dir; echo 2 > dir/two")
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == [
        ("b", "written"),
        ("dir/one", "deleted"),
    ]
    sandbox.run("cd /; rm -r testbed")
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == [(".", "deleted")]
    assert sandbox.changes("/opt") == []


def test_changes_below_a_directory_that_was_replaced(opened: Opener, public_path: Path) -> None:
    layer = make_layer(public_path / "layer", BASE)
    sandbox = opened(SandboxSpec(layers=(layer,)))
    sandbox.run("rm -rf d; mkdir -p d/sub; echo x > d/x")
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed/d")] == [
        ("sub/z", "deleted"),
        ("y", "deleted"),
    ]
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed/d/sub")] == [("z", "deleted")]


def test_links_in_the_writable_layer_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "testbed").symlink_to(tmp_path / "outside")
    assert find_changes(upper, [], "/testbed") == []
    (upper / "real").mkdir()
    (upper / "real" / "link").symlink_to(tmp_path / "outside")
    changes = find_changes(upper, [], "/real")
    assert [(change.path, change.kind) for change in changes] == [("link", "symlink")]


def test_directories_closed_by_the_agent_are_left_out_of_the_changes(opened: Opener, public_path: Path) -> None:
    sandbox = opened(SandboxSpec(layers=(make_layer(public_path / "closed", BASE),)))
    sandbox.run("echo n > new; mkdir shut; echo in > shut/in; chmod 000 shut d a.txt")
    seen_changes = {(change.path, change.kind) for change in sandbox.changes("/testbed")}
    assert {("new", "written"), ("a.txt", "written")} <= seen_changes
    assert seen_changes <= {("new", "written"), ("a.txt", "written"), ("shut/in", "written")}  # by root it can be seen
    sandbox.run("chmod 000 /testbed")
    assert len(sandbox.changes("/testbed")) in (0, len(seen_changes))


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400, 0o500])
def test_a_root_closed_by_the_agent_is_no_failure_of_an_ordinary_owner(public_path: Path, mode: int) -> None:
    upper = public_path / "upper"
    (upper / "testbed").mkdir(parents=True)
    (upper / "testbed" / "new").touch()
    user = os.geteuid()
    if user == 0:
        for path in (upper, upper / "testbed", upper / "testbed" / "new"):
            os.chown(path, *sandbox_user())
        os.seteuid(sandbox_user()[0])
    try:
        upper.chmod(mode)
        found = find_changes(upper, [], "/testbed")
        assert [change.path for change in found] == (["new"] if mode == 0o500 else [])
    finally:
        upper.chmod(0o700)
        os.seteuid(user)


def test_changes_in_a_tree_deeper_than_the_recursion_limit(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(workdir="/testbed"))
    deeper = "import os\nfor _ in range({}): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').close()"
    sandbox.write("/tmp/deep.py", deeper.format(1100).encode())
    assert sandbox.run("python3 /tmp/deep.py; rm /tmp/deep.py").output == ""
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == [("d/" * 1100 + "f", "written")]


def test_a_root_that_is_replaced_all_the_time_can_be_listed(tmp_path: Path) -> None:
    (tmp_path / "lower" / "testbed").mkdir(parents=True)
    (tmp_path / "upper" / "testbed").mkdir(parents=True)
    (tmp_path / "upper" / "testbed" / "new").write_text("x")
    root, aside = tmp_path / "upper" / "testbed", tmp_path / "upper" / "aside"
    program = (
        "import os, sys\nroot, aside = sys.argv[1:]\nwhile True:\n os.rename(root, aside)\n os.symlink('/etc', root)"
    )
    program += "\n os.unlink(root)\n os.rename(aside, root)"
    replacing = subprocess.Popen([sys.executable, "-c", program, str(root), str(aside)])
    try:
        lists = (find_changes(tmp_path / "upper", [tmp_path / "lower"], "/testbed") for _ in range(20_000))
        found = {tuple((change.path, change.kind) for change in changes) for changes in lists}
    finally:
        replacing.kill()
        replacing.wait()
    assert found <= {(), ((".", "deleted"),), (("new", "written"),)}
    assert len(found) > 1
