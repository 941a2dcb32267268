"""The captured patch is what git prints, applies to the base commit, and reproduces the sandbox's tree."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swegym_env.env import SWEBenchEnv
from swegym_env.prepare import prepare_locally
from swegym_env.repo.capture import MAX_FILE_BYTES, PatchCache, capture_patch
from swegym_env.repo.differ import differ
from swegym_env.sandbox import Sandbox, open_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

BASE = {
    "a.py": "".join(f"line {number}\n" for number in range(40)),
    "pkg/b.txt": "b",
    "pkg/deep/c.sh": "#!/bin/sh\necho c\n",
    "d e.txt": "äöü\n",
    ".gitignore": "*.log\n/out/\n",
}


def opened(store: LayerStore, files: dict[str, str], backend: str = "auto") -> tuple[Sandbox, Path]:
    task = Task(instance_id="x", repo="a/b", base_commit="", problem_statement="", patch="", files=files)
    workspace = prepare_locally(task, store=store)
    sandbox = open_sandbox(workspace.spec, backend=backend)
    sandbox.start()
    return sandbox, workspace.base


def git(directory: Path, *arguments: str, stdin: str = "") -> str:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    done = subprocess.run(
        command, input=stdin.encode("utf-8", "surrogateescape"), capture_output=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "surrogateescape")


def tree_after(base: Path, patch: str) -> str:
    """The id of the base commit's tree after `patch`, computed by git."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "copy")
        shutil.copytree(base, copy, symlinks=True)
        if patch:
            git(copy, "apply", "--whitespace=nowarn", "-", stdin=patch)
        git(copy, "add", "-A", "-f")
        return git(copy, "write-tree")


EVERYTHING = r"""
sed -i 's/line 7/LINE 7/' a.py && rm pkg/b.txt && chmod -x pkg/deep/c.sh
ln -s /etc/passwd link && printf 'a\0b\377' > bin.dat && printf 'no newline' > "new é.txt" && : > empty
mkdir -p out new/dir && echo 1 > out/x && echo 2 > noise.log && echo 3 > new/dir/file
"""


def test_the_patch_is_what_git_prints(store: LayerStore, backend: str) -> None:
    sandbox, base = opened(store, BASE, backend)
    try:
        assert capture_patch(sandbox, base) == ""
        assert sandbox.run(EVERYTHING).exit_code == 0
        patch = capture_patch(sandbox, base)
        shown = sandbox.run("git add -A && git diff --cached --binary --full-index --no-renames")
        assert patch == shown.output
        assert capture_patch(sandbox, base) == patch  # adding to the index is no change
        assert tree_after(base, patch) == sandbox.run("git write-tree").output
    finally:
        sandbox.close()


def test_byte_code_and_git_directories_are_excluded(store: LayerStore) -> None:
    sandbox, base = opened(store, {"m.py": "x = 1\n", "pkg/one": "1\n", "pkg/two": "2\n"})
    try:
        sandbox.run(
            "mkdir __pycache__ && touch __pycache__/m.pyc m.pyc; git config a.b c; mkdir sub && git -C sub init -q"
        )
        assert capture_patch(sandbox, base) == ""
        sandbox.run("rm -r pkg sub && echo file > pkg && rm m.py && mkdir m.py && echo inside > m.py/x")
        patch = capture_patch(sandbox, base)
        assert tree_after(base, patch) == sandbox.run("rm -r *.pyc __pycache__; git add -A && git write-tree").output
    finally:
        sandbox.close()


