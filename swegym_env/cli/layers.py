"""`swegym layers`: list and remove the layers of this machine, send them to a shared store, and take those there."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from swegym_env.cli.options import (
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
from swegym_env.errors import ConfigurationError, InfrastructureError, LayerError
from swegym_env.grading.findings import find_findings, keep_findings, unused_findings
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore, StoredLayer, disk_bytes
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.sharing import import_layer, open_shared_store, share_layer
from swegym_env.sandbox.sharing.api import Manifest

__all__ = ["add_parser"]

_ADDRESS = "a folder, file://…, http(s)://…, oci://HOST/NAME, or oci+http://HOST/NAME without TLS"


def add_parser(commands: Any) -> None:
    """Add `layers` and its actions to the commands of `swegym`."""
    actions = add_group(
        commands,
        "layers",
        "list and remove layers, send them to a shared store, and take them from there",
        "Set up a dataset once, and use its layers on other machines: packed as squashfs files, named by their digest.",
        "swegym layers export /shared/layers --for rows.jsonl",
    )
    sending = {
        "export": ("pack set-up layers into a folder", "swegym layers export /shared/layers --for rows.jsonl"),
        "push": ("the same, to a server or registry", "swegym layers push oci://registry.example/lab/layers"),
    }
    taking = {
        "import": ("take set-up layers from a folder", "swegym layers import /shared/layers"),
        "pull": ("the same, from a server or registry", "swegym layers pull https://files.example/layers"),
    }
    for name, (purpose, example) in sending.items():
        parser = add_command(actions, name, _send, purpose, example)
        _add_layers(parser, "layers of this machine")
        parser.add_argument(
            "--for", dest="dataset", metavar="DATASET", help="the layers of these tasks; missing ones are built"
        )
        _add_tasks(parser)
    for name, (purpose, example) in taking.items():
        parser = add_command(actions, name, _take, purpose, example)
        _add_layers(parser, "layers of the store for this system")
        parser.add_argument(
            "--for", dest="dataset", metavar="DATASET", help="the layers of these tasks; nothing is built"
        )
        _add_tasks(parser)
    listing = add_command(actions, "list", _list, "list the layers of this machine by kind", "swegym layers list")
    add_json(listing, "layer")
    prune = add_command(
        actions,
        "prune",
        _prune,
        "remove what this machine has not used for long: layers, and what is known of tasks' tests",
        "swegym layers prune --unused-for 30",
    )
    prune.add_argument(
        "--unused-for", type=float, required=True, metavar="DAYS", help="at least 2; no sandbox may run on them"
    )
    prune.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_json(prune, "layer")


def _add_layers(parser: argparse.ArgumentParser, all_layers: str) -> None:
    parser.add_argument("address", metavar="ADDRESS", help=_ADDRESS)
    parser.add_argument(
        "layers", nargs="*", default=[], metavar="LAYER", help=f"by name; without any, all {all_layers}"
    )


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    add_dataset_arguments(parser)
    add_repos(parser)
    add_sandbox(parser)
    add_jobs(parser)
    add_json(parser, "layer")


def _send(arguments: argparse.Namespace) -> int:
    _check(arguments)
    shared, store = open_shared_store(arguments.address), LayerStore()
    chosen = arguments.layers or store.travelling()
    names = _names_of_tasks(arguments, store, builds=True) if arguments.dataset else chosen
    if not names:
        raise LayerError(f"no layers that travel under {store.root}. Try: --for DATASET")

    shared.create()

    def send(name: str) -> tuple[Manifest, str]:
        manifest, sent = share_layer(store, name, shared)
        return manifest, "sent" if sent else "present"

    return _move(arguments, names, "sending", send)


def _take(arguments: argparse.Namespace) -> int:
    _check(arguments)
    shared, store = open_shared_store(arguments.address), LayerStore(shared=arguments.address, may_build=False)
    if arguments.dataset:
        before = set(store.travelling())
        names = [name for name in _names_of_tasks(arguments, store, builds=False) if name not in before]
    else:
        names = arguments.layers or shared.names()
        before = {name for name in names if store.record(name) is not None}
        if not names:
            raise LayerError(f"no layers at {arguments.address}. Try: swegym layers export {arguments.address}")

    def take(name: str) -> tuple[Manifest, str]:
        manifest = import_layer(store, shared, name)
        if store.record(name) is None:
            return manifest, f"left out: for {manifest.provenance.requires}"
        return manifest, "present" if name in before else "taken"

    return _move(arguments, names, "taking", take)


def _list(arguments: argparse.Namespace) -> int:
    store = LayerStore()
    _show(arguments, store.layers())
    if not arguments.json:
        print(f"in {store.root}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    require_at_least(arguments, unused_for=2)
    store = LayerStore()
    unused = store.unused_for(arguments.unused_for * 86400.0)
    findings = unused_findings(store, arguments.unused_for * 86400.0)
    _show(arguments, unused)
    for one in findings if arguments.json else ():
        fields = {"size_bytes": one.size_bytes, "last_used": one.last_used}
        print(json.dumps({"findings": one.directory.name, **fields}), flush=True)
    if not arguments.json:
        size = sum(one.size_bytes for one in findings)
        print(f"{'known of tests':20} {len(findings):6} {size / 1e9:8.2f} GB")
    if not arguments.dry_run:
        for one in findings:
            remove_tree(one.directory)
        removed = store.remove(unused)
        for layer in unused:
            if layer not in removed:
                print(f"swegym: {layer.path.name} stays: it has been used meanwhile", file=sys.stderr)
    if not arguments.json:
        print("nothing was removed" if arguments.dry_run else f"removed from {store.root}")
    return 0


def _show(arguments: argparse.Namespace, layers: Sequence[StoredLayer]) -> None:
    """Print each layer as JSON, or the number and size of each kind. What several layers share counts once."""
    counted = set[tuple[int, int]]()
    kinds: dict[str, tuple[int, int]] = {}
    for layer in layers:
        size = disk_bytes(layer.path, counted)
        kind = layer.path.name.rpartition("-")[0]
        number, together = kinds.get(kind, (0, 0))
        kinds[kind] = number + 1, together + size
        if arguments.json:
            fields = {"layer": layer.path.name, "kind": kind, "size_bytes": size, "last_used": layer.last_used}
            print(json.dumps(fields), flush=True)
    if not arguments.json:
        total = sum(number for number, _ in kinds.values()), sum(size for _, size in kinds.values())
        for kind, (number, size) in (*sorted(kinds.items()), ("all", total)):
            print(f"{kind:20} {number:6} {size / 1e9:8.2f} GB")


def _check(arguments: argparse.Namespace) -> None:
    require_at_least(arguments, jobs=1)
    if arguments.dataset and arguments.layers:
        raise ConfigurationError("expected either names of layers or --for DATASET, not both")
    for name in ("split", "seed", "select", "repos", "where"):
        if not arguments.dataset and getattr(arguments, name):
            raise ConfigurationError(f"--{name} has an effect with --for DATASET only")


def _names_of_tasks(arguments: argparse.Namespace, store: LayerStore, *, builds: bool) -> list[str]:
    """The names of the layers that the tasks of a dataset use, and that travel; missing ones are taken or built.

    Args:
        builds: whether to make layers of what is known of the tasks' tests.
    Raises:
        LayerError: a task cannot be set up.
    """
    tasks = load_chosen(arguments, arguments.dataset)
    findings = keep_findings if builds else find_findings
    names: dict[str, None] = {}
    with show_progress(len(tasks), "setting up") as advance, ThreadPoolExecutor(arguments.jobs) as pool:
        pending = [
            pool.submit(prepare_locally, task, repos=arguments.repos, backend=arguments.sandbox, store=store)
            for task in tasks
        ]
        try:
            for task, done in zip(tasks, pending, strict=True):
                known = findings(task, store)
                names.update(dict.fromkeys(layer.name for layer in (*done.result().spec.layers, known) if layer))
                advance()
        finally:
            for waiting in pending:
                waiting.cancel()
    return [name for name in names if store.record(name) is not None]


def _move(
    arguments: argparse.Namespace, names: Sequence[str], what: str, move: Callable[[str], tuple[Manifest, str]]
) -> int:
    """Move layers, several in parallel, and print each when it has been moved.

    Raises:
        LayerError: some could not be moved; the others have been.
    """
    failed: list[str] = []
    with show_progress(len(names), what) as advance, ThreadPoolExecutor(arguments.jobs) as pool:

        def timed(name: str) -> tuple[Manifest, str, float]:
            began = time.monotonic()
            manifest, status = move(name)
            return manifest, status, time.monotonic() - began

        pending = {pool.submit(timed, name): name for name in names}
        try:
            for done in as_completed(pending):
                name = pending[done]
                advance()
                try:
                    manifest, status, seconds = done.result()
                except (InfrastructureError, OSError) as error:
                    failed.append(f"{name}: {error}")
                    print(f"swegym: {failed[-1]}", file=sys.stderr, flush=True)
                    continue
                if arguments.json:
                    sizes = {"size_bytes": manifest.size_bytes, "unpacked_bytes": manifest.unpacked_bytes}
                    made = {"layer": name, "status": status, "digest": manifest.digest, **sizes}
                    print(json.dumps({**made, "seconds": round(seconds, 3)}), flush=True)
                else:
                    sizes_mb = f"{manifest.size_bytes / 1e6:8.1f} MB of {manifest.unpacked_bytes / 1e6:8.1f} MB"
                    print(f"{name:42} {sizes_mb}  {seconds:6.1f} s  {status}", flush=True)
        finally:
            for waiting in pending:
                waiting.cancel()
    if not names and not arguments.json:
        print("nothing to do: all layers are on this machine")
    if failed:
        raise LayerError(f"{len(failed)} of {len(names)} layers failed; the first: {failed[0]}")
    return 0
