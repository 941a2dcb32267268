"""`swegym certify`: measures how far the verdicts on tasks can be trusted."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from swegym_env.certifying.certification import certify_many
from swegym_env.cli.options import (
    DATASETS,
    add_command,
    add_dataset_arguments,
    add_instances,
    add_jobs,
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
from swegym_env.grading.certificates import Certificate

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `certify` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "certify",
        run,
        "find flaky and broken tasks",
        "swegym certify --dataset made/tasks.jsonl -n 3 -j 2",
        more=": grade the gold patch and the empty patch of each task repeatedly, with different hash seeds, on a busy "
        "machine and in other orders of the tests, and gold with negative controls: hidden tests with a wrong expected "
        "value, which must fail. The results are stored, and the environment shows them in info['trust'].",
    )
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    add_dataset_arguments(parser)
    add_instances(parser)
    parser.add_argument(
        "-n", "--trials", type=int, default=3, help="number of times that each patch is graded (default 3)"
    )
    add_jobs(parser)
    add_repos(parser)
    add_sandbox(parser)
    add_test_timeout(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per instance")


def run(options: argparse.Namespace) -> int:
    """Certify the chosen tasks; 0 if every task is sound, 1 if one is not.

    Raises:
        ConfigurationError: an argument is invalid.
        GradingError: some tasks could not be graded; the others have been printed.
    """
    require_at_least(options, trials=1, jobs=1)
    require_seconds(options, "timeout")
    chosen = chosen_instances(options, load_chosen(options, options.dataset))
    unsound = 0
    failures: list[str] = []
    with show_progress(len(chosen), "certifying") as advance:
        found = certify_many(
            chosen,
            jobs=options.jobs,
            on_certificate=advance,
            trials=options.trials,
            repos=options.repos,
            backend=options.sandbox,
            timeout_s=options.timeout,
        )
        for task, certificate in found:
            if isinstance(certificate, str):
                failures.append(f"{task.instance_id}: {certificate}")
                print(f"swegym: {failures[-1]}", file=sys.stderr)
                continue
            unsound += certificate.status != "sound"
            print(json.dumps(_summary(certificate)) if options.json else _line(certificate), flush=True)
    if not options.json and len(chosen) > 1:
        print(f"sound {len(chosen) - unsound - len(failures)} of {len(chosen)}")
    if failures:
        raise GradingError(f"{len(failures)} of {len(chosen)} could not be graded; the first: {failures[0]}")
    return 1 if unsound else 0


def _summary(certificate: Certificate) -> dict[str, Any]:
    trials = [{"patch": one.patch, "seed": one.seed, "order": one.order} for one in certificate.trials if not one.right]
    controls = [{"seed": one.seed, "tests": one.reason, "change": one.change} for one in certificate.passed_controls]
    return {
        "instance_id": certificate.instance_id,
        "status": certificate.status,
        "trust": certificate.trust,
        "trials": len(certificate.trials),
        "wrong": trials,
        "passed_controls": controls,
        "flaky_tests": certificate.flaky_tests,
        "order_dependent_tests": certificate.order_dependent_tests,
        "broken_tests": certificate.broken_tests,
        "reason": certificate.reason,
    }


def _line(certificate: Certificate) -> str:
    text = f"{certificate.instance_id:44} {certificate.status:15}  trust {certificate.trust:4.2f}  {certificate.reason}"
    return text.rstrip()
