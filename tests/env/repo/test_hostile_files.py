"""Whatever lies in a repository, a step returns, says why there is no patch, and disturbs no other episode."""

from __future__ import annotations

import dataclasses
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from swegym_env.env import SWEBenchEnv
from swegym_env.repo.differ import Differ, differ
from swegym_env.repo.objects import ObjectWriter
from swegym_env.repo.patches import refusal
from tests.env.calc import FILES, calc_task
from tests.env.repo.test_capture import bytes_read, git

SLOW_PATTERNS = "printf '**/a/%.0s' {1..12} >.gitignore; printf x >>.gitignore; mkdir -p $(printf 'a/%.0s' {1..60}); "


TASK = dataclasses.replace(
    calc_task(), files={**FILES, "m.py": "x = 1\n", "pkg/one": "1\n", "pkg/sub/two": "2\n", ".gitignore": "*.log\n"}
)


@contextmanager
def environment(backend: str = "auto", *, tools: tuple[str, ...] = ("bash",), **limits: float) -> Iterator[SWEBenchEnv]:
    """An environment in an episode, with files of this test."""
    env = SWEBenchEnv(
        tasks=[TASK],
        sandbox=backend,
        action_format="raw",
        max_turns=None,
        tools=tools,
        limits=limits or None,
        pool=0,
    )
    try:
        env.reset(seed=0)
        yield env
    finally:
        env.close()


# Where the agent's changes lie after each: a step has to return, and the one after it too.
COMMIT = "-c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
DEEP = """python3 -c '
import os
for _ in range(5000):
    os.mkdir("d")
    os.chdir("d")
open("f", "w")'"""
LEASE = """(python3 -c '
import fcntl, os, time
with open("n.py", "w") as file:
    file.write("y")
leased = os.open("n.py", os.O_RDONLY)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("/tmp/leased", "w")
time.sleep(60)' || touch /tmp/leased) 2>/dev/null & until [ -e /tmp/leased ]; do sleep 0.02; done"""
CHANGING = """(while :; do
rm -rf r; mkdir r; echo 1 >r/f; rm -rf r; ln -s /etc r; rm r; mkfifo r; rm r; echo x >r; truncate -s 20M r; rm r
done) 2>/dev/null & sleep 0.2"""
TREES = {
    "600 nested directories": "mkdir -p $(printf 'd/%.0s' {1..600}); touch $(printf 'd/%.0s' {1..600})f",
    "5,000 nested directories": DEEP,
    "300 nested names of 250 bytes": DEEP.replace("5000", "300").replace('"d"', '"n" * 250'),
    "names of 255 bytes": "touch $(printf '%0255d ' {1..300})",
    "names that are not UTF-8": r"touch $'\xff' $'\xc3' $'a\xffb' $'\xed\xb3\xbf'; mkdir $'\xfe'; touch $'\xfe/\xfe'",
    "names with newlines": r"mkdir $'a\nb'; touch $'a\nb/c\n' $'\n' $'diff --git a' $'\ndiff --git a'",
    "contents like patches": r"printf 'diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n' >p; cp p p2; echo >>m.py",
    "a git file": "rm -rf .git; echo 'gitdir: /etc' >.git; mkdir s; echo 'gitdir: ../.git' >s/.git",
    "git directories": "mkdir -p .git/.git a/.git/b/.git c/.GIT; touch .git/x {a/.git,a/.git/b/.git,c/.GIT}/HEAD",
    "a HEAD without a name": "mkdir -p n/.git/objects; echo ref: >n/.git/HEAD; printf ' \n \n' >n/.git/packed-refs; "
    "touch n/.git/objects/x n/f",
    "a HEAD that leads to itself": "mkdir -p n/.git/objects; echo ref: HEAD >n/.git/HEAD; touch n/.git/objects/x",
    "a HEAD that leads out": "mkdir -p n/.git/objects; echo ref: ../../../m.py >n/.git/HEAD; touch n/.git/objects/x",
    "repositories in repositories": f"for p in n n/-x n/-x/y; do git init -q $p; git -C $p {COMMIT}; done",
    "a repository in place of a file": f"rm m.py; git init -q m.py; git -C m.py {COMMIT}",
    "pipes and sockets": "mkfifo m pkg/p; rm m.py; mkfifo m.py; python3 -c 'import socket; "
    'socket.socket(socket.AF_UNIX).bind("s")\'',
    "no permissions": "mkdir -p c r; touch c/f r/f u; chmod 0 c u m.py; chmod 444 r; chmod 0 pkg",
    "files with leases": LEASE,
    "directories that are links": "mv pkg /tmp; ln -s /tmp/pkg pkg; ln -s . loop; ln -s /etc e; ln -s $(printf 'x%.0s' "
    "{1..4000}) long",
    "a link in place of everything": "cd /; mv testbed /tmp/was; ln -s /etc testbed",
    "files that change": CHANGING,
    "a sparse file": "truncate -s 1G sparse; cp m.py x",
    "ignore files everywhere": "mkdir -p i/.gitignore/.gitignore; rm -f .gitignore; mkdir .gitignore; "
    "echo '*' >.gitignore/.gitignore; ln -s /etc/passwd i/.gitignore/x; echo y >new",
    "an ignore file that is deep": "d=$(printf 'd/%.0s' {1..900}); mkdir -p $d; echo '!x' >$d.gitignore; touch $d/f",
    "marks of overlays": """python3 -c '
import os
for kind in ("overlay.opaque", "overlay.whiteout", "overlay.redirect", "overlay.metacopy", "fuseoverlayfs.opaque"):
    for path in ("pkg", "m.py"):
        os.setxattr(path, "user." + kind, b"y")'
touch .wh.m.py pkg/.wh..wh..opq pkg/.wh.one; mkdir .wh..opq; test -e m.py -a -e pkg/one""",
    "attributes of files": """python3 -c '
import os
try:
    for number in range(20000):
        os.setxattr("m.py", f"user.{number}", bytes(60000))
except OSError:
    pass'""",
    "hard links": "mkdir L; for i in {1..300}; do ln m.py L/$i; done; ln pkg/one pkg/sub/again",
    "times that no clock shows": "touch -d @-9000000000 a; touch -d @99999999999 b; touch -d 2262-01-01 m.py",
    "names like options and patterns": r"""touch -- -x --output=x ':(exclude)*' '*' '~' '$(touch z)' '"q"' 'b\' ...""",
    "programs in the settings of git": r"""echo /etc >.git/objects/info/alternates; git config core.worktree /etc
for name in core.fsmonitor core.pager filter.x.clean filter.x.smudge diff.x.textconv diff.x.command merge.x.driver; do
git config $name 'touch /tmp/owned-by-the-agent; cat'; done
git config core.hooksPath .; echo '* filter=x diff=x' >.gitattributes
printf '[submodule "s"]\npath=s\nurl=ext::sh -c touch% /tmp/owned-by-the-agent\n' >.gitmodules
head -c 5000000 /dev/urandom >.git/index; truncate -s 1G .git/packed-refs; echo y >>m.py""",
    "patterns of every kind": r"printf '[\n[[:\n\\\n**\n!\n*[!-~]**/**\n\xff\n' >.gitignore; touch a b '[' ']'",
}


