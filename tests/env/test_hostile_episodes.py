"""Random hostile episodes: whatever an agent makes in its sandbox, only documented exceptions come out of it.

Each example is one episode of a real environment. Its commands run a program that makes files of random names, kinds,
contents and modes, deep and wide trees, processes that change them meanwhile, and output of random bytes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swegym_env.env import SWEBenchEnv
from swegym_env.errors import SandboxError
from swegym_env.repo.patches import refusal
from tests.env.repo.test_hostile_files import TASK

PATCH_CPU_S = 3.0
LIMITS = {
    "disk_bytes": 64 << 20,
    "inodes": 20_000,
    "memory_bytes": 512 << 20,
    "patch_cpu_s": PATCH_CPU_S,
    "patch_files": 10_000,
    "patch_bytes": 16 << 20,
}
GROWTH_BYTES = 400 << 20  # of this process: several times what one patch may take

# Runs in the sandbox. An operation that fails is skipped.
PROGRAM = r"""
import os, shutil, socket, subprocess, sys
def chain(path, name, depth, last):
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open(last, os.O_CREAT | os.O_WRONLY, dir_fd=here))
def write(path, content, mode):
    with open(path, "wb") as file:
        file.write(content[0] * content[1])
    os.chmod(path, mode)
def many(path, name, number):
    for each in range(number):
        open(path + b"/" + name + b"%d" % each, "wb").close()
def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
def repository(path):
    subprocess.run(["git", "init", "-q", path], timeout=5)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", "--allow-empty"]
    subprocess.run(["git", "-C", path, *commit], timeout=5)
def change(path, other):
    if os.fork() == 0:
        os.setsid()
        for _ in range(3000):
            for act in (lambda: write(path, b"x", 0o644), lambda: os.unlink(path), lambda: os.mkdir(path),
                        lambda: os.rename(path, other), lambda: os.symlink(b"/etc", path), lambda: os.unlink(path),
                        lambda: os.mkfifo(path), lambda: os.unlink(path), lambda: os.rmdir(path)):
                try:
                    act()
                except OSError:
                    pass
        os._exit(0)
def output(one, other):
    os.write(1, one)
    os.write(2, other)
for operation, *arguments in operations:
    try:
        {"chain": chain, "write": write, "many": many, "sparse": sparse, "remove": remove, "repository": repository,
         "change": change, "output": output, "mkdir": os.makedirs, "symlink": os.symlink, "mkfifo": os.mkfifo,
         "link": os.link, "chmod": os.chmod, "rename": os.rename, "exit": os._exit,
         "socket": lambda path: socket.socket(socket.AF_UNIX).bind(path),
         "xattr": lambda path, name, value: os.setxattr(path, b"user." + name, value)}[operation](*arguments)
    except Exception:
        pass
