"""Repository layers: one commit of a task's repository, and nothing of what came after it.

A SWE-bench task is unfair when the fix can be read from git. So a layer holds a new repository with the one commit: no
remote, tag, reflog, pack or object of another. The files lie under `testbed/`, and the layer is mounted as `/testbed`.
They come from a clone or URL, from the task itself, or from an image: the official ones hold their repository in
`/testbed`, built, with a Python environment beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.files import make_directory
from swegym_env.paths import expand
from swegym_env.repo.git import Git
from swegym_env.repo.objects import write_repository
from swegym_env.repo.single_commit import commit_files, commit_patch, initialize, list_tracked, seal
from swegym_env.sandbox.identity import own, sandbox_user
from swegym_env.sandbox.images import resolve_image
from swegym_env.sandbox.layers import LayerStore, Provenance, mark_opaque

__all__ = [
    "files_layer",
    "find_repository",
    "image_environment",
    "image_repository_layer",
    "is_url",
    "repository_layer",
    "source_problem",
    "submodule_layer",
]

_REVISION = re.compile(r"[0-9a-f]{7,40}(~[1-9])?")
_URL = re.compile(r"^([a-z][a-z0-9+.-]*://|[^/\s]+@[^/\s]+:)", re.IGNORECASE)
_FETCH_TIMEOUT_S = 3600.0
_TESTBED = "testbed"
_CONDA = ("opt/miniconda3", "opt/conda", "opt/anaconda3")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# R2E-Gym's images keep the hidden tests and their outcomes beside the repository and in it.
_HIDDEN = ("r2e_tests", "run_tests.sh", "expected_test_output.json", "execution_result.json", "parsed_commit.json")


def repository_layer(
    name: str,
    commit: str,
    *,
    source: str | os.PathLike[str] | None = None,
    patch: str = "",
    store: LayerStore | None = None,
) -> Path:
    """The layer with the repository `name` (owner/name) at `commit`, built if this machine does not have it.

    Args:
        commit: 40 hex digits; with a whole clone also a shortened one, or `…~1`.
        source: where git repositories come from: a directory of clones named `owner+name`, `owner+name/repo`,
            `owner/name` or `name`, each with or without `.git`; one clone; or a URL. None: `https://github.com/…`.
        patch: applied on the commit, and part of the only commit that the layer has.
        store: None: the store in `work_dir()`.
    Raises:
        RepositoryError: git is missing, or there is no such repository or commit.
    """
    store = store or LayerStore()
    if not _REVISION.fullmatch(commit):
        raise RepositoryError(f"{name}: base_commit must be 40 hex digits, got {commit!r}")
    key = ("repository", name, commit, *([patch] if patch else []))
    if store.find(key, Provenance()) is None:
        location = find_repository(name, source)
        if not is_url(location) and len(commit) == 40:
            # A whole clone that appears later gives a whole layer.
            missing = _list_objects(f"{name} at {commit[:12]} from {location}", location, commit)[1]
            key = (*key, "without", *missing) if missing else key
    return store.get_or_build(
        key,
        lambda layer: _export_commit(name, find_repository(name, source), commit, patch, layer / _TESTBED),
        Provenance(),
    )


def submodule_layer(
    name: str, repository: Path, path: str, *, source: str | os.PathLike[str] | None = None, store: LayerStore
) -> Path:
    """The layer with the files of a git submodule, without a repository of their own.

    Args:
        name: of the repository that has it, for errors.
        repository: the layer of that repository: its commit names the submodule's commit, `.gitmodules` its address.
        path: of the submodule in the repository.
        source, store: as of `repository_layer`; a directory of clones has the submodule under its own owner and name.
    Raises:
        RepositoryError: there is no such submodule, or no clone of it with that commit.
    """
    testbed = repository / _TESTBED
    git = Git(f"{name}: submodule {path}", testbed)
    _, kind, commit = [*git.text("ls-tree", "HEAD", "--", path).split(), "", "", ""][:3]
    addresses = git.text("config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.(path|url)$").splitlines()
    settings = dict(line.split(" ", 1) for line in addresses)
    section = next((key.removesuffix("path") for key, place in settings.items() if place == path), "")
    url = settings.get(f"{section}url", "")
    if kind != "commit" or not is_url(url):
        raise RepositoryError(f"{name}: expected a submodule with an address in {path}, got {kind or 'nothing'} {url}")
    owner, short = url.removesuffix(".git").replace(":", "/").split("/")[-2:]

    def export(layer: Path) -> None:
        place = layer / _TESTBED / path
        location = url if source is None else find_repository(f"{owner}/{short}", source)
        for directory in reversed(place.relative_to(layer).parents[:-1]):
            (layer / directory).mkdir()
            own(layer / directory)
        _export_commit(f"{owner}/{short}", location, commit, "", place)
        shutil.rmtree(place / ".git")

    return store.get_or_build(("submodule", url, commit, path), export, Provenance())


def find_repository(name: str, source: str | os.PathLike[str] | None = None) -> str:
    """The path or URL from which git can fetch the repository `name`; `source` as in `repository_layer`.

    Raises:
        RepositoryError: `source` is a directory without that repository.
    """
    if source is None:
        return f"https://github.com/{name}"
    text = os.fspath(source)
    if is_url(text):
        return text
    directory = expand(text).absolute()
    owner, _, short = name.partition("/")
    stems = (f"{owner}+{short}", f"{owner}/{short}", f"{owner}__{short}", short)
    candidates = [directory / f"{stem}{suffix}" for stem in stems for suffix in ("", ".git", "/repo", "/repo.git")]
    for candidate in (directory, *candidates):
        is_bare = (candidate / "HEAD").is_file() and (candidate / "objects").is_dir()
        if is_bare or (candidate / ".git").exists():
            return str(candidate)
    raise RepositoryError(
        f"no clone of {name} under {directory}: looked for {owner}+{short}, {owner}/{short} and {short}. "
        f"Try: git clone --bare https://github.com/{name} {directory}/{owner}+{short}"
    )


def source_problem(source: str | os.PathLike[str] | None) -> str:
    """Why `source`, as in `repository_layer`, can be the source of no repository; empty if it can."""
    if source is None:
        return ""
    given: object = source
    named = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if named and (is_url(named) or expand(named).is_dir()):
        return ""
    reason = ": no such directory" if named else ""
    return f"repos: expected a directory of clones, a clone, or a URL, got {named or source!r}{reason}"


def is_url(place: str) -> bool:
    """Whether git takes `place` for an address and not for a path."""
    return bool(_URL.match(place))


def files_layer(files: Mapping[str, str], store: LayerStore | None = None) -> Path:
    """The layer with a repository of one commit that holds `files` (path → text).

    Raises:
        RepositoryError: a path lies outside the repository.
    """

    def write(layer: Path) -> None:
        for path in files:
            parts = path.split("/")
            outside = path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path
            if outside or ".git" in (part.lower() for part in parts):
                raise RepositoryError(f"files: {path!r} is no path inside a repository")
        testbed = layer / _TESTBED
        make_directory(testbed)
        user = sandbox_user()
        write_repository(testbed, files, owner=None if user == (os.geteuid(), os.getegid()) else user)
        own(testbed)
        mark_opaque(testbed / ".git")

    key = ("files", *(part for path in sorted(files) for part in (path, files[path])))
    return (store or LayerStore()).get_or_build(key, write)


def image_repository_layer(
    image: str, commit: str, *, place: str = "/testbed", patch: str = "", store: LayerStore | None = None
) -> Path | None:
    """The layer with the repository that an image has in `place`; None where it has none.

    The image's git history may reach past the base commit, and its git configuration is not trusted. So the files are
    copied, those that are not tracked (compiled extensions, metadata) included, and committed as a new repository in
    `/testbed`; another `place` is a link to it.

    Args:
        commit: whose files are tracked even where git would ignore them.
        place: an absolute path in the image.
        patch: applied before the commit.
    Raises:
        ImageError: the image is not available.
        RepositoryError: git is missing or fails, or `patch` does not apply.
    """
    if image == "host":
        return None
    root = resolve_image(image)
    inside = place.strip("/")
    source = root / inside
    if not (source / ".git").is_dir() or not source.resolve().is_relative_to(root.resolve()):
        return None

    def export(layer: Path) -> None:
        testbed, purpose = layer / _TESTBED, f"/{inside} of {image}"
        skip = {".git", *_HIDDEN}
        try:
            shutil.copytree(
                source,
                testbed,
                symlinks=True,
                ignore=lambda place, names: skip & set(names) if Path(place) == source else (),
            )
        except (OSError, shutil.Error) as error:
            raise RepositoryError(f"{purpose}: cannot be copied: {str(error)[:300]}") from error
        git = initialize(testbed, purpose)
        commit_files(git, testbed, list_tracked(source / ".git" / "objects", commit, purpose), patch)
        seal(git, testbed)
        for name in _HIDDEN:
            if os.path.lexists(root / name):
                os.mknod(layer / name, stat.S_IFCHR, os.makedev(0, 0))
        mark_opaque(testbed)  # hides the image's own /testbed
        if inside != _TESTBED:
            link = layer / inside
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/{_TESTBED}")  # hides the image's own directory

    elsewhere = () if inside == _TESTBED else (inside,)
    key = ("image-repository", str(root), str(root.stat().st_mtime_ns), commit, patch, *elsewhere)
    return (store or LayerStore()).get_or_build(key, export)


def image_environment(image: str) -> Mapping[str, str]:
    """Variables that activate the Python environment of an image: conda's `testbed`, or `/testbed/.venv`."""
    if image == "host":
        return {}
    root = resolve_image(image)
    offline = {"PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # an episode's sandbox has no network
    for conda in _CONDA:
        prefix = f"/{conda}/envs/testbed"
        if (root / prefix.lstrip("/") / "bin").is_dir():
            path = f"{prefix}/bin:/{conda}/bin:{_SYSTEM_PATH}"
            return {"PATH": path, "CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "testbed"} | offline
    if (root / _TESTBED / ".venv/bin").is_dir():
        prefix = f"/{_TESTBED}/.venv"
        return {"PATH": f"{prefix}/bin:{_SYSTEM_PATH}", "VIRTUAL_ENV": prefix} | offline
    return {}


def _export_commit(name: str, location: str, revision: str, patch: str, testbed: Path) -> None:
    """Check out a revision in `testbed`, as the only commit of a new repository, with `patch` applied."""
    purpose = f"{name} at {revision[:12]}{revision[40:]} from {location}"
    with tempfile.TemporaryDirectory(prefix="swegym-fetch-") as scratch:
        commit = revision
        if not re.fullmatch(r"[0-9a-f]{40}", revision):
            if is_url(location):
                location = _fetch_for_lookup(name, location, revision, scratch, purpose)
            with _unknown_commit_explained(purpose, location):
                commit = Git(purpose, location).text("rev-parse", "--verify", f"{revision}^{{commit}}").strip()
        make_directory(testbed)
        git = initialize(testbed, purpose)
        missing: frozenset[str] = frozenset()
        if not is_url(location):
            present, absent = _list_objects(purpose, location, commit)
            missing = frozenset(absent)
        if missing:
            # Git cannot fetch from such a clone: copy the objects it has, and tell git that the other files are absent.
            pack = testbed / ".git" / "objects" / "pack" / "base"
            Git(purpose, location).run("pack-objects", "-q", str(pack), stdin="".join(f"{oid}\n" for oid in present))
            (testbed / ".git" / "shallow").write_text(f"{commit}\n")
        else:
            # For a plain path git ignores --depth and links the whole history.
            _fetch(git, name, location if is_url(location) else f"file://{location}", commit, depth=1)
    git.run("update-ref", "refs/heads/main", commit)
    git.run("read-tree", commit)
    if missing:
        entries = [entry for entry in git.text("ls-tree", "-r", "-z", "HEAD").split("\0") if entry]
        paths = [f"{path}\0" for about, _, path in (e.partition("\t") for e in entries) if about.split()[2] in missing]
        git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin="".join(paths))
    git.run("checkout-index", "-q", "-a", "-f")
    if patch:
        commit_patch(git, testbed, patch)
    seal(git, testbed)


def _fetch_for_lookup(name: str, url: str, revision: str, scratch: str, purpose: str) -> str:
    """A repository in `scratch` with as much history as resolving `COMMIT~N` needs."""
    commit, _, before = revision.partition("~")
    if len(commit) != 40:
        raise RepositoryError(
            f"{purpose}: a shortened commit cannot be fetched. Try: --repos DIRECTORY with a whole clone of the "
            "repository"
        )
    git = Git(purpose, scratch)
    git.run("init", "-q", "--bare", "--template=")
    _fetch(git, name, url, commit, depth=1 + int(before or 0))
    return scratch


def _fetch(git: Git, name: str, url: str, commit: str, *, depth: int) -> None:
    options = (f"--depth={depth}", "--no-tags", "--no-write-fetch-head")
    with _unknown_commit_explained(git.purpose, url.removeprefix("file://")):
        try:
            git.run("fetch", "-q", *options, url, commit, timeout_s=_FETCH_TIMEOUT_S)
        except RepositoryError as error:
            if url.startswith("file://"):
                raise
            clone = f"git clone --bare {url} FOLDER/{name.replace('/', '+')}"
            raise RepositoryError(f"{error}. Try: a folder of clones as repos= or --repos: {clone}") from error


def _list_objects(purpose: str, location: str, commit: str) -> tuple[list[str], list[str]]:
    """The objects of a commit that a clone has, and those that it lacks: mirrors may leave out large files."""
    with _unknown_commit_explained(purpose, location):
        options = ("--objects", "--missing=print", "--no-walk")
        listed = Git(purpose, location).text("rev-list", *options, commit).splitlines()
    present = [line.split()[0] for line in listed if not line.startswith("?")]
    return present, [line[1:] for line in listed if line.startswith("?")]


@contextmanager
def _unknown_commit_explained(purpose: str, location: str) -> Iterator[None]:
    """Turn git's various messages for a commit that it cannot find into one that says what to do."""
    try:
        yield
    except RepositoryError as error:
        signs = (
            "not our ref",
            "couldn't find remote ref",
            "bad object",
            "bad revision",
            "unknown revision",
            "Needed a single",
        )
        if any(sign in str(error) for sign in signs):
            advice = "" if is_url(location) else f". Try: git -C {location} fetch --all"
            raise RepositoryError(f"{purpose}: the repository has no such commit{advice}") from error
        raise