def test_symbolic_links_are_never_followed(store: LayerStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret of the host\n")
    sandbox, base = opened(store, {"m.py": "x\n", "d/f": "y\n"})
    try:
        sandbox.run(f"ln -sf {secret} m.py; rm -r d; ln -s {tmp_path} d; mkfifo pipe; ln -s /dev/zero z")
        patch = capture_patch(sandbox, base)
        assert "secret of the host" not in patch
        assert f"+{secret}\n" in patch
    finally:
        sandbox.close()


def test_a_file_that_is_too_large_is_excluded_and_named(store: LayerStore) -> None:
    sandbox, base = opened(store, {"m.py": "x\n"})
    try:
        sandbox.run(f"truncate -s {MAX_FILE_BYTES + 1} big; echo y > m.py")
        patch = capture_patch(sandbox, base)
        assert patch.startswith("# left out: 'big'")
        assert tree_after(base, patch) == sandbox.run("rm big; git add -A; git write-tree").output
    finally:
        sandbox.close()


def test_a_change_right_after_a_capture_is_seen(store: LayerStore) -> None:
    sandbox, base = opened(store, {"m.py": "0\n"})
    try:
        for number in range(1, 8):
            sandbox.run(f"echo {number} >m.py")  # same size each time, within one tick of a coarse clock
            assert f"\n+{number}\n" in capture_patch(sandbox, base)
    finally:
        sandbox.close()


def test_deleting_every_file_and_the_git_directory_gives_a_patch(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    try:
        sandbox.run("cd / && rm -rf /testbed/* /testbed/.git*")
        patch = capture_patch(sandbox, base)
        assert patch.count("deleted file mode") == len(BASE)
        assert tree_after(base, patch) == git(base, "mktree")
    finally:
        sandbox.close()


def printed_by_git(sandbox: Sandbox) -> str:
    """What git in the sandbox prints of the work tree; its index stays unchanged."""
    result = sandbox.run(
        "cp .git/index /tmp/index && export GIT_INDEX_FILE=/tmp/index && git -c advice.addEmbeddedRepo=false add -A && "
        "git diff --cached --binary --full-index --no-renames >/tmp/shown; code=$?; unset GIT_INDEX_FILE; (exit $code)"
    )
    assert result.exit_code == 0, result.output
    return sandbox.read("/tmp/shown").decode("utf-8", "surrogateescape")


# Tracked and new names, nested ones, ignored ones, and names that shells, git and its quoting mishandle.
NAMES = [
    *BASE, "pkg", "pkg/deep", "new", "pkg/new", "fresh/dir/file", "x.log", "out/y", "out", "pkg/.gitignore", "fresh",
    "tab\there", 'qu"ote', "line\nbreak", ":colon", "-dash", "*star?", "[x]", "back\\slash", "ä", " space ",
    "not-utf8-\udcff\udc80", "pkg/deep/-x", "a.py.bak", "pkg.txt", "#hash", "!bang",
]  # fmt: skip
names = st.sampled_from(NAMES)
contents = st.one_of(
    st.binary(max_size=30),
    st.text("ab\n\r é\0", max_size=60).map(str.encode),
    st.just(b"".join(b"line %d\n" % number for number in range(39))),
    st.sampled_from([text.encode() for text in BASE.values()]),
    st.sampled_from([b"*\n", b"!x.log\nnew\n", b"fresh/\n*.bak\n"]),
)
mutations = st.one_of(
    st.tuples(st.just("write"), names, contents),
    st.tuples(st.just("append"), names, contents),
    st.tuples(st.sampled_from(["rm -rf --", "mkdir -p --", "chmod 755 --", "chmod 644 --", "touch --"]), names),
    st.tuples(st.sampled_from(["mv -f --", "mv -T --", "ln -sfn --", "ln -f --", "cp -a --"]), names, names),
    st.tuples(st.just("again"), names),  # removed and made again as it was: whiteouts, opaque directories
    st.tuples(st.just("repository"), st.sampled_from(["nested", "pkg", "fresh/dir", "out", "x.log", "a.py"]), contents),
)


def script(steps: list[tuple[object, ...]]) -> str:
    """The steps as a bash script; failing ones are ignored."""
    lines = []
    for verb, path, *more in steps:
        place = shlex.quote(f"./{path}")
        if verb in ("write", "append"):
            printed = "".join(f"\\x{byte:02x}" for byte in more[0])  # type: ignore[attr-defined]
            lines.append(
                f"mkdir -p \"$(dirname -- {place})\"; printf '{printed}' {'>' * (1 + (verb == 'append'))} {place}"
            )
        elif verb == "again":
            lines.append(
                f"cp -a -- {place} /tmp/kept && rm -rf -- {place} && cp -a -- /tmp/kept {place}; rm -rf /tmp/kept"
            )
        elif verb == "repository":
            lines.append(
                f"mkdir -p {place} && cd {place} && echo x >inner && git init -q . && git add -A -f . && "
                "git -c user.name=a -c user.email=a@b commit -qm nested; echo y >>inner; cd /testbed"
            )
        else:
            # A directory without x would keep git itself out.
            before = f"[ -f {place} ] && " if verb == "chmod 644 --" else ""
            lines.append(before + " ".join([str(verb), place, *(shlex.quote(f"./{other}") for other in more)]))
    return "\n".join(f"{{ {line}; }} 2>/dev/null" for line in lines) + "\ntrue"


def check_against_git(store: LayerStore, steps: list[tuple[object, ...]]) -> None:
    sandbox, base = opened(store, BASE)
    try:
        assert sandbox.run(script(steps)).exit_code == 0
        patch = capture_patch(sandbox, base)
        assert patch == printed_by_git(sandbox)
        expected = sandbox.run("git add -A && git write-tree >/tmp/tree").exit_code
        assert expected == 0
        if "160000" not in patch:  # a nested repository is recorded, not applied
            assert tree_after(base, patch) == sandbox.read("/tmp/tree").decode()
    finally:
        sandbox.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(mutations, min_size=1, max_size=7))
@example([("mv -f --", "pkg", "moved"), ("again", "d e.txt"), ("rm -rf --", "pkg/deep")])
@example([("again", "pkg"), ("rm -rf --", "pkg/b.txt")])
@example([("rm -rf --", "pkg"), ("write", "pkg/deep/c.sh", b"#!/bin/sh\necho c\n"), ("chmod 755 --", "pkg/deep/c.sh")])
@example([("rm -rf --", "a.py"), ("repository", "a.py", b"")])
@example([("repository", "nested", b""), ("write", "nested/deep/x", b"x"), ("write", ".gitignore", b"")])
@example([("write", ".pytest_cache/.gitignore", b"*\n"), ("write", ".pytest_cache/v/x", b"1")])
@example([("write", "pkg/.gitignore", b"c.sh\nnew\n"), ("write", "pkg/new", b"1"), ("chmod 644 --", "pkg/deep/c.sh")])
@example([("rm -rf --", ".gitignore"), ("write", "x.log", b"1"), ("ln -sfn --", "out", "pkg")])
def test_after_any_changes_the_patch_is_what_git_prints(store: LayerStore, steps: list[tuple[object, ...]]) -> None:
    check_against_git(store, steps)


@pytest.mark.campaign
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(mutations, min_size=1, max_size=7))
def test_after_many_more_changes_the_patch_is_what_git_prints(
    store: LayerStore, steps: list[tuple[object, ...]]
) -> None:
    check_against_git(store, steps)


