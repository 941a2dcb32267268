"""`swegym doctor`: try what this machine can do; for what does not work, say what is lost and how to get it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from swegym_env.cli.options import add_command, add_json
from swegym_env.errors import SwegymError
from swegym_env.files import make_directory
from swegym_env.languages import Toolchain, language_of
from swegym_env.paths import run_dir, work_dir
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.client import disabled_features
from swegym_env.sandbox.filters import profile_path
from swegym_env.sandbox.identity import own_users
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.cgroups import make_group
from swegym_env.sandbox.linux.container import MASKED, READ_ONLY, SHARED_MEMORY_BYTES
from swegym_env.sandbox.linux.kernel import can_charge_others
from swegym_env.sandbox.linux.users import why_shared
from swegym_env.sandbox.local import LocalBackend
from swegym_env.tasks.datasets import load_tasks

__all__ = ["Finding", "add_parser", "can_run", "diagnose", "render", "rows_that_can_be_set_up"]

_TOOL_TIMEOUT_S = 20.0
_FREE_BYTES = 1 << 30


def add_parser(commands: Any) -> None:
    """Add `doctor` to the commands of `swegym`."""
    parser = add_command(
        commands, "doctor", _run, "try what this machine can do, and report what is missing", "swegym doctor"
    )
    parser.add_argument(
        "--dataset",
        action="append",
        help="count the rows of this dataset that can be set up here, by repository and toolchain (--json: with their "
        "ids); may be given again",
    )
    add_json(parser, "finding")


def _run(options: argparse.Namespace) -> int:
    if options.dataset:
        return _run_for_datasets(options)
    findings = diagnose()
    if options.json:
        for finding in findings:
            found = dataclasses.asdict(finding)
            del found["instances"], found["ready"]  # none of these is about rows
            print(json.dumps(found))
    else:
        print(render(findings))
    return 0 if can_run(findings) else 1


def _run_for_datasets(options: argparse.Namespace) -> int:
    complete = True
    for dataset in options.dataset:
        findings = rows_that_can_be_set_up(dataset)
        complete = complete and all(finding.ok for finding in findings)
        if options.json:
            for finding in findings:
                print(json.dumps({"dataset": dataset, **dataclasses.asdict(finding)}))
        else:
            print(f"{dataset}\n{render(findings)}\n{_total(findings)}")
    return 0 if complete else 1


def _total(findings: list[Finding]) -> str:
    """The line below the findings about a dataset's rows."""
    rows = sum(len(finding.instances) for finding in findings)
    possible = sum(len(finding.instances) for finding in findings if finding.ok)
    ready = sum(finding.ready for finding in findings)
    return f"{possible} of {rows} rows can be set up here, {ready} {'is' if ready == 1 else 'are'} set up already"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the check.
        ok: whether it works.
        detail: a version, a path, a time, or the reason of the failure.
        remedy: if it does not work, what is lost and what to do; else "".
        instances: ids of the rows that it is about, if it is about rows.
        ready: how many of these are set up.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    instances: tuple[str, ...] = ()
    ready: int = 0


_FEATURE_OF = {
    "overlay": "overlay",
    "cgroups": "cgroups",
    "CPU shares": "cgroups",
    "user ids": "users",
}
"""Check → the word of `SWEGYM_WITHOUT` that switches off what it checks."""


def diagnose() -> list[Finding]:
    """Try everything that matters by using it. Takes about a second."""
    with contextlib.ExitStack() as stack:
        return _diagnose(functools.cache(lambda: _trial(stack)))


