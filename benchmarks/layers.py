"""`make bench-layers ARGS="--dataset rows.parquet --repos clones/"`: what the repositories of a dataset take on disk.

Builds the repository layer of each commit in an empty store, and compares the bytes of all layers, in which equal
files are stored once, with those that they would take one by one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.records import Row, row, write_results
from swegym_env.paths import work_dir
from swegym_env.repo.repositories import repository_layer
from swegym_env.sandbox.layers import LayerStore, disk_bytes
from swegym_env.tasks.datasets import load_tasks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--repos", help="folder of clones")
    parser.add_argument("--repo", action="append", help="only this repository")
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/layers.json")
    options = parser.parse_args(arguments)
    commits: dict[str, set[str]] = {}
    for task in load_tasks(options.dataset):
        if not options.repo or task.repo in options.repo:
            commits.setdefault(task.repo, set()).add(task.base_commit)
    rows: list[Row] = []
    all_together = all_apart = 0
    for name, each in sorted(commits.items()):
        with tempfile.TemporaryDirectory(dir=work_dir(), prefix="bench-layers-") as directory:
            Path(directory).chmod(0o755)
            store, seconds, apart = LayerStore(Path(directory) / "layers"), list[float](), list[int]()
            for commit in sorted(each):
                began = time.monotonic()
                layer = repository_layer(name, commit, source=options.repos, store=store)
                seconds.append(time.monotonic() - began)
                apart.append(disk_bytes(layer))
            together = disk_bytes(store.root)
            print(
                f"{name}: {len(each)} commits, {sum(apart) / 1e9:.2f} GB apart, {together / 1e9:.2f} together",
                flush=True,
            )
        rows += [
            row(name, "seconds", "s", seconds),
            row(name, "apart", "bytes", apart),
            row(name, "together", "bytes", [together]),
        ]
        all_together, all_apart = all_together + together, all_apart + sum(apart)
    ratios = {"together / apart": all_together / all_apart}
    print(ratios, write_results("layers", rows, ratios=ratios, packages=[], path=options.output), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