"""

NAMES = [b".git", b".gitignore", b"HEAD", b"objects", b"m.py", b"pkg", b".wh.x", b".wh..wh..opq", b"x.log", b"a", b"b"]
ROOTS = [b"/testbed", b"/testbed", b"/testbed/pkg", b"/testbed/a", b"/testbed/a/b", b"/tmp", b"/home/agent", b"/"]
names = st.one_of(
    st.sampled_from(NAMES),
    st.binary(min_size=1, max_size=8).map(lambda name: name.replace(b"/", b"\n").replace(b"\0", b"\xff")),
    st.integers(200, 255).map(lambda length: b"n" * length),
)
paths = st.builds(
    lambda root, parts: b"/".join([root, *parts]), st.sampled_from(ROOTS), st.lists(names, min_size=1, max_size=3)
)
contents = st.one_of(  # a piece and how often it is repeated
    st.tuples(st.binary(max_size=200), st.just(1)),
    st.sampled_from([(b"*\n!*/\n", 1), (b"gitdir: /etc", 1), (b"ref: HEAD", 1), (b"ref:", 1), (b"\n", 300_000)]),
    st.just((b"**/a/" * 12 + b"x", 1)),
    st.tuples(st.just(b"\xff\0\n"), st.sampled_from([400, 300_000, 1_000_000])),
)
modes = st.sampled_from([0, 0o200, 0o444, 0o555, 0o644, 0o755, 0o777, 0o4755, 0o1777])
operations = st.one_of(
    st.tuples(st.just("write"), paths, contents, modes),
    st.tuples(st.just("mkdir"), paths, modes),
    st.tuples(st.just("chain"), st.sampled_from(ROOTS), names, st.sampled_from([1, 60, 700, 1500]), names),
    st.tuples(st.just("many"), st.sampled_from(ROOTS), names, st.sampled_from([3, 300, 2000, 11_000])),
    st.tuples(st.just("sparse"), paths, st.sampled_from([0, 1 << 20, 15 << 20, 17 << 20, 1 << 31])),
    st.tuples(st.just("symlink"), st.one_of(paths, st.sampled_from([b"/etc", b".", b"/proc/1/pagemap"])), paths),
    st.tuples(st.sampled_from(["link", "rename", "change"]), paths, paths),
    st.tuples(st.sampled_from(["mkfifo", "socket", "remove", "repository"]), paths),
    st.tuples(st.just("remove"), st.sampled_from([b"/testbed", b"/testbed/.git", b"/testbed/pkg", b"/testbed/m.py"])),
    st.tuples(st.just("rename"), st.sampled_from([b"/testbed", b"/testbed/pkg"]), paths),
    st.tuples(st.just("symlink"), st.just(b"/etc"), st.just(b"/testbed")),
    st.tuples(st.just("chain"), st.just(b"/testbed"), st.just(b"a"), st.just(60), st.just(b"f")),
    st.tuples(st.just("write"), st.just(b"/testbed/.gitignore"), contents, st.just(0o644)),
    st.tuples(st.just("chmod"), paths, modes),
    st.tuples(st.just("xattr"), paths, st.sampled_from([b"overlay.opaque", b"x"]), st.binary(max_size=8)),
    st.tuples(st.just("output"), st.binary(max_size=300), st.binary(max_size=300)),
    st.tuples(st.just("exit"), st.integers(0, 255)),
)
acts = st.one_of(
    st.lists(operations, min_size=1, max_size=6),
    st.lists(operations, min_size=1, max_size=6),
    st.sampled_from(["snapshot", "fork", "restore", "cd /testbed/a", "kill -9 $$", "printf '\\001x 0 /\\0' >&2"]),
)
episodes = st.tuples(st.lists(acts, min_size=1, max_size=5), st.sampled_from(["submit", "close", "reset"]))


def command(todo: list[tuple[Any, ...]]) -> str:
    """The action that carries out operations: as code, since an earlier one may have removed any file."""
    text = base64.b85encode(repr(todo).encode()).decode()
    return f"python3 - <<'EOF'\nimport base64\noperations = eval(base64.b85decode({text!r}))\n{PROGRAM}\nEOF"


@contextlib.contextmanager
def environment(reward: str, backend: str = "auto") -> Iterator[SWEBenchEnv]:
    env = SWEBenchEnv(
        tasks=[TASK],
        sandbox=backend,
        action_format="raw",
        max_turns=None,
        reward=reward,
        turn_timeout_s=10,
        tools=("bash", "submit"),
        limits=LIMITS,
        pool=0,
    )
    try:
        yield env
    finally:
        env.close()


def play(env: SWEBenchEnv, acts: list[Any], ending: str) -> None:
    """One episode, with the checks that hold for every one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    env.reset(seed=0)
    snapshots = []
    for act in [*acts, *(["submit"] if ending == "submit" else [])]:
        try:
            if act == "snapshot":
                snapshots.append(env.snapshot())
            elif act == "restore" and snapshots:
                env.restore(snapshots[-1])
            elif act == "fork":
                with contextlib.closing(env.fork()) as twin:
                    twin.step("echo x >>twin")
            elif act != "restore":
                action = act if isinstance(act, str) else command(act)
                began_s = time.process_time()
                _, _, terminated, truncated, info = env.step(action)
                assert time.process_time() - began_s < 2 * PATCH_CPU_S + 1
                assert not truncated, info["failure_reason"]
                assert "root:" not in info["patch"] or refusal(info["patch"])  # of the host's /etc/passwd
                if terminated:
                    assert info["valid"]
                    break
        except SandboxError:  # documented: the files cannot be copied, or the shell does not save its state
            assert act in ("snapshot", "restore", "fork")
            break
    for snapshot in snapshots:
        snapshot.discard()
    if ending == "close":
        env.close()
    env.reset(seed=0)
    observation, *_, info = env.step("echo $((6 * 7)) >new; cat new")
    assert "42" in observation and info["patch"].startswith("diff --git a/new b/new\n")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < GROWTH_BYTES


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes)
def test_no_episode_breaks_the_environment(episode: tuple[list[Any], str]) -> None:
    with environment("none") as env:
        play(env, *episode)


@pytest.mark.campaign
@settings(
    max_examples=int(os.environ.get("SWEGYM_HOSTILE_EPISODES", "100")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(episodes)
def test_no_episode_of_many_breaks_the_environment(backend: str, episode: tuple[list[Any], str]) -> None:
    """`make hostile-episodes` plays 1,000 on each back end."""
    with environment("resolved", backend) as env:
        play(env, *episode)
