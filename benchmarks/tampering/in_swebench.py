"""Runs in the peers' environment: the test script of SWE-bench's harness, and its grading of what that printed."""

from __future__ import annotations

import json
import sys

from swebench.harness.grading import get_eval_report
from swebench.harness.test_spec.test_spec import make_test_spec


def main() -> None:
    """Read an instance from standard input, and perhaps logs; print the script, or name → resolved."""
    request = json.load(sys.stdin)
    spec = make_test_spec(request["instance"])
    if "logs" not in request:
        print(json.dumps(spec.eval_script))
        return
    found = {}
    for name, log in request["logs"].items():
        prediction = {"instance_id": spec.instance_id, "model_patch": log["patch"], "model_name_or_path": "script"}
        report = get_eval_report(spec, prediction, log["path"], include_tests_status=True)[spec.instance_id]
        found[name] = {"reward": float(report["resolved"]), "error": ""}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
