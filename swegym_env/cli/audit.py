"""`swegym audit`: measures how good the tests of tasks are."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
from typing import Any

from swegym_env.auditing.audit import Audit, audit_many
from swegym_env.cli.options import (
    DATASETS,
    add_command,
    add_dataset_arguments,
    add_instances,
    add_jobs,
    add_json,
    add_repos,
    add_sandbox,
    add_test_timeout,
    chosen_instances,
    load_chosen,
    require_at_least,
    require_seconds,
    show_progress,
)
from swegym_env.errors import GradingError

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `audit` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "audit",
        run,
        "find tasks whose tests accept wrong patches or refuse right ones",
        "swegym audit --dataset mini --select :2 --mutants 10",
        more=": mutate the lines that the gold patch adds and leave out its changes one by one, which the tests must "
        "fail, and rewrite it equivalently, which must resolve under `strict`. What survives and what is refused is "
        "printed. An interrupted audit continues.",
    )
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    add_dataset_arguments(parser)
    add_instances(parser)
    parser.add_argument("--mutants", type=int, default=20, help="maximum number of mutants per task (default 20)")
    add_jobs(parser)
    add_repos(parser)
    add_sandbox(parser)
    add_test_timeout(parser)
    add_json(parser, "instance")


def run(options: argparse.Namespace) -> int:
    """Audit the chosen tasks; 0 if no variant survives and no rewrite is refused, else 1.

    Raises:
        ConfigurationError: an argument is invalid, or a task cannot be audited.
        GradingError: some tasks could not be graded; the others have been printed.
    """
    require_at_least(options, mutants=0, jobs=1)
    require_seconds(options, "timeout")
    chosen = chosen_instances(options, load_chosen(options, options.dataset))
    done: list[Audit] = []
    failures: list[str] = []
    with show_progress(len(chosen), "auditing") as advance:
        found = audit_many(
            chosen,
            jobs=options.jobs,
            on_audit=advance,
            mutants=options.mutants,
            seed=options.seed or 0,
            repos=options.repos,
            backend=options.sandbox,
            timeout_s=options.timeout,
        )
        for task, audit in found:
            if isinstance(audit, str):
                failures.append(f"{task.instance_id}: {audit}")
                print(f"swegym: {failures[-1]}", file=sys.stderr)
                continue
            done.append(audit)
            print(json.dumps(_summary(audit)) if options.json else _text(audit), flush=True)
    if not options.json and len(done) > 1:
        with_survivors = sum(bool(one.survivors) for one in done)
        refused = sum(len(one.false_rejects) for one in done)
        rewrites = sum(one.count("rewrite") for one in done)
        print(f"a variant survives in {with_survivors} of {len(done)} tasks; {refused} of {rewrites} rewrites refused")
    if failures:
        raise GradingError(f"{len(failures)} of {len(chosen)} could not be graded; the first: {failures[0]}")
    return 1 if any(one.is_broken or one.survivors or one.false_rejects for one in done) else 0


def _summary(audit: Audit) -> dict[str, Any]:
    return {
        "instance_id": audit.instance_id,
        "broken": audit.is_broken,
        "mutants": audit.count("mutant"),
        "partial": audit.count("partial"),
        "rewrites": audit.count("rewrite"),
        "mutation_score": audit.mutation_score,
        "survivors": [dataclasses.asdict(one) for one in audit.survivors],
        "false_rejects": [dataclasses.asdict(one) for one in audit.false_rejects],
    }


def _text(audit: Audit) -> str:
    if audit.is_broken:
        reason = audit.variants[0].reason or "its tests fail"
        return f"{audit.instance_id:44} broken: the gold patch does not resolve it: {reason}"
    tried = audit.count("mutant") + audit.count("partial")
    counts = f"{len(audit.survivors)} of {tried} variants survive"
    lines = [
        f"{audit.instance_id:44} {counts}, {len(audit.false_rejects)} of {audit.count('rewrite')} rewrites refused"
    ]
    for one in audit.survivors:
        lines += [f"  survives: {one.name}", textwrap.indent(one.change, "    ")]
    lines += [f"  refused: {one.name}: {one.reason}" for one in audit.false_rejects]
    return "\n".join(lines)
