"""Datasets: find one by its name, read its rows, and load its tasks.

A dataset is a shipped set, a file, a folder, or a name on the Hugging Face hub.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import os
import re
import socket
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from swegym_env.arguments import nearest
from swegym_env.errors import ConfigurationError, TaskFormatError, UnknownTaskError
from swegym_env.paths import expand
from swegym_env.registry import resolve, with_installed
from swegym_env.sandbox.images import image_store
from swegym_env.sandbox.images.references import mirrored
from swegym_env.tasks.adapters import Example, adapt_row
from swegym_env.tasks.task import Task, TaskSet

__all__ = [
    "FILE_SUFFIXES",
    "HUB_NAMES",
    "SHIPPED",
    "OfficialImages",
    "load_examples",
    "load_tasks",
    "skipped_lines",
    "stream_tasks",
    "usable_images",
    "warn_of_skipped",
    "why_unreachable",
]

T = TypeVar("T", bound=Example)

_BUILT_IN = {
    "mini": "swegym_env.tasks.data.mini:load",
    "mini-c": "swegym_env.tasks.data.mini_c:load",
    "mini-edit": "swegym_env.tasks.data.mini_edit:tasks",
    "kodcode-mini": "swegym_env.tasks.data.short:functions",
    "file-repair-mini": "swegym_env.tasks.data.short:file_repairs",
    "vulnerabilities-mini": "swegym_env.tasks.data.short:vulnerabilities",
}

SHIPPED = with_installed("swegym_env.datasets", _BUILT_IN)
"""Datasets that need neither network nor files: name → "module:attribute" of a function from a split, or None, to tasks
or rows."""

HUB_NAMES: Mapping[str, str] = {
    "swe-bench": "SWE-bench/SWE-bench",
    "swe-bench-lite": "SWE-bench/SWE-bench_Lite",
    "swe-bench-verified": "SWE-bench/SWE-bench_Verified",
    "swe-bench-multilingual": "SWE-bench/SWE-bench_Multilingual",
    "swe-bench-live": "SWE-bench-Live/SWE-bench-Live",
    "swe-bench-pro": "ScaleAI/SWE-bench_Pro",
    "multi-swe-bench": "ByteDance-Seed/Multi-SWE-bench",
    "swe-polybench": "AmazonScience/SWE-PolyBench",
    "swe-gym": "SWE-Gym/SWE-Gym",
    "swe-gym-lite": "SWE-Gym/SWE-Gym-Lite",
    "swe-smith": "SWE-bench/SWE-smith",
    "swe-rebench": "nebius/SWE-rebench",
    "swe-rebench-v2": "nebius/SWE-rebench-V2",
    "r2e-gym": "R2E-Gym/R2E-Gym-Subset",
    "r2e-gym-lite": "R2E-Gym/R2E-Gym-Lite",
    "kodcode": "KodCode/KodCode-V1",
    "kodcode-light": "KodCode/KodCode-Light-RL-10K",
    "humaneval-pack": "bigcode/humanevalpack",
}
"""Short names of datasets on the hub."""

OnBadRow = Literal["raise", "skip", "warn"]
OfficialImages = bool | Literal["auto"]

_HASH_SPLIT = "hash:"
_SKIPPED_SHOWN = 3
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SELECTION = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+))?")
_TABLES = frozenset({".jsonl", ".json", ".ndjson", ".parquet", ".arrow", ".csv", ".tsv"})
_MOST_FILES = 10_000
_CARD_OF_FILES = re.compile(rb"---\r?\n.*?^(configs|dataset_info):", re.DOTALL | re.MULTILINE)
_CARD_BYTES = 1 << 20
_DEFAULT_REGISTRY = "registry-1.docker.io"
_CONNECT_TIMEOUT_S = 5.0


def load_tasks(
    dataset: str = "mini",
    *,
    split: str | None = None,
    on_bad_row: OnBadRow = "warn",
    where: Mapping[str, str] | None = None,
    seed: int | None = None,
    select: str | None = None,
    official_images: OfficialImages = False,
    streaming: bool = False,
) -> TaskSet[Task]:
    """Load the tasks of a dataset in repository form, as `SWEBench-v0` and `swegym grade` use them.

    Args:
        dataset: a shipped set (`SHIPPED`); a `.jsonl`, `.json` or `.parquet` file; a folder that `datasets` can read; a
            name on the hub, such as "SWE-bench/SWE-bench_Lite", or one of `HUB_NAMES`. The columns of a row select the
            adapter that reads it (see `tasks.adapters`).
        split: for shipped sets and files, None is everything; for the hub and folders it is "test", else "train", else
            the first split. A file has splits only if its rows have a field `split`. "hash:train", "hash:validation"
            and "hash:test" divide any set by the digests of its ids, 80 : 10 : 10 (`TaskSet.part`).
        on_bad_row: what happens to malformed rows beside sound ones: "skip" lists them in `TaskSet.skipped`, "warn"
            also gives one warning with their number and the first reasons, "raise" stops at the first.
        where: field → shell pattern: `{"repo": "django/*"}`.
        seed: shuffles the tasks after `where`.
        select: a slice of the tasks after `where` and `seed`, as text: "0:50", ":10", "-5:", "::2".
        official_images: run each task in the Docker image that its row names, if it names one; "auto": if that image is
            on this machine or its registry can be reached.
        streaming: read the hub row by row instead of downloading the whole set; with `select` ":50" only 50 rows.

    Raises:
        UnknownTaskError: there is no such dataset or split, or all its rows are malformed.
        TaskFormatError: with on_bad_row="raise", a row is malformed, repeats an id or has no repository form; the
            message names row and field. Else the file is no list of rows.
        ConfigurationError: the file cannot be read, or an argument is invalid.
    """
    if official_images not in (True, False, "auto"):
        raise ConfigurationError(f"official_images: expected True, False or 'auto', got {official_images!r}")
    tasks = _load(Task, dataset, split, on_bad_row, where, seed, select, streaming=streaming)
    if official_images:
        usable = usable_images({task.official_image for task in tasks}) if official_images == "auto" else None
        images = [
            dataclasses.replace(task, image=task.official_image)
            if task.official_image and (usable is None or task.official_image in usable)
            else task
            for task in tasks
        ]
        tasks = TaskSet(images, name=tasks.name, skipped=tasks.skipped)
    return tasks


def load_examples(
    example_type: type[T],
    dataset: str,
    *,
    split: str | None = None,
    on_bad_row: OnBadRow = "warn",
    where: Mapping[str, str] | None = None,
    seed: int | None = None,
    select: str | None = None,
    streaming: bool = False,
) -> TaskSet[T]:
    """Load a dataset whose rows are all of one type: `FunctionTask`, `FileRepair` or `VulnerabilityExample`.

    The other arguments and errors are those of `load_tasks`; a row of another type is malformed.
    """
    return _load(example_type, dataset, split, on_bad_row, where, seed, select, streaming=streaming)


def stream_tasks(dataset: str, *, split: str | None = None, on_bad_row: OnBadRow = "warn") -> Iterator[Task]:
    """Yield the tasks of a dataset one by one without keeping them: for sets larger than memory.

    Repeated ids are not detected. Arguments and errors are those of `load_tasks`; the warning comes after the last row.
    """
    skipped: list[str] = []
    usable = 0
    for place, row in _rows(dataset, split, streaming=True):
        try:
            task = _read(Task, row, place)
        except TaskFormatError as error:
            if on_bad_row == "raise":
                raise
            skipped.append(str(error))
            continue
        usable += 1
        yield task
    if not usable:
        raise _no_usable_row(dataset, skipped)
    if skipped and on_bad_row == "warn":
        warn_of_skipped(skipped, stacklevel=2)


def _load(
    example_type: type[T],
    dataset: str,
    split: str | None,
    on_bad_row: OnBadRow,
    where: Mapping[str, str] | None,
    seed: int | None,
    select: str | None,
    *,
    streaming: bool,
) -> TaskSet[T]:
    """Read the rows; then apply hash split, filter, seed and slice, in this order."""
    if on_bad_row not in ("raise", "skip", "warn"):
        raise ConfigurationError(f"on_bad_row: expected 'raise', 'skip' or 'warn', got {on_bad_row!r}")
    part = split.removeprefix(_HASH_SPLIT) if isinstance(split, str) and split.startswith(_HASH_SPLIT) else None
    selection = _parse_selection(select)
    # Without a filter or a shuffle, no row after the end of the slice is needed.
    limit = None
    in_order = (selection.start or 0) >= 0 and (selection.step or 1) > 0
    if not where and seed is None and part is None and in_order and (selection.stop or -1) >= 0:
        limit = selection.stop
    examples: list[T] = []
    places: dict[str, str] = {}
    skipped: list[str] = []
    for place, row in _rows(dataset, None if part else split, streaming=streaming):
        if limit is not None and len(examples) >= limit:
            break
        try:
            example = _read(example_type, row, place)
            if example.instance_id in places:
                raise TaskFormatError(
                    f"{place} (instance {example.instance_id}): field 'instance_id': expected a unique id, "
                    f"got that of {places[example.instance_id]}"
                )
        except TaskFormatError as error:
            if on_bad_row == "raise":
                raise
            skipped.append(str(error))
            continue
        places[example.instance_id] = place
        examples.append(example)
    if not examples and limit != 0:
        raise _no_usable_row(dataset, skipped)
    if skipped and on_bad_row == "warn":
        warn_of_skipped(skipped, stacklevel=3)
    loaded = TaskSet(examples, name=dataset, skipped=skipped)
    if part:
        loaded = loaded.part(part)
    if where:
        loaded = loaded.where(**where)
    if seed is not None:
        loaded = loaded.shuffled(seed)
    return loaded[selection]


def _no_usable_row(dataset: str, skipped: Sequence[str]) -> UnknownTaskError:
    first = f"; the first of {len(skipped)}: {skipped[0]}" if skipped else ""
    return UnknownTaskError(f"{dataset}: no usable row{first}")


def warn_of_skipped(skipped: Sequence[str], *, stacklevel: int) -> None:
    """Give one warning of skipped rows, which names the first ones with their reasons.

    Args:
        skipped: why each row was skipped.
        stacklevel: 1 is the caller's own line.
    """
    options = "on_bad_row='raise', or strict_rows=True of an environment,"
    warnings.warn("\n".join(skipped_lines(skipped, options)), stacklevel=stacklevel + 1)


def skipped_lines(skipped: Sequence[str], option: str) -> list[str]:
    """The number of skipped rows, and the first reasons.

    Args:
        skipped: why each row was skipped.
        option: what stops at the first one instead.
    """
    count = len(skipped)
    lines = [f"skipped {count} malformed row{'s' * (count > 1)} ({option} stops at them):"]
    lines += [f"  {reason}" for reason in skipped[:_SKIPPED_SHOWN]]
    return lines + [f"  and {count - _SKIPPED_SHOWN} more"] * (count > _SKIPPED_SHOWN)


def _parse_selection(select: str | None) -> slice:
    if not select:
        return slice(None)
    match = _SELECTION.fullmatch(select.strip())
    if match is None or (match[3] is not None and int(match[3]) == 0):
        raise ConfigurationError(f"select: expected a slice such as '0:50', ':10' or '-5:', got {select!r}")
    return slice(*(None if part is None else int(part) for part in match.groups()))


def _read(example_type: type[T], row: Any, place: str) -> T:
    """The example of type `example_type` in a row. A `TaskFormatError` in place of a row is raised.

    A row that has no repository form where one is wanted is malformed: others of its file may have one.
    """
    if isinstance(row, TaskFormatError):
        raise row
    example = row if isinstance(row, Task) else adapt_row(row, where=place)
    if example_type is Task:
        try:
            example = example.as_task()
        except ConfigurationError as error:
            raise TaskFormatError(f"{place}: {error}") from error
    if not isinstance(example, example_type):
        raise TaskFormatError(
            f"{place}: expected a row that makes a {example_type.__name__}, got a {type(example).__name__}"
        )
    return example


def _rows(dataset: str, split: str | None, *, streaming: bool) -> Iterable[tuple[str, Any]]:
    """(place, row) for each row of a dataset. The place is for error messages."""
    path = expand(dataset)
    is_folder = bool(dataset) and path.is_dir()
    if dataset in SHIPPED:
        load = resolve(SHIPPED[dataset], f"dataset {dataset}")
        return ((f"{dataset} entry {number}", row) for number, row in enumerate(load(split), start=1))
    if path.suffix in FILE_SUFFIXES:
        return _in_split(_file_rows(path), split, dataset)
    if is_folder:
        _require_rows(path)
    if is_folder or _HUB_NAME.fullmatch(dataset) or dataset in HUB_NAMES:
        return _hub_rows(HUB_NAMES.get(dataset, str(path) if is_folder else dataset), split, streaming=streaming)
    hint = nearest(dataset, (*SHIPPED, *HUB_NAMES)) or _nearest_file(path)
    raise UnknownTaskError(
        f"no dataset {dataset!r}{hint or '.'} "
        f"Expected one of {', '.join(SHIPPED)}, a {', '.join(FILE_SUFFIXES)} file, or OWNER/NAME on the hub"
    )


def _require_rows(folder: Path) -> None:
    """Raise UnknownTaskError for a folder that is no dataset: `datasets` would read all files below it first.

    It has a file of rows and not too many others, or a card that names its files.
    """
    with suppress(OSError), (folder / "README.md").open("rb") as card:
        if _CARD_OF_FILES.match(card.read(_CARD_BYTES)):
            return
    found, n_files = False, 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # as `datasets` does
        n_files += len(names)
        if n_files > _MOST_FILES:
            raise UnknownTaskError(
                f"{folder}: no dataset in this folder: there are more than {_MOST_FILES:,} files below it. "
                f"Try: one of its {', '.join(FILE_SUFFIXES)} files"
            )
        found = found or any(_has_rows(Path(place, name)) for name in names)
    if not found:
        raise UnknownTaskError(
            f"{folder}: no dataset in this folder: expected {', '.join(FILE_SUFFIXES)} files with rows below it"
        )


def _has_rows(path: Path) -> bool:
    """Whether a file may have rows: one in JSON may be anything else, such as settings."""
    if path.suffix not in (".json", ".jsonl"):
        return not _TABLES.isdisjoint(path.suffixes)
    try:
        return any(isinstance(row, Mapping) for _, row in itertools.islice(_READERS[path.suffix](path), 100))
    except (OSError, TaskFormatError):
        return False


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place, row) for each row of a file; in place of a row that cannot be decoded, a `TaskFormatError`."""
    try:
        for place, row in _READERS[path.suffix](path):
            repository = row.get("repository") if isinstance(row, Mapping) else None
            if (
                isinstance(repository, str)
                and repository
                and not repository.startswith(("/", "~"))
                and ":" not in repository
            ):
                # A relative path is relative to the folder of the file.
                row = {**row, "repository": str(path.absolute().parent / repository)}
            yield place, row
    except FileNotFoundError:
        raise UnknownTaskError(f"no dataset {str(path)!r}: there is no such file{_nearest_file(path)}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error


def _nearest_file(path: Path) -> str:
    """A hint with a file in the same folder that may be meant."""
    try:
        files = [each for each in path.parent.iterdir() if each.suffix in FILE_SUFFIXES]
    except OSError:
        return ""
    stems = difflib.get_close_matches(path.stem, [each.stem for each in files])  # all names end alike
    return nearest(path.name, sorted(each.name for each in files if each.stem in stems))


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path} row {number}"
            if line.strip():
                yield place, _decode(line.strip(), place)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    content = _decode(path.read_bytes(), str(path))
    if isinstance(content, TaskFormatError):
        raise content
    if not isinstance(content, list):
        raise TaskFormatError(f"{path}: expected a list of rows, got {type(content).__name__}")
    for number, row in enumerate(content, start=1):
        yield f"{path} row {number}", row