def _diagnose(trial: Callable[[], Sandbox]) -> list[Finding]:
    def inside(check: Callable[[Sandbox], str]) -> str:
        return check(trial())

    checks: list[tuple[str, Callable[[], str], str]] = [
        ("Python", lambda: f"{sys.version.split()[0]} at {sys.executable}", "nothing runs"),
        ("git", partial(_run_tool, "git", "--version"), "repositories cannot be read. Install git"),
        ("work directory", lambda: _write_to(work_dir()), "images and layers cannot be stored. Set SWEGYM_WORKDIR"),
        (
            "run directory",
            _run_directory,
            "sandboxes cannot be stored. Set SWEGYM_RUNDIR to a directory that supports user xattrs",
        ),
        (
            "user namespaces",
            _user_namespaces,
            (
                "no sandbox without Apptainer. Try: sysctl user.max_user_namespaces=65536; on Ubuntu "
                "kernel.apparmor_restrict_unprivileged_userns=0"
            ),
        ),
        (
            "overlay",
            _overlay,
            (
                "ordinary users cannot stack layers. It needs Linux 5.11, and a SWEGYM_RUNDIR on tmpfs, ext4, xfs "
                "or btrfs"
            ),
        ),
        ("network isolation", _network_isolation, "sandboxes cannot be disconnected from the network"),
        (
            "apptainer",
            partial(_run_tool, "apptainer", "--version"),
            "images cannot be pulled or built. Try: scripts/install_apptainer.sh",
        ),
        *((f"{name} sandboxes", partial(_sandbox, name), make_backend(name).remedy) for name in LOCAL_BACKENDS),
        (
            "squashfs-tools",
            partial(_run_tool, "unsquashfs", "-version"),
            ".sif images cannot be unpacked. Install squashfs-tools",
        ),
        (
            "FUSE",
            _fuse,
            (
                "ordinary users cannot mount SIF images, and kernels without unprivileged overlay have no alternative. "
                "Install fuse-overlayfs, and check that /dev/fuse can be opened"
            ),
        ),
        ("images", _images, "images are pulled again. Set SWEGYM_WORKDIR to a directory that can be read"),
        (
            "cgroups",
            partial(_controller, "memory"),
            "memory is limited per process, not for a whole sandbox. Run as root, or delegate a cgroup",
        ),
        (
            "CPU shares",
            partial(_controller, "cpu"),
            (
                "one sandbox with many processes slows the others down, and limits of `cpus` have no effect. Run as "
                "root, or delegate a cgroup with the cpu controller"
            ),
        ),
        (
            "system call filter",
            partial(inside, _filter),
            "agents reach all of the kernel. It needs CONFIG_SECCOMP_FILTER, and no SWEGYM_WITHOUT=seccomp",
        ),
        ("masked /proc", partial(inside, _masked_proc), "agents read interrupts, keys and timers of the machine"),
        (
            "shared memory",
            partial(inside, _shared_memory),
            "/dev/shm of a sandbox grows to half of the machine's memory",
        ),
        (
            "cgroup namespace",
            partial(inside, partial(_own_namespace, "cgroup")),
            "agents read the names of control groups. It needs Linux 4.6",
        ),
        (
            "time namespace",
            partial(inside, partial(_own_namespace, "time")),
            "agents read how long the machine has been running. It needs Linux 6.3 with CONFIG_TIME_NS",
        ),
        (
            "user ids",
            _user_ids,
            "sandboxes share a user: one can take what the kernel counts by user (inotify, pipes, …) from all others",
        ),
        (
            "user charges",
            _user_charges,
            "watches of files and queued signals of all sandboxes together are limited. Run as root",
        ),
        (
            "GPU",
            partial(_run_tool, "nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"),
            "models train on the CPU",
        ),
    ]
    findings = []
    causes = dict[str, str]()  # what messages of failed checks contain → the first check with it
    places = {"work directory": work_dir, "run directory": run_dir}
    off = disabled_features()
    switched_off = f"switched off by SWEGYM_WITHOUT={os.environ['SWEGYM_WITHOUT']}" if off else ""
    if "tmpfs" in off:
        remedy = "what a sandbox writes has no file system of its own: its disk limit is measured from time to time"
        findings.append(Finding("writable layers", False, switched_off, remedy))
    for name, check, remedy in checks:
        if _FEATURE_OF.get(name) in off:
            findings.append(Finding(name, False, switched_off, remedy))
            continue
        try:
            findings.append(Finding(name, True, check()))
        except (_UnavailableError, SwegymError, OSError, subprocess.SubprocessError) as error:
            message = " ".join(str(error).split())
            cause = next((first for text, first in causes.items() if text in message), "")
            if cause:
                findings.append(Finding(name, False, f"fails with: {cause}"))
                continue
            findings.append(Finding(name, False, message, remedy))
            causes[message] = name
            if name in places:
                causes[str(places[name]())] = name
    return findings