@pytest.mark.parametrize("tree", TREES)
def test_a_step_returns_and_the_next_one_works(tree: str) -> None:
    with environment() as env:
        for command in (TREES[tree], "echo $((6 * 7))"):
            observation, _, terminated, truncated, info = env.step(command)
            assert not terminated and not truncated, observation
            assert "root:" not in info["patch"]  # of /etc
            assert "deleted file" not in info["patch"] or tree != "marks of overlays"
        assert "42" in observation
        *_, terminated, truncated, info = env.step("submit")
        assert terminated and not truncated and info["valid"], info["failure_reason"]
    assert not Path("/tmp/owned-by-the-agent").exists()


def test_what_is_beyond_a_limit_is_refused_with_a_reason(backend: str) -> None:
    limits = {"patch_files": 40, "patch_bytes": 100_000, "patch_depth": 20}
    with environment(backend, **limits) as env:
        for made, reason in (
            ("mkdir f; touch f/{1..50}", "it changes more than 40 files"),
            ("head -c 200000 /dev/zero >f", "its files take more than 100000 bytes"),
            ("rm -f f; head -c 90000 /dev/urandom >f", "the patch takes more than 100000 bytes"),
            (
                "mkdir -p f; mkdir -p $(printf 'f/%.0s' {1..30}); touch $(printf 'f/%.0s' {1..30})x",
                "more than 20 nested",
            ),
        ):
            observation, *_, info = env.step(f"rm -rf f; {made}; echo done")
            assert observation.startswith("done") and reason in observation
            assert reason in refusal(info["patch"]) and info["exit_code"] == 0
        observation, *_, info = env.step("rm -rf f; echo y >y")
        assert "+++ b/y" in info["patch"] and "no patch" not in observation
        env.step("mkdir f; touch f/{1..50}")
        observation, reward, terminated, truncated, info = env.step("submit")
        assert terminated and not truncated and reward == 0
        assert info["valid"] and not info["resolved"] and "more than 40 files" in info["failure_reason"]
        assert info["fail_to_pass"] == (0, len(TASK.fail_to_pass))


def test_slow_ignore_patterns_are_refused_and_stall_nobody() -> None:
    steps_of_neighbour = 0
    with environment() as hostile, environment() as honest:
        returned: list[str] = []

        def attack() -> None:
            observation, *_ = hostile.step(f"{SLOW_PATTERNS} touch $(printf 'a/%.0s' {{1..60}})f")
            returned.append(observation)

        thread = threading.Thread(target=attack)
        thread.start()
        while not returned:
            *_, info = honest.step(f"echo {steps_of_neighbour} >new-{steps_of_neighbour}.txt")
            assert "+++ b/new-0.txt" in info["patch"]
            steps_of_neighbour += 1
        thread.join()
        assert "reading its .gitignore patterns takes more than 3 s of processor time" in returned[0]
        assert steps_of_neighbour > 20
        *_, info = hostile.step("rm -r a; git checkout -q .gitignore 2>/dev/null || rm .gitignore; echo z >z")
        assert "+++ b/z" in info["patch"]


