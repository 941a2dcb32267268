"""`swegym export`: the ids, images and rows of a dataset, for other tools."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swegym_env.cli.options import DATASETS, add_command, add_dataset_arguments, add_json, load_chosen
from swegym_env.errors import ConfigurationError
from swegym_env.tasks.task import Task

__all__ = ["EXPORTED", "add_parser", "export_tasks"]

EXPORTED = ("instance_ids.txt", "docker_images.txt", "evaluation.jsonl", "predictions.jsonl")
"""The files that `export_tasks` writes."""


def add_parser(commands: Any) -> None:
    """Add `export` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "export",
        _run,
        "write the ids, image names, evaluation rows and predictions of a dataset",
        "swegym export rows.jsonl --output exported/ --where repo='django/*'",
        more=": instance_ids.txt, docker_images.txt, evaluation.jsonl and predictions.jsonl, the last two as the "
        "SWE-bench harness reads them.",
    )
    parser.add_argument("dataset", help=DATASETS)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder to write into")
    parser.add_argument(
        "--predictions",
        choices=["gold", "empty"],
        default="gold",
        help="patches of predictions.jsonl (default gold)",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    add_dataset_arguments(parser)
    add_json(parser, "")


def _run(options: argparse.Namespace) -> int:
    tasks = load_chosen(options, options.dataset)
    written = export_tasks(tasks, options.output, predictions=options.predictions, force=options.force)
    if options.json:
        print(json.dumps({"output": str(options.output), "lines": written, "skipped": list(tasks.skipped)}))
    else:
        for name, lines in written.items():
            print(f"{options.output / name}  {lines} lines")
    return 0


def export_tasks(
    tasks: Iterable[Task], output: Path, *, predictions: str = "gold", force: bool = False
) -> dict[str, int]:
    """Write the four files of `EXPORTED` into the folder `output`, or none of them.

    - `instance_ids.txt`: one id per line.
    - `docker_images.txt`: the official images without duplicates and without `docker://`, as `docker pull` takes them.
    - `evaluation.jsonl`: the rows as the SWE-bench harness reads them (`--dataset_name`); its lists are JSON texts.
    - `predictions.jsonl`: `instance_id`, `model_name_or_path`, `model_patch` (`--predictions_path`): the gold patches,
      or empty ones to fill in.

    Args:
        predictions: "gold" or "empty".
        force: replace existing files.

    Returns:
        The number of lines of each file.

    Raises:
        ConfigurationError: one of the files exists already, or the folder cannot be written.
    """
    if predictions not in ("gold", "empty"):
        raise ConfigurationError(f"predictions: expected 'gold' or 'empty', got {predictions!r}")
    existing = [name for name in EXPORTED if os.path.lexists(output / name)]
    if existing and not force:
        raise ConfigurationError(f"--output: {output / existing[0]} exists already. Try: --force, or another folder")
    lines: dict[str, list[str]] = {name: [] for name in EXPORTED}
    images: dict[str, None] = {}
    for task in tasks:
        image = task.official_image.removeprefix("docker://")
        patch = task.patch if predictions == "gold" else ""
        prediction = {"instance_id": task.instance_id, "model_name_or_path": predictions, "model_patch": patch}
        # The columns of the 2026 release: those of earlier releases and four more.
        row = {
            "repo": task.repo,
            "instance_id": task.instance_id,
            "base_commit": task.base_commit,
            "patch": task.patch,
            "test_patch": task.test_patch,
            "problem_statement": task.problem_statement,
            "hints_text": task.hints_text,
            "created_at": task.created_at,
            "version": task.version,
            "FAIL_TO_PASS": json.dumps(list(task.fail_to_pass)),
            "PASS_TO_PASS": json.dumps(list(task.pass_to_pass)),
            "environment_setup_commit": task.environment_setup_commit,
            "image": image,
            "eval_script": task.eval_script,
            "log_parser": task.log_parser,
            "eval_type": task.eval_type,
        }
        lines["instance_ids.txt"].append(task.instance_id)
        images.update({image: None} if image else {})
        lines["evaluation.jsonl"].append(json.dumps(row, ensure_ascii=False))
        lines["predictions.jsonl"].append(json.dumps(prediction, ensure_ascii=False))
    lines["docker_images.txt"] = list(images)
    try:
        output.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".export-", dir=output))
        try:
            for name, content in lines.items():
                (scratch / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
            for name in lines:
                (scratch / name).replace(output / name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(f"--output: {output}: cannot be written: {error.strerror or error}") from error
    return {name: len(content) for name, content in lines.items()}
