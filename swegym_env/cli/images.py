"""`swegym images`: pull, build, list, prune and prefetch images, and build the set-up layers of a dataset."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from swegym_env.cli.options import (
    DATASETS,
    add_command,
    add_dataset_arguments,
    add_group,
    add_jobs,
    add_json,
    add_repos,
    add_sandbox,
    load_chosen,
    require_at_least,
    show_progress,
)
from swegym_env.errors import ConfigurationError, ImageError, InfrastructureError, LayerError
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.images import PullOptions, image_store, parse_size
from swegym_env.sandbox.images.references import parse
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `images` and its actions to the commands of `swegym`."""
    actions = add_group(
        commands,
        "images",
        "pull, build, list, prune and prefetch images",
        "Manage the images that sandboxes run: built once, kept under $SWEGYM_WORKDIR, shared by all sandboxes.",
        "swegym images pull docker://python:3.11",
    )

    pull = add_command(actions, "pull", _pull, "pull images from registries", "swegym images pull docker://python:3.11")
    pull.add_argument("images", nargs="+", metavar="IMAGE", help="docker://NAME, oras://…, library://…")
    _add_pulling(pull)

    build = add_command(
        actions,
        "build",
        _build,
        "build images from definitions, Dockerfiles, SIFs and archives, or the set-up layers of a dataset",
        "swegym images build python.def; swegym images build --for rows.jsonl --repos clones/ -j 2",
    )
    build.add_argument("images", nargs="*", metavar="FILE", help=".def, Dockerfile, .sif, archive or OCI layout")
    build.add_argument(
        "--for", dest="dataset", metavar="DATASET", help="instead of images: build the set-up layers of these tasks"
    )
    add_repos(build)
    add_sandbox(build)
    build.add_argument(
        "--layers", metavar="ADDRESS", help="take set-up layers from this store, if it has them ($SWEGYM_LAYERS)"
    )
    build.add_argument(
        "--official", action="store_true", help="the official images, if available, instead of set-up layers"
    )
    add_jobs(build)
    add_dataset_arguments(build)
    build.add_argument("--refresh", action="store_true", help="rebuild existing images")
    add_json(build, "image")

    add_json(add_command(actions, "list", _list, "list the images on this machine", "swegym images list"), "image")

    prune = add_command(
        actions,
        "prune",
        _prune,
        "remove images that are not in use, the least recently used first",
        "swegym images prune --budget 50G",
    )
    prune.add_argument("images", nargs="*", metavar="IMAGE", help="only the images with these names")
    prune.add_argument("--budget", metavar="SIZE", help="remove images until the rest fit into this size, such as 50G")
    prune.add_argument("--unused-for", type=float, metavar="DAYS", help="only images not used for this many days")
    prune.add_argument("--all", action="store_true", help="all images")
    prune.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_json(prune, "image")

    prefetch = add_command(
        actions,
        "prefetch",
        _prefetch,
        "pull or build every image that the tasks of a dataset name",
        "swegym images prefetch --dataset rows.jsonl -j 4",
    )
    prefetch.add_argument("--dataset", help=DATASETS)
    add_dataset_arguments(prefetch)
    prefetch.add_argument("--file", type=Path, help="a text file with one image per line")
    add_jobs(prefetch, default=2)
    _add_pulling(prefetch)


def _add_pulling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--refresh", action="store_true", help="pull existing images again")
    parser.add_argument("--mirror", metavar="PREFIX", help="pull from this mirror ($SWEGYM_REGISTRY_MIRROR)")
    parser.add_argument(
        "--retries", type=int, metavar="N", help="retries when a registry is busy ($SWEGYM_PULL_RETRIES, 4)"
    )
    parser.add_argument("--no-https", action="store_true", help="use HTTP for the registry")
    add_json(parser, "image")


def _pull_options(arguments: argparse.Namespace) -> PullOptions:
    require_at_least(arguments, retries=0)
    return PullOptions(retries=arguments.retries, mirror=arguments.mirror, no_https=arguments.no_https)


def _pull(arguments: argparse.Namespace) -> int:
    for image in arguments.images:
        if parse(image).kind != "registry":
            raise ConfigurationError(f"{image}: not in a registry. Try: swegym images build {image}")
    return _make(arguments.images, _pull_options(arguments), 1, refresh=arguments.refresh, as_json=arguments.json)


