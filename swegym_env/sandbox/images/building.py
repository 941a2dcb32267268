"""Making an image's directory with Apptainer and unsquashfs: pulling, building and unpacking.

Both are run as subprocesses with their messages read as they come: a pull that stalls is stopped, and a failure that
may pass (a busy registry, a broken connection) is retried.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import re
import secrets
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swegym_env.arguments import CheckedArguments
from swegym_env.errors import ConfigurationError, ImageError
from swegym_env.sandbox.images.references import Reference, mirrored
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.linux.processes import descendants, kill_one

__all__ = ["PullOptions", "Report", "make_image"]

Report = Callable[[str], None]  # called with one line of progress

_RANDOM = random.Random()  # a generator of its own: drawing a wait must not change what a seeded caller draws next

_SIF_ALIGNMENT = 4096
_SQUASHFS_MAGIC, _SQUASHFS_VERSION = b"hsqs", (4, 0)
_LONGEST_WAIT_S = 60.0
_LACKS_CAPABILITY = "Requesting capability set"
_FOREIGN_OWNER = re.compile(r"\b[Ll]chown\b.*(invalid argument|not permitted)")
_APPTAINER_PACKAGE = "scripts/install_apptainer.sh"
_TOOL_TIMEOUT_S = 3600.0
_POLL_S = 0.5
_KEPT_BYTES = 64 << 10
# Messages of registries, proxies and the network after which another try may succeed.
_TRANSIENT = re.compile(
    r"TOOMANYREQUESTS|toomanyrequests|too many requests|\b429\b|\b50[0234]\b|UNAVAILABLE|connection (reset|refused)"
    r"|unexpected EOF|\bEOF$|broken pipe|timeout|timed out|temporary failure|no such host|server misbehaving"
    r"|network is unreachable|TLS handshake|error verifying (size|sha256)|stream error|use of closed",
    re.IGNORECASE,
)


class _TransientImageError(ImageError):
    """A registry could not be reached or was too busy: another try may succeed."""


@dataclass(frozen=True)
class PullOptions(CheckedArguments):
    """How images are pulled from registries.

    Attributes:
        retries: how often to try again after a failure that may pass; None: `$SWEGYM_PULL_RETRIES`, or 4.
        first_wait_s: wait before the first retry; it doubles with each further one, and half of it is random.
        stall_s: seconds without any progress after which a try is stopped.
        mirror: other registries to pull from, see `references.mirrored`; None: `$SWEGYM_REGISTRY_MIRROR`.
        no_https: use HTTP; a registry on this machine itself is asked over HTTP in any case.
    """

    retries: int | None = None
    first_wait_s: float = 1.0
    stall_s: float = 120.0
    mirror: str | None = None
    no_https: bool = False

    def mirrors(self) -> str:
        """The mirrors to use, as `references.mirrored` reads them."""
        return os.environ.get("SWEGYM_REGISTRY_MIRROR", "") if self.mirror is None else self.mirror

    def tries(self) -> int:
        """The number of tries. Raises ConfigurationError where the environment variable is not a count."""
        if self.retries is not None:
            return 1 + self.retries
        text = os.environ.get("SWEGYM_PULL_RETRIES", "4")
        if not text.isdecimal():
            raise ConfigurationError(f"SWEGYM_PULL_RETRIES: expected a count, got {text!r}")
        return 1 + int(text)


def make_image(reference: Reference, target: Path, options: PullOptions, report: Report) -> None:
    """Fill the empty directory `target` with the root file system of `reference`.

    Raises:
        ImageError: it cannot be pulled, built or unpacked; one line that ends with the tool's last message.
    """
    if reference.kind == "sif":
        report("unpacking")
        _unpack(Path(reference.source), target, reference.text)
        return
    make = _build_recipe if reference.kind == "recipe" else _build_directory
    tries = 1 if reference.kind == "archive" else options.tries()
    wait_s = options.first_wait_s
    for number in range(1, tries + 1):
        try:
            make(target, reference, options, report)
            return
        except _TransientImageError as error:
            if number == tries:
                raise ImageError(f"{error} (tried {tries} times)" if tries > 1 else str(error)) from error
            report(f"{error}; trying again in {wait_s:.0f} s")
            time.sleep(wait_s * _RANDOM.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _build_directory(target: Path, reference: Reference, options: PullOptions, report: Report) -> None:
    """Let Apptainer pull from a registry, or read an archive, directly into a directory."""
    source, stall_s = reference.source, None
    if reference.kind == "registry":
        source, stall_s = mirrored(source, options.mirrors()), options.stall_s
    command = [
        _program("apptainer", reference.text, _APPTAINER_PACKAGE),
        "build",
        "--force",
        "--fix-perms",
        "--sandbox",
    ]
    if options.no_https or _is_on_this_machine(source):
        command.append("--no-https")
    with _scratch(target) as scratch:
        made = scratch / "root"  # a directory within: Apptainer replaces the one that it builds
        _run_tool([*command, str(made), source], reference.text, env=_tmpdir(scratch), report=report, stall_s=stall_s)
        _move_content(made, target)


def _is_on_this_machine(source: str) -> bool:
    host = source.partition("://")[2].partition("/")[0].rpartition(":")[0]
    return host in ("localhost", "127.0.0.1", "[::1]")


def _build_recipe(target: Path, reference: Reference, options: PullOptions, report: Report) -> None:
    """Build a definition file or a Dockerfile."""
    apptainer = _program("apptainer", reference.text, _APPTAINER_PACKAGE)
    path = Path(reference.source)
    if path.suffix == ".def":
        text = path.read_text(errors="surrogateescape")
    else:
        from spython.main.parse.parsers import DockerParser
        from spython.main.parse.writers import SingularityWriter

        try:
            text = str(SingularityWriter(DockerParser(str(path)).recipe).convert())
        except SystemExit as error:  # spython exits where it cannot translate a recipe
            raise ImageError(f"{reference.text}: spython cannot translate this Dockerfile. Try: a .def file") from error
    text, bases = _with_mirrors(text, options.mirrors())
    with _scratch(target) as scratch:
        definition = scratch / "image.def"
        definition.write_text(text, errors="surrogateescape")
        # An ordinary user builds as a fake root, whose files they could not change. Built as a SIF and unpacked from
        # it, the files belong to that user.
        made = scratch / ("root" if os.geteuid() == 0 else "image.sif")
        form = ["--sandbox"] if os.geteuid() == 0 else []
        if options.no_https or any(map(_is_on_this_machine, bases)):
            form.append("--no-https")
        command = [apptainer, "build", "--force", *form, str(made), str(definition)]
        for prefix in ([], ["unshare", "--user", "--map-root-user"]):
            try:
                _run_tool([*prefix, *command], reference.text, env=_tmpdir(scratch), cwd=path.parent, report=report)
                break
            except ImageError as error:
                # In many containers root lacks a capability; in a user namespace it has them all.
                if prefix or _LACKS_CAPABILITY not in str(error) or shutil.which("unshare") is None:
                    raise
        if made.is_dir():
            _move_content(made, target)
        else:
            _unpack(made, target, reference.text)


def _with_mirrors(definition: str, mirrors: str) -> tuple[str, list[str]]:
    """A definition whose base images come from mirrors, and the addresses of these bases."""
    lines, bases, bootstrap = [], [], ""
    for line in definition.splitlines():
        word, colon, value = (part.strip() for part in line.partition(":"))
        if colon and word.lower() == "bootstrap":
            bootstrap = value.lower()
        elif colon and word.lower() == "from" and bootstrap == "docker":
            bases.append(mirrored(f"docker://{value}", mirrors))
            line = f"From: {bases[-1].removeprefix('docker://')}"
            bootstrap = ""
        lines.append(line)
    return "\n".join(lines) + "\n", bases


def _tmpdir(scratch: Path) -> dict[str, str]:
    """Let Apptainer unpack on the disk of the result, unless the user chose another directory."""
    return {} if "APPTAINER_TMPDIR" in os.environ else {"APPTAINER_TMPDIR": str(scratch)}


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A temporary directory within `target`, and so on the same disk."""
    scratch = target / f".scratch-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        remove_tree(scratch)


