"""`swegym gc`: remove the sandboxes and unfinished layers that dead processes left behind."""

from __future__ import annotations

import argparse
import json
from typing import Any

from swegym_env.cli.options import add_command, add_json

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `gc` to the commands of `swegym`."""
    parser = add_command(commands, "gc", _run, "remove sandboxes and unfinished layers of dead processes", "swegym gc")
    add_json(parser, "")


def _run(options: argparse.Namespace) -> int:
    from swegym_env.paths import work_dir
    from swegym_env.sandbox.gc import collect_garbage
    from swegym_env.sandbox.layers import LayerStore

    report = collect_garbage()
    layers = [path for kind in ("layers", "images") for path in LayerStore(work_dir() / kind).collect_garbage()]
    found = {"sandboxes": report.directories, "processes": report.processes, "layers": [path.name for path in layers]}
    if options.json:
        print(json.dumps({**found, "in_use": report.kept, "failed": report.failed}))
    else:
        removed = ", ".join(f"{len(names)} {kind}" for kind, names in found.items())
        print(f"removed of dead owners: {removed}; {report.kept} sandboxes are in use")
        for line in report.failed:
            print(f"not removed: {line}")
    return 1 if report.failed else 0
