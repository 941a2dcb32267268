"""From `environment/Dockerfile` to layers, without Docker: a base of Debian's packages, a layer for each RUN and COPY.

    FROM debian:SUITE, buildpack-deps:SUITE   Debian's own packages, by mmdebstrap
    FROM ubuntu:VERSION                       the Debian release of the same age
    FROM python:3.X                           the Debian release with this Python, or this machine's own interpreter
    $SWEGYM_BASE_IMAGES                       a folder of root file systems, used first: `NAME:TAG`, `_` for `/`

Everything belongs to the sandbox's one user, so USER and `--chown` change nothing; RUN has `fakeroot` where the image
has it, so that package managers work. A layer is cached by what it is made of: the layers below, the instruction, its
variables and the content that it copies. An instruction without an equivalent here is an ImageError.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from swegym_env.errors import ConfigurationError, ImageError, LayerError
from swegym_env.harbor.dockerfile import (
    Instruction,
    assignments,
    expand,
    parse_dockerfile,
    split_flags,
    words_of,
)
from swegym_env.harbor.tasks import HarborTask, tree_files
from swegym_env.languages.package_index import package_index
from swegym_env.languages.python.interpreters import find_interpreter
from swegym_env.sandbox import Limits, SandboxSpec, start_sandbox
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.images.store import check_root, settle
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.local import LocalSandbox

__all__ = ["Built", "as_root", "build_image", "find_base"]

_MIRROR = "http://deb.debian.org/debian"
_SUITES = ("bullseye", "bookworm", "trixie")
_OF_NUMBER = {"11": "bullseye", "12": "bookworm", "13": "trixie", "latest": "trixie", "stable": "trixie"}
_OF_UBUNTU = {"20.04": "bullseye", "22.04": "bookworm", "24.04": "trixie", "latest": "trixie", "focal": "bullseye",
              "jammy": "bookworm", "noble": "trixie"}  # fmt: skip
_OF_PYTHON = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
_MOST_COPIED_BYTES = 1 << 30
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOTHING_TO_DO = frozenset({"LABEL", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER", "CMD", "ENTRYPOINT"})
_BUILD_LIMITS = Limits(
    memory_bytes=16 << 30, cpus=float(os.cpu_count() or 1), processes=4096, file_size_bytes=8 << 30,
    disk_bytes=16 << 30, inodes=4_000_000, output_bytes=1 << 20,
)  # fmt: skip


@dataclass(frozen=True)
class Built:
    """What a Dockerfile makes.

    Attributes:
        root: the root file system of the base.
        layers: over it, bottom first.
        env: variables that it sets.
        workdir: where commands begin.
        shell: that runs shell forms.
    """

    root: Path
    layers: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    shell: tuple[str, ...] = ("/bin/sh", "-c")

    def spec(self, limits: Limits, *, network: bool = False, env: Mapping[str, str] | None = None) -> SandboxSpec:
        """A sandbox of it."""
        index = package_index() if network else None
        variables = {"HOME": "/root", "PATH": _PATH, **(index.env if index else {}), **self.env, **(env or {})}
        binds = index.binds if index else {}
        return SandboxSpec(
            str(self.root), self.layers, self.workdir, variables, binds=binds, network=network, limits=limits
        )


def as_root(command: Sequence[str]) -> str:
    """A shell command that runs `command` and what it starts as a user that seems to be root, if the image can."""
    # It ignores a chown that is not permitted; in a user namespace an unknown owner is invalid instead.
    words, begin = shlex.join(command), "FAKEROOTDONTTRYCHOWN=1 /usr/bin/fakeroot --"
    return f"if [ -x /usr/bin/fakeroot ]; then {begin} {words}; else {words}; fi"


def build_image(task: HarborTask, *, backend: str = "auto", store: LayerStore | None = None) -> Built:
    """The layers of a task's Dockerfile, built unless this machine has them.

    Raises:
        ImageError: it cannot be built; one line with the instruction's place and the last line of its output.
        LayerError, SandboxError: see there.
    """
    store = store or LayerStore()
    context = task.folder / "environment"
    where = f"{task.instance_id}: Dockerfile"
    instructions = parse_dockerfile((context / "Dockerfile").read_text(encoding="utf-8", errors="replace"), where)
    build, arguments = None, {"TARGETPLATFORM": "linux/amd64", "TARGETARCH": "amd64", "TARGETOS": "linux"}
    for one in instructions:
        at = f"{where}:{one.line}"
        if one.name == "ARG":
            for word in words_of(one, one.text, at):
                name, _, value = word.partition("=")
                arguments.setdefault(name, expand(value, {**arguments, **(build.env if build else {})}))
        elif one.name == "FROM":
            if build is not None:
                raise ImageError(f"{at}: a second FROM: a build in several stages cannot be made here")
            _, text = split_flags(expand(one.text, arguments))
            build = Built(find_base(text.split()[0], store, at))
        elif build is None:
            raise ImageError(f"{at}: {one.name}: expected FROM first")
        else:
            build = _step(build, one, arguments, context, task, backend, store, at)
    if build is None:
        raise ImageError(f"{where}: no FROM")
    return replace(build, workdir=task.workdir or build.workdir)


def _step(
    build: Built,
    one: Instruction,
    arguments: Mapping[str, str],
    context: Path,
    task: HarborTask,
    backend: str,
    store: LayerStore,
    at: str,
) -> Built:
    """What an instruction after FROM makes of a build."""
    variables = {**arguments, **build.env}
    if one.name == "ENV":
        return replace(build, env={**build.env, **assignments(one, variables, at)})
    if one.name == "WORKDIR":
        workdir = posixpath.normpath(posixpath.join(build.workdir, expand(one.text.strip("\"'"), variables)))
        return _made(replace(build, workdir=workdir), at, "mkdir", ["mkdir", "-p", workdir], b"", task, backend, store)
    if one.name == "SHELL":
        if not one.exec_form:
            raise ImageError(f'{at}: SHELL: expected ["program", …], got {one.text!r}')
        return replace(build, shell=tuple(one.exec_form))
    if one.name == "VOLUME":
        places = one.exec_form or words_of(one, expand(one.text, variables), at)
        return _made(build, at, "volume", ["mkdir", "-p", *places], b"", task, backend, store)
    if one.name == "RUN":
        flags, text = split_flags(one.text)
        if unknown := set(flags) - {"mount", "network", "security"}:
            raise ImageError(f"{at}: RUN: unknown flag --{min(unknown)}")
        if any(kind in flags.get("mount", "") for kind in ("secret", "ssh", "bind")):
            raise ImageError(f"{at}: RUN --mount={flags['mount']}: only caches can be left out")
        script = "".join(f"{content}{end}\n" for end, content, _ in one.heredocs)
        plain = replace(one, text=text)
        if one.heredocs and re.fullmatch(r"<<-?\s*\S+", text.strip()):
            command = [*build.shell, one.heredocs[0][1]]
        else:
            command = plain.exec_form or [*build.shell, f"{text}\n{script}"]
        return _made(build, at, "run", command, b"", task, backend, store, arguments=arguments)
    if one.name in ("COPY", "ADD"):
        return _copied(build, one, variables, context, task, backend, store, at)
    if one.name in (*_NOTHING_TO_DO, "USER"):
        return build
    raise ImageError(f"{at}: {one.name}: there is no such instruction, or it cannot be made here")


def _made(
    build: Built,
    at: str,
    kind: str,
    command: Sequence[str],
    archive: bytes,
    task: HarborTask,
    backend: str,
    store: LayerStore,
    *,
    arguments: Mapping[str, str] | None = None,
) -> Built:
    """The build with one more layer: what `command` changes, with `archive` as its input."""
    workdir = "/" if kind in ("mkdir", "volume", "copy") else build.workdir
    env = {"HOME": "/root", "PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive", **(arguments or {}), **build.env}
    content = hashlib.sha256(archive).hexdigest()
    below = build.layers[-1].name if build.layers else str(build.root)
    key = ("harbor", kind, below, workdir, repr(sorted(env.items())), repr(list(command)), content)

    def make(layer: Path) -> None:
        index = package_index()
        spec = SandboxSpec(
            str(build.root), build.layers, workdir, {**index.env, **env}, binds=index.binds, network=True,
            limits=_BUILD_LIMITS,
        )  # fmt: skip
        sandbox = start_sandbox(spec, backend=backend)
        try:
            if not isinstance(sandbox, LocalSandbox):
                raise ConfigurationError(f"{backend}: a Dockerfile is built on this machine only. Try: auto")
            if archive:
                sandbox.write("/.swegym/copied.tar", archive)
            line = f"( {as_root(command)} )" if kind == "run" else f"( {shlex.join(command)} )"
            result = sandbox.run(line, timeout_s=task.build_timeout_s)
            if result.exit_code != 0:
                lines = [line.strip() for line in result.output.splitlines() if line.strip()] or ["no output"]
                last = next((line for line in lines if line.startswith(("E:", "ERROR", "fatal"))), lines[-1])
                why = (
                    f"timed out after {task.build_timeout_s:g} s"
                    if result.timed_out
                    else f"exited with {result.exit_code}"
                )
                raise ImageError(f"{at}: {why}: {last[:300]}")
            [written] = sandbox.copy_layers(layer)
            remove_tree(written / "tmp/pip-cache")
        finally:
            sandbox.close()
        for entry in list(written.iterdir()):
            entry.rename(layer / entry.name)
        written.rmdir()

    try:
        layer = store.get_or_build(key, make)
    except LayerError as error:
        raise ImageError(f"{at}: {error}") from error
    return replace(build, layers=(*build.layers, layer))


def _copied(
    build: Built,
    one: Instruction,
    variables: Mapping[str, str],
    context: Path,
    task: HarborTask,
    backend: str,
    store: LayerStore,
    at: str,
) -> Built:
    """COPY and ADD: files of the context, as an archive that is unpacked inside."""
    flags, text = split_flags(expand(one.text, variables))
    if "from" in flags:
        raise ImageError(f"{at}: {one.name} --from={flags['from']}: another image or stage cannot be copied from here")
    words = replace(one, text=text).exec_form or words_of(one, text, at)
    if len(words) < 2:
        raise ImageError(f"{at}: {one.name}: expected sources and a destination, got {text!r}")
    *sources, target = words
    place = posixpath.join(build.workdir, target)
    mode = int(flags["chmod"], 8) if re.fullmatch(r"[0-7]+", flags.get("chmod", "")) else None
    buffer = io.BytesIO()
    documents = {end: expand(content, variables) if expands else content for end, content, expands in one.heredocs}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        found: list[Path] = []
        for source in sources:
            if match := re.fullmatch(r"<<-?(\w+)", source):
                name = posixpath.join(place, match[1]) if target.endswith("/") else place
                _add(tar, name, documents[match[1]].encode(), mode or 0o644)
                continue
            if re.match(r"(https?|git|ssh)://|git@", source):
                raise ImageError(f"{at}: {one.name} {source}: expected files of the task; fetch it with RUN")
            found += _sources(context, source, at)
        several = len(found) > 1 or target.endswith("/") or target in (".", "..")
        for path in found:
            if path.is_dir():
                tar.addfile(_info(place, 0o755, kind=tarfile.DIRTYPE))
                ignored = _Ignored(context)
                for inner in tree_files(path):
                    if not ignored(inner) and inner != path:
                        _add_path(tar, inner, posixpath.join(place, inner.relative_to(path).as_posix()), mode)
            elif one.name == "ADD" and tarfile.is_tarfile(path):
                with tarfile.open(path) as inside:
                    for member in inside:
                        content = inside.extractfile(member) if member.isreg() else None
                        member.name = posixpath.join(place, member.name)[1:]
                        tar.addfile(member, content)
            else:
                _add_path(tar, path, posixpath.join(place, path.name) if several else place, mode)
    if buffer.tell() > _MOST_COPIED_BYTES:
        raise ImageError(f"{at}: {one.name}: {buffer.tell()} bytes, more than {_MOST_COPIED_BYTES}")
    command = ["tar", "-xf", "/.swegym/copied.tar", "-C", "/", "--no-same-owner", "--keep-directory-symlink"]
    return _made(build, at, "copy", command, buffer.getvalue(), task, backend, store)


def _sources(context: Path, source: str, at: str) -> list[Path]:
    """The files and directories of the context that a source names."""
    pattern = posixpath.normpath(source.lstrip("/")) or "."
    if pattern.startswith(".."):
        raise ImageError(f"{at}: {source}: outside of the context")
    found = [context] if pattern == "." else sorted(context.glob(pattern))
    found = [path for path in found if path.resolve().is_relative_to(context.resolve()) and not _Ignored(context)(path)]
    if not found:
        raise ImageError(f"{at}: {source}: no such file in environment/")
    return found


class _Ignored:
    """Whether `.dockerignore` excludes a path; the last pattern that fits decides."""

    def __init__(self, context: Path) -> None:
        file = context / ".dockerignore"
        lines = file.read_text().splitlines() if file.is_file() else []
        self._context = context
        self._patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def __call__(self, path: Path) -> bool:
        name, excluded = path.relative_to(self._context).as_posix(), False
        for pattern in self._patterns:
            plain = pattern.lstrip("!").strip("/")
            parents = [name, *(str(parent) for parent in Path(name).parents)]
            if any(fnmatch.fnmatchcase(each, plain.replace("**/", "*")) for each in parents if each != "."):
                excluded = not pattern.startswith("!")
        return excluded


def _info(name: str, mode: int, *, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name.lstrip("/"))
    info.type, info.mode, info.size, info.mtime = kind, mode, size, 0
    return info


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    tar.addfile(_info(name, mode, size=len(content)), io.BytesIO(content))


def _add_path(tar: tarfile.TarFile, path: Path, name: str, mode: int | None) -> None:
    """Add a file, a link or an empty directory, with a time that does not change from clone to clone."""
    if path.is_symlink():
        info = _info(name, 0o777, kind=tarfile.SYMTYPE)
        info.linkname = os.readlink(path)
        tar.addfile(info)
    elif path.is_dir():
        tar.addfile(_info(name, 0o755, kind=tarfile.DIRTYPE))
    else:
        _add(tar, name, path.read_bytes(), mode or (0o755 if os.access(path, os.X_OK) else 0o644))


def find_base(name: str, store: LayerStore, at: str) -> Path:
    """The root file system for the image `name` of a FROM.

    Raises:
        ImageError: it is none of those that can be made here.
    """
    name = name.partition("@")[0]
    folder = os.environ.get("SWEGYM_BASE_IMAGES")
    if folder:
        given = Path(folder).expanduser() / name.replace("/", "_")
        if given.is_dir():
            return check_root(given, name)
    repository, _, tag = name.removeprefix("docker.io/").removeprefix("library/").partition(":")
    words = set(re.split(r"[-:]", tag or "latest"))
    suite = next((each for each in _SUITES if each in words), "")
    python = ""
    if repository in ("debian", "buildpack-deps"):
        suite = suite or next(
            (_OF_NUMBER[word.split(".")[0]] for word in words if word.split(".")[0] in _OF_NUMBER), ""
        )
    if repository in ("ubuntu", "buildpack-deps"):
        suite = suite or next((_OF_UBUNTU[word] for word in words if word in _OF_UBUNTU), "")
    elif repository == "python":
        version = re.match(r"(3\.\d+)", tag)
        python = version[1] if version else "3.13"
        suite = suite or _OF_PYTHON.get(python, "bookworm")
    elif repository != "debian":
        suite = ""
    if not suite:
        raise ImageError(
            f"{at}: FROM {name}: made here are debian:, ubuntu:, python: and buildpack-deps:. "
            "Try: a root file system of it in $SWEGYM_BASE_IMAGES"
        )
    parts = (repository == "buildpack-deps") * "build" or ("slim" not in words and repository == "python") * "build"
    return store.get_or_build(("base", suite, python, parts), lambda layer: _bootstrap(layer, suite, python, parts, at))


def _bootstrap(target: Path, suite: str, python: str, parts: str, at: str) -> None:
    """Fill `target` with a Debian of `suite`, and a Python as the official images have it, in `/usr/local/bin`."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ImageError(f"{at}: Debian's packages are put together by mmdebstrap. Try: apt-get install mmdebstrap")
    packages = ["ca-certificates", "fakeroot", "bash", "tar"]
    if parts:
        packages += ["build-essential", "git", "curl", "wget", "procps", "unzip", "xz-utils"]
    of_debian = python and _OF_PYTHON.get(python) == suite
    if python:
        packages += (
            ["python3", "python3-pip", "python3-venv", "python3-dev"] if of_debian else ["libsqlite3-0", "libffi8"]
        )
        packages += [] if of_debian else ["libreadline8", "libncursesw6", "libbz2-1.0", "liblzma5", "openssl"]
    command = [
        program, "--mode=root", "--variant=minbase", "--format=directory", f"--include={','.join(packages)}",
        "--aptopt=Acquire::Languages \"none\"", suite, str(target / ".made"), _MIRROR,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("E:")] or ran.stderr.splitlines()[-1:]
        raise ImageError(f"{at}: mmdebstrap {suite}: {' '.join(lines)[:300]}")
    root = target / ".made"
    (root / "etc/apt/apt.conf.d/99sandbox").write_text('APT::Sandbox::User "root";\n')
    if python:
        _install_python(root, python, bool(of_debian))
    settle(root)
    for entry in list(root.iterdir()):
        entry.rename(target / entry.name)
    root.rmdir()
    own(target)


def _install_python(root: Path, version: str, of_debian: bool) -> None:
    """`python`, `python3` and `pip` in `/usr/local/bin`: of Debian's packages, or this machine's interpreter."""
    programs = root / "usr/local/bin"
    if of_debian:
        for name, target in {"python": "python3", "python3": "python3", "pip": "pip3", "pip3": "pip3"}.items():
            (programs / name).symlink_to(f"/usr/bin/{target}")
        for marker in (root / "usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        return
    found = find_interpreter(version)
    place = root / found.prefix.relative_to("/")
    shutil.copytree(
        found.prefix, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "test", "site-packages")
    )
    pip = f'#!/bin/sh\nexec {found.prefix}/bin/python{version} -m pip "$@"\n'
    for name in ("python", "python3", f"python{version}"):
        (programs / name).symlink_to(found.executable)
    subprocess.run(["chroot", str(root), str(found.executable), "-m", "ensurepip"], check=False, capture_output=True)
    for name in ("pip", "pip3"):
        (programs / name).write_text(pip)
        (programs / name).chmod(0o755)