def _move_content(source: Path, target: Path) -> None:
    for entry in list(source.iterdir()):
        entry.rename(target / entry.name)


def _unpack(sif: Path, target: Path, image: str) -> None:
    """Unpack the file system in a SIF into the empty directory `target`."""
    unsquashfs = _program("unsquashfs", image, "apt-get install squashfs-tools")
    offset = str(_squashfs_offset(sif, image))
    # Exit code 2 is for things that only root may write (devices, some attributes), which a sandbox does not need.
    options = ("-quiet", "-no-progress", "-no-xattrs", "-force", "-offset", offset, "-dest", str(target))
    _run_tool([unsquashfs, *options, str(sif)], image, accepted=(0, 2))


def _squashfs_offset(sif: Path, image: str) -> int:
    """Where the squashfs partition of a SIF begins: it is aligned, and its superblock has a magic and a version."""
    if not sif.stat().st_size:
        raise ImageError(f"{image}: the file is empty. Try: build or download it again")
    with sif.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for offset in range(0, len(content) - 96, _SIF_ALIGNMENT):
            version = struct.unpack_from("<HH", content, offset + 28)
            if content[offset : offset + 4] == _SQUASHFS_MAGIC and version == _SQUASHFS_VERSION:
                return offset
    raise ImageError(f"{image}: no squashfs file system in it; it is not a SIF, incomplete, or encrypted")