def test_a_nested_repository_without_a_commit_loses_no_file(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    try:
        sandbox.run("git init -q nested; echo x >nested/file; echo 'ref: /etc/passwd' >nested/.git/HEAD")
        assert "+++ b/nested/file\n@@ -0,0 +1 @@\n+x\n" in capture_patch(sandbox, base)
        sandbox.run("rm nested/.git/HEAD; ln -s /etc/hostname nested/.git/HEAD")
        assert "+++ b/nested/file\n" in capture_patch(sandbox, base)
    finally:
        sandbox.close()


def test_files_of_a_submodule_that_is_not_checked_out_are_excluded_as_by_git(store: LayerStore, tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "a+b"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    (clone / "a.py").write_text("x = 1\n")
    git(clone, "add", "a.py")
    for place in ("lib/th*ng", "other"):
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{place}")
    git(clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "with submodules")
    commit = git(clone, "rev-parse", "HEAD").strip()
    task = Task(instance_id="x", repo="a/b", base_commit=commit, problem_statement="", patch="")
    workspace = prepare_locally(task, repos=str(clone.parent), store=store)
    sandbox = open_sandbox(workspace.spec)
    sandbox.start()
    try:
        sandbox.run(
            "echo 1 >'lib/th*ng/x'; mkdir -p other/d; echo 2 >other/d/x; echo 3 >lib/new; echo 4 >>a.py; "
            "mkdir other/own; cd other/own; git init -q; echo 5 >y; git add y; "
            "git -c user.name=a -c user.email=a@b commit -qm own; cd /testbed"
        )
        patch = capture_patch(sandbox, workspace.base)
        assert patch == printed_by_git(sandbox) and patch.count("diff --git") == 2
    finally:
        sandbox.close()


def bytes_read(work: Callable[[], object]) -> int:
    """What this process reads while it does `work`, by the kernel's count."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    work()
    return count() - before


def test_a_settled_file_is_read_once_and_with_fresh_again(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    size = 1 << 20
    try:
        sandbox.run(f"yes | head -c {size} >big; echo 2 >pkg/b.txt")
        first = capture_patch(sandbox, base)
        time.sleep(0.12)
        assert capture_patch(sandbox, base) == first
        asked = differ().requests
        assert bytes_read(lambda: capture_patch(sandbox, base)) < size / 10
        assert capture_patch(sandbox, base) == first
        assert bytes_read(lambda: capture_patch(sandbox, base, fresh=True)) > size
        assert capture_patch(sandbox, base, fresh=True) == first
        assert differ().requests == asked  # git has compared these files before
        sandbox.run("echo 3 >pkg/b.txt")
        patches: list[str] = []
        assert bytes_read(lambda: patches.append(capture_patch(sandbox, base))) < size / 10  # of `big` nothing
        assert patches == [first.replace("\n+2\n", "\n+3\n").replace(blob("2\n"), blob("3\n"))]
        assert differ().requests == asked + 1
    finally:
        sandbox.close()


def blob(text: str) -> str:
    """The id that git gives to a file."""
    return hashlib.sha1(f"blob {len(text)}\0{text}".encode()).hexdigest()


def test_only_settled_states_are_cached_and_the_least_recently_used_is_evicted() -> None:
    cache = PatchCache(max_characters=10)
    cache.put(("young",), "x", changed=100.0, read=100.04)
    cache.put(("of the future",), "x", changed=101.0, read=100.0)
    assert cache.get(("young",)) is cache.get(("of the future",)) is None
    for name, size in (("a", 4), ("b", 4), ("a", 5)):
        cache.put((name,), name * size, changed=100.0, read=100.1)
    assert (cache.get(("a",)), cache.get(("b",))) == ("aaaaa", "bbbb")
    cache.put(("c",), "cc", changed=100.0, read=100.1)
    assert (cache.get(("a",)), cache.get(("b",)), cache.get(("c",))) == (None, "bbbb", "cc")
    cache.put(("large",), "x" * 11, changed=100.0, read=100.1)
    assert cache.get(("large",)) is None and cache.get(("c",)) == "cc"


MAPPED_WRITE = """
import mmap, time
with open('a.py', 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 0)
mapped[0:1] = b'L'
open('/tmp/ready', 'w').close()
while True:
    time.sleep(0.01)
    try:
        open('/tmp/now').close()
    except OSError:
        continue
    mapped[1:2] = b'I'
    open('/tmp/done', 'w').close()
    break
time.sleep(60)
"""


def test_a_fresh_patch_includes_writes_through_mapped_memory(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    try:
        sandbox.write("/tmp/mapped.py", MAPPED_WRITE.encode())
        sandbox.run("python3 /tmp/mapped.py & until [ -e /tmp/ready ]; do sleep 0.01; done")
        time.sleep(0.12)
        assert "\n+Line 0\n" in capture_patch(sandbox, base)
        sandbox.run("touch /tmp/now; until [ -e /tmp/done ]; do sleep 0.01; done")
        assert "\n+LIne 0\n" in capture_patch(sandbox, base, fresh=True)
    finally:
        sandbox.close()


def test_the_graded_patch_is_captured_fresh() -> None:
    task = Task(instance_id="x", repo="a/b", base_commit="", problem_statement="", patch="", files=BASE)
    env = SWEBenchEnv(tasks=[task], reward="none", action_format="raw")
    try:
        env.reset(seed=0)
        env.step(f"cat >/tmp/mapped.py <<'EOF'\n{MAPPED_WRITE}\nEOF")
        env.step("python3 /tmp/mapped.py & until [ -e /tmp/ready ]; do sleep 0.01; done")
        time.sleep(0.12)
        for _ in range(2):
            *_, info = env.step(":")
        assert "\n+Line 0\n" in info["patch"]
        env.step("touch /tmp/now; until [ -e /tmp/done ]; do sleep 0.01; done")
        *_, info = env.step("submit")
        assert info["end_reason"] == "submitted" and "\n+LIne 0\n" in info["patch"]
    finally:
        env.close()


PLACES = (
    "a.py",
    "pkg",
    "pkg/b.txt",
    "pkg/deep",
    "pkg/deep/c.sh",
    "pkg/deep/d",
    "d e.txt",
    "new",
    "new/x",
    "new/y/z",
    ".gitignore",
)
ACTIONS = (
    'mkdir -p "$(dirname {path})" && echo {number} > {path}',
    "rm -rf {path}",
    "rm -rf {path}; mkdir -p {path} && echo {number} > {path}/x",
    "rm -rf {path}; ln -s {number} {path}",
    "git checkout -q HEAD -- {path}",
    "mv {path} moved-{number}",
    "chmod -R u+x {path}",
    "cat {path} >> {path}",
)
EDITS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(PLACES)), min_size=1, max_size=6)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(EDITS, min_size=2, max_size=4))
@example([[(ACTIONS[1], "pkg")], [(ACTIONS[0], "pkg/b.txt")], [(ACTIONS[1], "pkg"), (ACTIONS[0], "pkg")]])
@example([[(ACTIONS[0], "new/x")], [(ACTIONS[1], "new")], [(ACTIONS[0], "new/y/z")]])
@example([[(ACTIONS[1], "a.py")], [(ACTIONS[4], "a.py")], [(ACTIONS[2], "a.py")]])
@example([[(ACTIONS[2], "pkg/deep")], [(ACTIONS[3], "pkg")], [(ACTIONS[4], "pkg/deep/c.sh")]])
def test_the_patch_after_forks_that_share_layers_is_what_git_prints(
    store: LayerStore, rounds: list[list[tuple[str, str]]]
) -> None:
    sandbox, base = opened(store, BASE)
    opened_here = [sandbox]
    try:
        for number, edits in enumerate(rounds):
            lines = [action.format(path=shlex.quote(place), number=number) for action, place in edits]
            many = f"mkdir /tmp/{number}; for ((i = 0; i < 220; i++)); do : > /tmp/{number}/$i; done"
            sandbox.run("\n".join(["cd /testbed", *lines, many]))
            own_layers = sandbox.own_layers  # type: ignore[attr-defined]
            sandbox = sandbox.fork()
            opened_here.append(sandbox)
            assert sandbox.own_layers == own_layers + 1  # type: ignore[attr-defined]
            patch = capture_patch(sandbox, base, fresh=True)
            shown = sandbox.run(
                "cd /testbed; export GIT_INDEX_FILE=/tmp/index; cp .git/index /tmp/index; "
                "git add -A 2>/dev/null && git diff --cached --binary --full-index --no-renames"
            )
            assert patch == shown.output
            assert capture_patch(opened_here[-2], base, fresh=True) == patch  # of the one that was forked
    finally:
        for one in opened_here:
            one.close()