def test_large_files_are_counted_and_not_read() -> None:
    with environment() as env:
        infos = []
        taken = bytes_read(lambda: infos.append(env.step("for i in {1..20}; do truncate -s 15M big$i; done")[-1]))
        assert "its files take more than 67108864 bytes" in infos[0]["patch"]
        assert taken < 1 << 20
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        env.step(":")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("made", ["truncate -s 2G", "ln -sf /proc/self/pagemap", "ln -sf /proc/1/pagemap"])
def test_a_submission_mark_of_any_size_is_not_read_into_memory(made: str) -> None:
    with environment(tools=("bash", "submit")) as env:
        taken = bytes_read(lambda: env.step(f"{made} /.swegym/submitted"))
        assert taken < 100 << 20


def test_a_large_file_is_an_error_and_not_memory(backend: str) -> None:
    with environment(backend) as env:
        env.step("truncate -s 2G /tmp/large; ln -s /proc/1/pagemap /tmp/endless; truncate -s 60M /tmp/fits")
        sandbox, _ = env._live()
        for path in ("/tmp/large", "/tmp/endless"):
            with pytest.raises(OSError):
                sandbox.read(path)
        assert len(sandbox.read("/tmp/fits")) == 60 << 20


def test_git_runs_unprivileged_within_limits_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    with closing(Differ()) as one:
        one.diff({}, {"a": (0o100644, b"1\n")})
        process = Path(f"/proc/{one.pid}")
        assert b"hunter2" not in (process / "environ").read_bytes()
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
        if os.geteuid() == 0:
            assert "0" not in status["Uid"].split() and "0" not in status["Gid"].split()
            assert status["Groups"].split() == [] and int(status["CapEff"], 16) == 0
        limits = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()}
        assert limits["Max address space"] == [str(1 << 30)] * 2
        assert int(limits["Max cpu time"][0]) < int(limits["Max cpu time"][1]) < 1000
        assert limits["Max file size"] == ["0", "0"]


def test_a_diff_that_takes_too_much_memory_or_time_is_refused_and_the_next_one_works() -> None:
    with environment() as env:
        *_, info = env.step("yes '' | head -c 15000000 >lines")
        assert "comparing its files takes more than 1073741824 bytes of memory" in info["patch"]
        *_, info = env.step("rm lines; echo z >z")
        assert "+++ b/z" in info["patch"]
    with environment(patch_cpu_s=0.05) as env:
        *_, info = env.step("base64 -w 4 /dev/zero | head -c 12000000 >m.py")
        assert "comparing its files takes more than 0.05 s of processor time" in info["patch"]
        *_, info = env.step("git checkout -q .; mkdir n; touch n/{1..3000}")
        assert "reading it takes more than 0.05 s of processor time" in info["patch"]
        *_, info = env.step("rm -r n; echo z >z")
        assert "+++ b/z" in info["patch"]
    assert len(differ().pids) <= 8


@pytest.mark.parametrize("tree", ["300 nested names of 250 bytes", "files that change"])
def test_a_tree_that_no_path_reaches_is_forked_and_restored(backend: str, tree: str) -> None:
    with environment(backend) as env:
        env.step(f"echo y >y; {TREES[tree]}")
        snapshot = env.snapshot()
        with closing(env.fork()) as twin:
            observation, *_, info = twin.step("cat y; echo z >z")
            assert observation.startswith("y\n") and "+++ b/z" in info["patch"] and "+++ b/y" in info["patch"]
        env.step("rm y")
        env.restore(snapshot)
        snapshot.discard()
        observation, *_, info = env.step("cat y")
        assert observation.startswith("y\n") and "+++ b/y" in info["patch"] and "+++ b/z" not in info["patch"]


def test_a_tree_of_any_depth_is_written(tmp_path: Path) -> None:
    for name in ("objects", "refs"):
        (tmp_path / name).mkdir()
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    objects = ObjectWriter(tmp_path / "objects")
    empty = objects.write("blob", b"")
    blobs = {f"{'d/' * 3000}f": (0o100644, empty), "d.x": (0o100644, empty), "d/d.x": (0o100755, empty)}
    root = objects.write_tree(blobs)
    assert git(tmp_path, "ls-tree", root).splitlines() == [
        f"100644 blob {empty}\td.x",  # a directory sorts as if its name ended with a slash
        f"040000 tree {git(tmp_path, 'rev-parse', f'{root}:d').strip()}\td",
    ]
    deepest = git(tmp_path, "rev-parse", f"{root}:{'d/' * 2999}d").strip()
    assert git(tmp_path, "ls-tree", deepest) == f"100644 blob {empty}\tf\n"
    assert git(tmp_path, "ls-tree", f"{root}:d").splitlines()[0] == f"100755 blob {empty}\td.x"