def rows_that_can_be_set_up(dataset: str) -> list[Finding]:
    """One finding for each repository and toolchain of a dataset: how many rows they have, and what is missing.

    It also says how many of them are set up already. Nothing is fetched or built; the rows are loaded as by
    `load_tasks`.

    Raises:
        ConfigurationError: the dataset cannot be loaded.
    """
    instances = defaultdict[tuple[str, str, str], list[str]](list)
    ready = set[str]()
    installed = {record.key[-1] for record in LayerStore().records("installation").values()}
    for task in load_tasks(dataset, on_bad_row="skip"):
        recipe = language_of(task).find_recipe(task)
        if recipe is not None:
            toolchain = recipe.toolchain()
        elif task.files:
            toolchain = Toolchain("the machine's programs")
        elif task.image != "host":
            toolchain = Toolchain("its own image")
        else:
            unreached = language_of(task).unreached
            what = task.repo if unreached else f"{task.repo} {task.version}".rstrip()
            remedy = f"{unreached} with `setup`" if unreached else "an entry in $SWEGYM_SETUP_COMMANDS"
            toolchain = Toolchain(f"their images, or {remedy}", f"no set-up for {what}")
        instances[task.repo, toolchain.name, toolchain.problem].append(task.instance_id)
        if recipe is not None and task.base_commit in installed:
            ready.add(task.instance_id)
    return [
        Finding(
            repo,
            not problem,
            f"{len(ids)} row{'s' if len(ids) > 1 else ''}: {problem or name}" + _set_up(len(ready.intersection(ids))),
            f"these rows are invalid. They need {name}" if problem else "",
            tuple(ids),
            len(ready.intersection(ids)),
        )
        for (repo, name, problem), ids in sorted(instances.items())
    ]


def _set_up(rows: int) -> str:
    return f"; {rows} {'is' if rows == 1 else 'are'} set up" if rows else ""


def can_run(findings: list[Finding]) -> bool:
    """Whether an episode can be played here: git, work and run directory, and at least one back end work."""
    ok = {finding.name for finding in findings if finding.ok}
    return {"git", "work directory", "run directory"} <= ok and any(
        f"{name} sandboxes" in ok for name in LOCAL_BACKENDS
    )