def _build(arguments: argparse.Namespace) -> int:
    if (arguments.dataset is None) == (not arguments.images):
        raise ConfigurationError("expected either files or --for DATASET. Try: swegym images build --help")
    if arguments.dataset is not None:
        return _build_layers(arguments)
    if arguments.layers is not None:
        raise ConfigurationError("--layers has an effect with --for DATASET only")
    for image in arguments.images:
        kind = parse(image).kind
        if kind == "registry":
            raise ConfigurationError(f"{image}: nothing to build. Try: swegym images pull {image}")
        if kind in ("host", "directory"):
            raise ConfigurationError(f"{image}: nothing to build: it is used as it is")
    return _make(arguments.images, PullOptions(), 1, refresh=arguments.refresh, as_json=arguments.json)


def _build_layers(arguments: argparse.Namespace) -> int:
    """Build the repository and set-up layers of a dataset's tasks; existing layers are reused.

    Raises:
        ConfigurationError: an option or the dataset is invalid.
        LayerError: some tasks failed; the layers of the others have been built.
    """
    require_at_least(arguments, jobs=1)
    tasks = load_chosen(arguments, arguments.dataset, official_images="auto" if arguments.official else False)
    # One task of each version, then a second of each: parallel jobs then build different environments instead of
    # waiting for the same one.
    by_version: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        by_version[task.repo, task.version].append(task)
    store = LayerStore(shared=arguments.layers)
    rounds = max(map(len, by_version.values()), default=0)
    ordered = [group[turn] for turn in range(rounds) for group in by_version.values() if turn < len(group)]
    failed: list[str] = []
    with show_progress(len(tasks), "setting up") as advance, ThreadPoolExecutor(arguments.jobs) as pool:

        def prepare(task: Task) -> float:
            began = time.monotonic()
            prepare_locally(task, repos=arguments.repos, backend=arguments.sandbox, store=store)
            return time.monotonic() - began

        pending = {pool.submit(prepare, task): task for task in ordered}
        try:
            for done in as_completed(pending):
                task = pending[done]
                advance()
                try:
                    seconds, problem = done.result(), ""
                except InfrastructureError as error:
                    seconds, problem = 0.0, str(error)
                    failed.append(problem)
                if arguments.json:
                    made = {name: getattr(task, name) for name in ("instance_id", "repo", "version", "image")}
                    print(json.dumps({**made, "seconds": round(seconds, 3), "error": problem}), flush=True)
                elif problem:
                    print(f"{task.instance_id:44} failed: {problem}", flush=True)
                else:
                    print(f"{task.instance_id:44} {task.repo} {task.version:8} {seconds:6.1f} s", flush=True)
        finally:
            for waiting in pending:
                waiting.cancel()
    if failed:
        raise LayerError(f"{len(failed)} of {len(tasks)} tasks cannot be set up; the first: {failed[0]}")
    return 0


def _prefetch(arguments: argparse.Namespace) -> int:
    require_at_least(arguments, jobs=1)
    if (arguments.dataset is None) == (arguments.file is None):
        raise ConfigurationError("expected either --dataset or --file. Try: swegym images prefetch --help")
    if arguments.file is not None:
        lines = arguments.file.read_text(encoding="utf-8").splitlines()
        named = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    else:
        named = [task.image for task in load_chosen(arguments, arguments.dataset)]
    images = [image for image in dict.fromkeys(named) if parse(image).kind not in ("host", "directory")]
    if not images and not arguments.json:
        print("nothing to fetch: every image named is on this machine as it is")
    return _make(images, _pull_options(arguments), arguments.jobs, refresh=arguments.refresh, as_json=arguments.json)