def _decode(data: bytes, place: str) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return TaskFormatError(f"{place}: expected JSON in UTF-8: {error}")


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    # pyarrow, a dependency of `datasets`, reads the file in place; `datasets` would first copy it to its cache.
    import pyarrow
    import pyarrow.parquet

    try:
        # An open file, not a path: pyarrow would read KEY=VALUE folders in the path as columns.
        with path.open("rb") as file:
            table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise ConfigurationError(f"{path}: not a parquet file: {' '.join(str(error).split())}") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path} row {number}", row


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}
FILE_SUFFIXES = tuple(_READERS)


def _in_split(rows: Iterable[tuple[str, Any]], split: str | None, name: str) -> Iterator[tuple[str, Any]]:
    """The rows whose field `split` equals `split`; all rows for None."""
    found: set[str] = set()
    for place, row in rows:
        own = row.get("split") if isinstance(row, Mapping) else None
        if split is None or own == split:
            yield place, row
        found.add(str(own))
    if split is not None and split not in found:
        known = ", ".join(sorted(found - {"None"}))
        raise UnknownTaskError(
            f"{name}: no split {split!r}; " + (f"there are {known}" if known else "its rows have no field 'split'")
        )


def _hub_rows(dataset: str, split: str | None, *, streaming: bool) -> Iterator[tuple[str, Any]]:
    """(place, row) for each row of a dataset that `datasets` can load by its name: a folder, the hub, or its cache."""
    with _offline_if_unreachable(dataset) as offline:
        import datasets

        try:
            if split is None:
                names = datasets.get_dataset_split_names(dataset)
                split = next((name for name in ("test", "train") if name in names), names[0])
            table = datasets.load_dataset(dataset, split=split, streaming=streaming)
        except datasets.exceptions.DatasetNotFoundError as error:
            raise UnknownTaskError(f"{dataset}: no such dataset on the hub: {_first_line(error)}") from error
        except ValueError as error:
            raise UnknownTaskError(f"{dataset}: {_first_line(error)}") from error
        except OSError as error:
            if expand(dataset).is_dir():
                raise UnknownTaskError(f"{dataset}: no dataset in this folder: {_first_line(error)}") from error
            raise ConfigurationError(
                f"{dataset}: the hub cannot be reached and there is no cached copy ({offline or _first_line(error)}). "
                "Go online once, set HF_HOME to a cache that has it, or give a .jsonl, .json or .parquet file"
            ) from error
    for number, row in enumerate(table, start=1):
        yield f"{dataset}[{split}] row {number}", row