def _program(name: str, image: str, package: str) -> str:
    """The path of a tool. Raises ImageError, with how to install it."""
    found = shutil.which(name)
    if found is None:
        raise ImageError(f"{image}: needs {name}, which is not installed. Try: {package}")
    return found


def _run_tool(
    command: Sequence[str],
    image: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    report: Report | None = None,
    stall_s: float | None = None,
    accepted: tuple[int, ...] = (0,),
) -> None:
    """Run a tool until it exits. However this call ends, the tool and its children do not run on.

    Args:
        image: named in errors.
        env: variables in addition to the process's own.
        report: called with each line of standard error.
        stall_s: stop it if neither it nor its children read, write or compute for so long.
    Raises:
        _TransientImageError: it failed for a reason that may pass, or stalled.
        ImageError: it failed; the text ends with its last message.
    """
    name = Path(command[0]).name
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        messages = _read_messages(process, image, name, report, stall_s)
        code = process.wait()
    finally:
        if process.poll() is None:
            for pid in (*reversed(descendants(process.pid)), process.pid):
                kill_one(pid)
            process.wait()
        process.stderr.close()
    if code not in accepted:
        reason = _last_message(messages)
        if _FOREIGN_OWNER.search(reason):
            raise ImageError(
                f"{image}: what it copies belongs to another user, and {name} can keep that owner only as root. Try: "
                "build it as root, or with copies of your own (cp -r)"
            )
        kind = _TransientImageError if _TRANSIENT.search(reason) else ImageError
        raise kind(f"{image}: {name} exited with {code}: {reason}")


def _read_messages(
    process: subprocess.Popen[bytes], image: str, name: str, report: Report | None, stall_s: float | None
) -> bytes:
    """Read a tool's standard error to its end; returns the last of it. Raises if the tool stalls or takes too long."""
    assert process.stderr is not None
    stream = process.stderr.fileno()
    ready = select.poll()
    ready.register(stream, select.POLLIN)
    kept = line = b""
    began = active = time.monotonic()
    done = -1
    while True:
        if ready.poll(_POLL_S * 1000):
            piece = os.read(stream, 4096)
            if not piece:
                return kept
            kept = (kept + piece)[-_KEPT_BYTES:]
            *lines, line = (line + piece).split(b"\n")
            if report is not None:
                for complete in lines:
                    report(_plain(complete))
        now = time.monotonic()
        if now - began > _TOOL_TIMEOUT_S:
            raise ImageError(f"{image}: {name} did not finish within {_TOOL_TIMEOUT_S:.0f} s")
        if stall_s is not None:
            before, done = done, _work_done(process.pid)
            active = now if done != before else active
            if now - active > stall_s:
                raise _TransientImageError(f"{image}: {name} made no progress for {stall_s:.0f} s")


def _work_done(pid: int) -> int:
    """A number that grows while a process or one of its descendants reads, writes or computes."""
    total = 0
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(OSError, ValueError):
            counts = Path(f"/proc/{one}/io").read_text().split()
            total += int(counts[1]) + int(counts[3])  # rchar, wchar: sockets too
            times = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += int(times[11]) + int(times[12])
    return total


def _plain(line: bytes) -> str:
    """A line without colours and without the level that Apptainer prints before it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace"))
    return re.sub(r"^(INFO|WARNING|FATAL|ERROR)\s*:\s+", "", text.rpartition("\r")[2]).strip()


def _last_message(messages: bytes) -> str:
    """The last line, preceded by the last error before it: the last line is then only a consequence."""
    lines = [line for line in messages.splitlines() if _plain(line)]
    if not lines:
        return "nothing on standard error"
    errors = [_plain(line) for line in lines[:-1] if re.match(rb"(\x1b\[\d+m)*ERROR\b", line)]
    return "; ".join([*errors[-1:], _plain(lines[-1])])
