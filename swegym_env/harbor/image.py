"""From `environment/Dockerfile` to layers, without Docker: a layer for each RUN and COPY, over a root file system.

What FROM begins with: see `harbor.bases`; a base that is itself a Dockerfile is built the same way. Everything belongs
to the sandbox's one user, so USER and `--chown` change nothing; RUN has `fakeroot` where the image has it, so that
package managers work. A layer is cached by what it is made of: the layers below, the instruction, its variables and the
content that it copies. An instruction without an equivalent here is an ImageError.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import posixpath
import re
import shlex
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from swegym_env.errors import ConfigurationError, ImageError, LayerError
from swegym_env.harbor.bases import find_base, find_recipe, image_variables
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
from swegym_env.sandbox import Limits, SandboxSpec, start_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.local import LocalSandbox

__all__ = ["Built", "as_root", "build_image"]

_MOST_COPIED_BYTES = 1 << 30
_FETCHED = "/.fetched"
_PLATFORM = {"TARGETPLATFORM": "linux/amd64", "TARGETARCH": "amd64", "TARGETOS": "linux"}
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
    file = task.folder / "environment/Dockerfile"
    build = _Builder(task, backend, store or LayerStore()).build(file, f"{task.instance_id}: Dockerfile")
    return replace(build, workdir=task.workdir or build.workdir)


class _Builder:
    """Builds the Dockerfiles of a task: its own, and those of the bases in `$SWEGYM_BASE_IMAGES`."""

    def __init__(self, task: HarborTask, backend: str, store: LayerStore) -> None:
        self._task, self._backend, self._store = task, backend, store
        self._within: list[Path] = []  # files being built; a recipe whose base has its own name gets the usual image

    def build(self, file: Path, where: str) -> Built:
        """What the last stage of a Dockerfile makes; the context is its folder."""
        self._within.append(file)
        stages: dict[str, Built] = {}
        build: Built | None = None
        name, number = "", -1
        before, arguments = dict(_PLATFORM), dict[str, str]()
        for one in parse_dockerfile(file.read_text(encoding="utf-8", errors="replace"), where):
            at = f"{where}:{one.line}"
            if one.name == "ARG":
                scope = before if build is None else arguments
                known = {**scope, **({} if build is None else build.env)}
                for word in words_of(one, one.text, at):
                    argument, given, value = word.partition("=")
                    if given:
                        scope[argument] = expand(value, known)
                    elif argument in before:
                        scope[argument] = before[argument]
            elif one.name == "FROM":
                _, text = split_flags(expand(one.text, before))
                base, *words = text.split() or [""]
                if words and (len(words) != 2 or words[0].upper() != "AS"):
                    raise ImageError(f"{at}: FROM: expected IMAGE or IMAGE AS NAME, got {text!r}")
                build = stages.get(base.lower()) or self._base(base, at)
                name, number, arguments = words[1].lower() if words else "", number + 1, {}
            elif build is None:
                raise ImageError(f"{at}: {one.name}: expected FROM first")
            else:
                build = self._step(build, one, arguments, stages, file.parent, at)
            if build is not None:
                stages |= {name or str(number): build, str(number): build}
        self._within.pop()
        if build is None:
            raise ImageError(f"{where}: no FROM")
        return build

    def _base(self, name: str, at: str) -> Built:
        """What an image of a FROM begins with."""
        recipe = find_recipe(name)
        if recipe is not None and recipe not in self._within:
            return self.build(recipe, f"{at}: {recipe.name}")
        root = find_base(name, self._store, at)
        return Built(root, env={"PATH": _PATH, **image_variables(root)})

    def _step(
        self,
        build: Built,
        one: Instruction,
        arguments: Mapping[str, str],
        stages: Mapping[str, Built],
        context: Path,
        at: str,
    ) -> Built:
        """What an instruction after FROM makes of a build."""
        variables = {**arguments, **build.env}
        if one.name == "ENV":
            return replace(build, env={**build.env, **assignments(one, variables, at)})
        if one.name == "WORKDIR":
            workdir = posixpath.normpath(posixpath.join(build.workdir, expand(one.text.strip("\"'"), variables)))
            return self._made(replace(build, workdir=workdir), at, "mkdir", ["mkdir", "-p", workdir])
        if one.name == "SHELL":
            if not one.exec_form:
                raise ImageError(f'{at}: SHELL: expected ["program", …], got {one.text!r}')
            return replace(build, shell=tuple(one.exec_form))
        if one.name == "VOLUME":
            places = one.exec_form or words_of(one, expand(one.text, variables), at)
            return self._made(build, at, "volume", ["mkdir", "-p", *places])
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
            return self._made(build, at, "run", command, arguments=arguments)
        if one.name in ("COPY", "ADD"):
            command = ["tar", "-xf", "/.swegym/copied.tar", "-C", "/", "--no-same-owner", "--keep-directory-symlink"]
            return self._made(build, at, "copy", command, self._copied(build, one, variables, stages, context, at))
        if one.name in (*_NOTHING_TO_DO, "USER"):
            return build
        raise ImageError(f"{at}: {one.name}: there is no such instruction, or it cannot be made here")

    def _made(
        self,
        build: Built,
        at: str,
        kind: str,
        command: Sequence[str],
        archive: bytes = b"",
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
            with self._sandbox(build, env, workdir) as sandbox:
                if archive:
                    sandbox.write("/.swegym/copied.tar", archive)
                line = f"( {as_root(command)} )" if kind == "run" else f"( {shlex.join(command)} )"
                result = sandbox.run(line, timeout_s=self._task.build_timeout_s)
                if result.exit_code != 0:
                    lines = [line.strip() for line in result.output.splitlines() if line.strip()] or ["no output"]
                    last = next((line for line in lines if line.startswith(("E:", "ERROR", "fatal"))), lines[-1])
                    why = (
                        f"timed out after {self._task.build_timeout_s:g} s"
                        if result.timed_out
                        else f"exited with {result.exit_code}"
                    )
                    raise ImageError(f"{at}: {why}: {last[:300]}")
                [written] = sandbox.copy_layers(layer)
                remove_tree(written / "tmp/pip-cache")
            for entry in list(written.iterdir()):
                entry.rename(layer / entry.name)
            written.rmdir()

        try:
            layer = self._store.get_or_build(key, make)
        except LayerError as error:
            raise ImageError(f"{at}: {error}") from error
        return replace(build, layers=(*build.layers, layer))

    @contextmanager
    def _sandbox(self, build: Built, env: Mapping[str, str], workdir: str) -> Iterator[LocalSandbox]:
        """A sandbox of what is built so far, with the machine's network."""
        index = package_index()
        spec = SandboxSpec(
            str(build.root), build.layers, workdir, {**index.env, **env}, binds=index.binds, network=True,
            limits=_BUILD_LIMITS,
        )  # fmt: skip
        sandbox = start_sandbox(spec, backend=self._backend)
        try:
            if not isinstance(sandbox, LocalSandbox):
                raise ConfigurationError(f"{self._backend}: a Dockerfile is built on this machine only. Try: auto")
            yield sandbox
        finally:
            sandbox.close()

    def _copied(
        self,
        build: Built,
        one: Instruction,
        variables: Mapping[str, str],
        stages: Mapping[str, Built],
        context: Path,
        at: str,
    ) -> bytes:
        """What COPY and ADD copy, as an archive: files of the context, of another stage, or of another image."""
        flags, text = split_flags(expand(one.text, variables))
        words = replace(one, text=text).exec_form or words_of(one, text, at)
        if len(words) < 2:
            raise ImageError(f"{at}: {one.name}: expected sources and a destination, got {text!r}")
        *sources, target = words
        place = posixpath.join(build.workdir, target)
        mode = int(flags["chmod"], 8) if re.fullmatch(r"[0-7]+", flags.get("chmod", "")) else None
        buffer = io.BytesIO()
        documents = {end: expand(content, variables) if expands else content for end, content, expands in one.heredocs}
        with (
            tempfile.TemporaryDirectory() as folder,
            tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            if "from" in flags:
                other = stages.get(flags["from"].lower()) or self._base(flags["from"], at)
                context = self._fetch(other, sources, Path(folder), f"{at}: {one.name} --from={flags['from']}")
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
                if path.is_dir() and not path.is_symlink():
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
        return buffer.getvalue()

    def _fetch(self, other: Built, sources: Sequence[str], folder: Path, at: str) -> Path:
        """Copy `sources` from another build to a directory below `folder`, under the same paths; that directory."""
        # Patterns are those of the shell. Links that are named themselves are followed, as in Docker.
        wanted = " ".join(_quoted(posixpath.normpath(f"/{source}").lstrip("/") or ".") for source in sources)
        with self._sandbox(other, other.env, "/") as sandbox:
            result = sandbox.run(f"( mkdir {_FETCHED} && cd / && cp -rHx --parents -- {wanted} {_FETCHED} )")
            if result.exit_code != 0:
                raise ImageError(f"{at}: {(result.output.strip().splitlines() or ['no output'])[-1][:300]}")
            [written] = sandbox.copy_layers(folder)
        return written / _FETCHED.lstrip("/")


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


def _quoted(pattern: str) -> str:
    """A pattern for the shell, in which everything but `*`, `?` and brackets is quoted."""
    return re.sub(r"[^*?\[\]]+", lambda part: shlex.quote(part[0]), pattern)


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
