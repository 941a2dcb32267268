"""`swegym export`: the ids, images and rows of a dataset, its tasks in Harbor's format, or recorded episodes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swegym_env.cli.options import DATASETS, add_command, add_dataset_arguments, add_json, add_repos, load_chosen
from swegym_env.errors import ConfigurationError
from swegym_env.files import write_atomically
from swegym_env.tasks.task import Task

__all__ = ["EXPORTED", "FORMATS", "TRAJECTORIES", "add_parser", "export_tasks", "export_trajectories"]

EXPORTED = ("instance_ids.txt", "docker_images.txt", "evaluation.jsonl", "predictions.jsonl")
"""The files that `export_tasks` writes."""

FORMATS = ("swe-bench", "harbor")
"""The forms in which a dataset is written."""

TRAJECTORIES = ("atif", "messages", "records")
"""The forms in which `export_trajectories` writes episodes."""


def add_parser(commands: Any) -> None:
    """Add `export` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "export",
        _run,
        "write a dataset for the SWE-bench harness or Harbor, or recorded episodes",
        "swegym export rows.jsonl --output exported/ --where repo='django/*'",
        more=": instance_ids.txt, docker_images.txt, evaluation.jsonl and predictions.jsonl, the last two as the "
        "SWE-bench harness reads them. With --format harbor: a folder for each task, as Harbor and Harbor-v0 play it. "
        "With --trajectories: recorded episodes, or trajectories of other programs in "
        "ATIF, in another form.",
    )
    parser.add_argument("dataset", help=f"{DATASETS}; with --trajectories a folder of episodes, or a file in ATIF")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder to write into")
    parser.add_argument(
        "--format", choices=FORMATS, default="swe-bench", help="format of the tasks (default swe-bench)"
    )
    add_repos(parser)
    parser.add_argument(
        "--predictions",
        choices=["gold", "empty"],
        default="gold",
        help="patches of predictions.jsonl (default gold)",
    )
    parser.add_argument(
        "--trajectories",
        choices=TRAJECTORIES,
        help="write episodes: as documents in ATIF 1.7, as conversations to learn from (messages.jsonl, those that are "
        "valid), or as records for view and replay",
    )
    parser.add_argument("--resolved", action="store_true", help="only episodes that solved their task")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    add_dataset_arguments(parser)
    add_json(parser, "")


def _run(options: argparse.Namespace) -> int:
    if options.trajectories:
        names = export_trajectories(
            options.dataset,
            options.output,
            options.trajectories,
            resolved_only=options.resolved,
            force=options.force,
        )
        print(json.dumps({"output": str(options.output), "written": names}) if options.json else "\n".join(names))
        return 0
    if options.resolved:
        raise ConfigurationError("--resolved: has no effect on a dataset. Try: --trajectories")
    tasks = load_chosen(options, options.dataset)
    if options.format == "harbor":
        from swegym_env.harbor.export import export_harbor_tasks

        folders = export_harbor_tasks(tasks, options.output, repos=options.repos, force=options.force)
        names = [folder.name for folder in folders]
        print(json.dumps({"output": str(options.output), "written": names}) if options.json else "\n".join(names))
        return 0
    if options.repos:
        raise ConfigurationError("--repos: has no effect on rows. Try: --format harbor")
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


def export_trajectories(
    place: str | Path, output: Path, form: str, *, resolved_only: bool = False, force: bool = False
) -> list[str]:
    """Write the episodes at `place` into the folder `output`.

    Args:
        place: a folder of recorded episodes or documents in ATIF, or one document.
        form: "atif": a document for each episode; "messages": one conversation a line in `messages.jsonl`, without
            episodes in which the machine failed; "records": a folder for each episode.
        resolved_only: leave out episodes that did not solve their task.
        force: replace existing files.

    Returns:
        The names of what was written, in order.

    Raises:
        ConfigurationError: there are no such episodes, or a file exists already or cannot be written.
    """
    from swegym_env.adapters.atif import to_atif
    from swegym_env.adapters.episodes import messages_of, read_episodes
    from swegym_env.recording.record import write_record

    found = list(read_episodes(place))
    records = [record for record in found if record.ending.get("resolved") or not resolved_only]
    if found and not records:
        raise ConfigurationError(f"{place}: none of {len(found)} episodes is resolved. Try: without --resolved")
    if form == "records":
        return [write_record(output, record).name for record in records]
    files: dict[str, str] = {}
    if form == "messages":
        conversations = [messages_of(record) for record in records if record.ending.get("valid", True) and record.turns]
        files["messages.jsonl"] = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in conversations)
    else:
        for record in records:
            name = record.place.name.removesuffix(".json") if record.place else record.instance_id
            if f"{name}.json" in files:
                raise ConfigurationError(f"{place}: two episodes are named {name}. Try: one folder after the other")
            files[f"{name}.json"] = json.dumps(to_atif(record), ensure_ascii=False, indent=1) + "\n"
    existing = [name for name in files if os.path.lexists(output / name)]
    if existing and not force:
        raise ConfigurationError(f"--output: {output / existing[0]} exists already. Try: --force, or another folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(output / name, content)
    except OSError as error:
        raise ConfigurationError(f"--output: {output}: cannot be written: {error.strerror or error}") from error
    return list(files)