def render(findings: list[Finding]) -> str:
    """The findings as a table: one line each, with the remedy below a failed check."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{'ok' if finding.ok else '--'}  {finding.name:{width}}  {finding.detail}")
        if finding.remedy:
            lines.append(f"    {'':{width}}  without it: {finding.remedy}")
    return "\n".join(lines)


class _UnavailableError(Exception):
    """The check failed; the message says why."""


def _run_tool(*command: str) -> str:
    """The first line that a program prints."""
    program = shutil.which(command[0])
    if program is None:
        raise _UnavailableError(f"no `{command[0]}` on PATH")
    done = _run_quietly(program, *command[1:])
    lines = (done.stdout or done.stderr).strip().splitlines() or [""]
    if done.returncode not in (0, 1) or not lines[0]:  # unsquashfs -version exits with 1
        raise _UnavailableError(f"`{' '.join(command)}` exited with {done.returncode}: {lines[-1]}")
    return lines[0]


def _run_quietly(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )


def _write_to(directory: Path) -> str:
    make_directory(directory)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        file.write(b"x")
        file.flush()
    free = shutil.disk_usage(directory).free
    if free < _FREE_BYTES:
        raise _UnavailableError(f"{directory} has {free >> 20} MiB free, less than {_FREE_BYTES >> 20}")
    return f"{directory}, {free >> 30} GiB free"


def _run_directory() -> str:
    directory = run_dir()
    written = _write_to(directory)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        os.setxattr(file.name, "user.swegym", b"y")
    return f"{written}, writable layers are stored there; supports user xattrs"


def _sandbox(backend: str) -> str:
    """Start, use and close two sandboxes: the first one also prepares what the others share."""
    tried = make_backend(backend)
    took = []
    for _ in range(2):
        begin = time.monotonic()
        problem = tried.problem(fresh=True)
        if problem:
            raise _UnavailableError(problem)
        took.append((time.monotonic() - begin) * 1000)
    manner = tried.manner() if isinstance(tried, LocalBackend) else ""
    detail = f"started, used without network and closed in {took[1]:.0f} ms, the first one in {took[0]:.0f} ms"
    return f"{detail}; {manner}" if manner else detail


def _unshare(what: str, *command: str) -> None:
    """Run a command as root of a new user namespace."""
    _run_tool("unshare", "--version")
    done = _run_quietly("unshare", "--user", "--map-root-user", *command)
    if done.returncode != 0:
        raise _UnavailableError(f"{what}: {(done.stderr.strip().splitlines() or ['refused'])[-1]}")


def _user_namespaces() -> str:
    _unshare("a user namespace cannot be created", "true")
    return "can be created"


def _overlay() -> str:
    """Mount an overlay in a user namespace, in the run directory, and write through it."""
    directory = run_dir()
    make_directory(directory, 0o711)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".doctor-") as place:
        script = (
            'cd "$0" && mkdir lower upper work root && mkdir lower/a && '
            "mount -t overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work none root && "
            "rmdir root/a && mkdir root/a && touch root/a/b && rm -r root/a && umount root && chmod 700 work/work"
        )
        _unshare("an overlay cannot be mounted", "--mount", "sh", "-c", script, place)
    return f"of the kernel, in {directory}, unprivileged (Linux {os.uname().release})"


def _network_isolation() -> str:
    _unshare("no network namespace can be created", "--net", "sh", "-c", "! tail -n +3 /proc/net/dev | grep -v ' lo:'")
    return "a new network namespace has only loopback"


def _fuse() -> str:
    with open("/dev/fuse", "r+b", buffering=0):
        pass
    program = shutil.which("fuse-overlayfs")
    if program is None:
        raise _UnavailableError("no `fuse-overlayfs` on PATH")
    return f"/dev/fuse opens (mode {os.stat('/dev/fuse').st_mode & 0o777:o}), {program}"


def _images() -> str:
    from swegym_env.sandbox.images import image_store

    stored = image_store().inventory()
    size = sum(image.size_bytes for image in stored)
    settings = [
        f"{name}={os.environ[name]}"
        for name in ("SWEGYM_IMAGE_BUDGET", "SWEGYM_REGISTRY_MIRROR", "APPTAINER_CACHEDIR")
        if os.environ.get(name)
    ]
    return ", ".join([f"{len(stored)} in {work_dir() / 'images'}, {size / (1 << 30):.1f} GiB", *settings])


def _controller(name: str) -> str:
    """Make a control group for a sandbox, and remove it."""
    limits = Limits()
    group = make_group(f"doctor-{os.getpid()}", limits.memory_bytes, limits.processes, limits.cpus)
    group.remove()
    if name not in group.directories:
        raise _UnavailableError(f"no cgroup that can limit {name} can be created")
    return f"{name} can be limited under {os.path.dirname(group.directories[name])}"


def _trial(stack: contextlib.ExitStack) -> Sandbox:
    """A sandbox of the first back end that works."""
    sandbox = stack.enter_context(contextlib.closing(open_sandbox(SandboxSpec(workdir="/tmp"))))
    sandbox.start()
    return sandbox


def _filter(sandbox: Sandbox) -> str:
    mode = sandbox.run("sed -n 's/^Seccomp:[^0-9]*//p' /proc/self/status").output.strip()
    if mode != "2":
        raise _UnavailableError(f"no filter is installed (mode {mode or 'unknown'})")
    return f"installed, from {profile_path()}"


def _masked_proc(sandbox: Sandbox) -> str:
    mounted = {line.split()[4] for line in sandbox.run("cat /proc/self/mountinfo").output.splitlines()}
    missing = {READ_ONLY, *MASKED} - mounted
    if missing:
        raise _UnavailableError(f"not masked: {', '.join(sorted(missing))}")
    return f"{READ_ONLY} is read-only, and {len(MASKED)} others are empty"


def _shared_memory(sandbox: Sandbox) -> str:
    blocks, block_bytes = map(int, sandbox.run("stat -f -c '%b %S' /dev/shm").output.split())
    if blocks * block_bytes != SHARED_MEMORY_BYTES:
        has, expected = blocks * block_bytes >> 20, SHARED_MEMORY_BYTES >> 20
        raise _UnavailableError(f"/dev/shm of a sandbox has {has} MiB, expected {expected}")
    return f"each sandbox has a /dev/shm of its own, of {SHARED_MEMORY_BYTES >> 20} MiB"


def _own_namespace(kind: str, sandbox: Sandbox) -> str:
    place = f"/proc/self/ns/{kind}"
    if not os.path.exists(place):
        raise _UnavailableError(f"Linux {os.uname().release} has no {kind} namespaces")
    if sandbox.run(f"readlink {place}").output.strip() == os.readlink(place):
        raise _UnavailableError("a sandbox has that of its owner")
    return "each sandbox has its own"


def _user_ids() -> str:
    if not own_users():
        reason = "needs root" if os.geteuid() else f"needs Linux 5.19, this is {os.uname().release}"
        raise _UnavailableError(f"a user for every sandbox {reason}")
    first, count, on_disk = own_users()
    places = [str(place) for place in (run_dir(), work_dir()) if place.is_dir()]
    if problem := why_shared(first, count, on_disk, places):
        raise _UnavailableError(f"a user for every sandbox: {problem}")
    return f"one for every sandbox, of the {count} from {first} on"


def _user_charges() -> str:
    if not can_charge_others():
        raise _UnavailableError("all sandboxes count for this user")
    return "count for each sandbox's user"