def _make(images: Sequence[str], options: PullOptions, jobs: int, *, refresh: bool, as_json: bool) -> int:
    """Make images, several in parallel, and print each when it is ready.

    Raises:
        ImageError: one failed; the others have been made.
    """
    store = image_store()
    failures: list[ImageError] = []
    with _progress(len(images)) as (report, advance), ThreadPoolExecutor(jobs) as pool:

        def make(image: str) -> tuple[Path, float]:
            began = time.monotonic()
            root = store.get(image, options=options, refresh=refresh, report=lambda line: report(image, line))
            return root, time.monotonic() - began

        pending = {pool.submit(make, image): image for image in images}
        try:
            for done in as_completed(pending):
                image = pending[done]
                advance(image)
                try:
                    root, seconds = done.result()
                except ImageError as error:
                    failures.append(error)
                    if len(images) > 1:
                        print(f"swegym: {error}", file=sys.stderr, flush=True)
                    continue
                stored = {kept.root: kept for kept in store.inventory()}.get(root)
                size = 0 if stored is None else stored.size_bytes
                if as_json:
                    made = {"image": image, "root": str(root), "size_bytes": size, "seconds": round(seconds, 3)}
                    print(json.dumps(made), flush=True)
                else:
                    print(f"{image}  {_size(size)}  {seconds:.1f} s  {root}", flush=True)
        finally:
            for waiting in pending:
                waiting.cancel()
    if failures:
        raise failures[0] if len(images) == 1 else ImageError(f"{len(failures)} of {len(images)} images failed")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    images = image_store().inventory()
    for image in images:
        if arguments.json:
            print(json.dumps(_as_object(image)))
        else:
            used = "in use" if image.in_use else f"used {_ago(image.last_used)}"
            print(f"{image.root.name}  {_size(image.size_bytes):>9}  {used:16}  {', '.join(image.names)}")
    if not arguments.json:
        print(f"{len(images)} images, {_size(sum(image.size_bytes for image in images))} in {image_store().root}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    if not (arguments.all or arguments.budget or arguments.images or arguments.unused_for is not None):
        raise ConfigurationError("expected --budget, --unused-for, --all or names. Try: swegym images prune --help")
    if arguments.unused_for is not None and not arguments.unused_for >= 0:
        raise ConfigurationError(f"--unused-for: expected 0 days or more, got {arguments.unused_for:g}")
    budget = parse_size(arguments.budget, "--budget") if arguments.budget else None
    store = image_store()
    known = {name for image in store.inventory() for name in image.names}
    for name in arguments.images:
        if name not in known:
            raise ConfigurationError(f"{name}: no such image here. Try: swegym images list")
    unused_for_s = arguments.unused_for * 86400.0 if arguments.unused_for is not None else None
    removed = store.prune(
        budget_bytes=0 if arguments.all else budget,
        unused_for_s=unused_for_s,
        images=arguments.images,
        dry_run=arguments.dry_run,
    )
    for image in removed:
        if arguments.json:
            print(json.dumps(_as_object(image)))
        else:
            print(f"{image.root.name}  {_size(image.size_bytes):>9}  {', '.join(image.names)}")
    if not arguments.json:
        gone = {image.root for image in removed}
        kept = [image for image in store.inventory() if image.root not in gone]
        word = "would be removed" if arguments.dry_run else "removed"
        left = f"{len(kept)} stay, {_size(sum(image.size_bytes for image in kept))}"
        print(f"{len(removed)} {word}; {left}, {sum(image.in_use for image in kept)} of them in use")
    return 0


def _as_object(image: Any) -> dict[str, Any]:
    return {
        "images": list(image.names),
        "root": str(image.root),
        "size_bytes": image.size_bytes,
        "made": image.made,
        "seconds": image.seconds,
        "last_used": image.last_used,
        "in_use": image.in_use,
    }


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def _ago(when: float) -> str:
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


@contextlib.contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str, str], None], Callable[[str], None]]]:
    """On a terminal: a line with the current step for each image in progress, and a bar over all of them.

    Elsewhere only retries are printed. Yields (report a line of an image, mark an image as done).
    """
    lock = threading.Lock()
    if not sys.stderr.isatty():

        def report(image: str, line: str) -> None:
            if "trying again" in line:
                with lock:
                    print(line, file=sys.stderr, flush=True)

        yield report, lambda _image: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    description = TextColumn("{task.description}")
    columns: tuple[ProgressColumn, ...]
    columns = (SpinnerColumn(), description, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    # Standard output is redirected above the bar only if both are on one terminal; a file or pipe is left alone.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            width = 80
        whole = bar.add_task("images", total=total)
        rows: dict[str, Any] = {}

        def show(image: str, line: str) -> None:
            with lock:
                if image not in rows:
                    rows[image] = bar.add_task(image, total=None)
                bar.update(rows[image], description=f"{image}: {line}"[: max(40, width - 50)])

        def advance(image: str) -> None:
            with lock:
                if image in rows:
                    bar.remove_task(rows.pop(image))
                bar.advance(whole)

        yield show, advance