@contextmanager
def _offline_if_unreachable(dataset: str) -> Iterator[str]:
    """Restrict `datasets` to its cache while the hub cannot be reached; yields the reason, or "" if it can.

    Without this, `datasets` would retry for half a minute before it fails.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    reason = "" if expand(dataset).is_dir() else why_unreachable(endpoint)
    if not reason:
        yield ""
        return
    import datasets
    import huggingface_hub.constants as hub

    before = hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield reason
    finally:
        hub.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def usable_images(images: Collection[str]) -> frozenset[str]:
    """The `images` (`docker://…`) that are on this machine, or whose registry, or its mirror, can be reached."""
    here = {name for image in image_store().inventory() for name in image.names}
    mirror = os.environ.get("SWEGYM_REGISTRY_MIRROR")
    servers: dict[str, str] = {}
    for image in images:
        if image and image not in here:
            registry, slash, _ = (mirrored(image, mirror) if mirror else image).removeprefix("docker://").partition("/")
            if not slash or not ("." in registry or ":" in registry) or registry == "docker.io":
                registry = _DEFAULT_REGISTRY
            servers[image] = f"https://{registry}"
    reachable = {server for server in set(servers.values()) if not why_unreachable(server)}
    return frozenset(image for image in images if image in here or servers.get(image) in reachable)


def why_unreachable(url: str) -> str:
    """Why no connection to the server of `url` (or to the proxy before it) can be made; "" if one can.

    Tries once and briefly, where libraries would retry for half a minute.
    """
    address = urlsplit(url)
    if address.hostname and not proxy_bypass(address.hostname):
        proxy = getproxies().get(address.scheme) or getproxies().get("all")
        if proxy:
            address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError as error:
        return f"{url}: {error}"
    try:
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{address.hostname}: {error.strerror or error}"
    return ""
