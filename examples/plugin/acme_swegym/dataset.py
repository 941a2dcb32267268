"""A dataset: a function from a split to rows, here of the family of this package."""

from typing import Any

RUNNER = """\
for test in tests/*_test.sh; do
  if sh "$test"; then echo "ok $test"; else echo "not ok $test"; failed=1; fi
done
[ -z "$failed" ]
"""


def load(split: str | None) -> list[dict[str, Any]]:
    """Two arithmetic scripts that compute something else than their names say; there is one split."""
    return [
        {
            "acme_id": f"acme__{name}",
            "issue": f"`sh {name}.sh 6 3` should print {right}.",
            "files": {f"{name}.sh": "echo $(($1 / $2))\n", "run_tests.sh": RUNNER},
            "solution": {f"{name}.sh": f"echo $(($1 {sign} $2))\n"},
            "tests": {f"tests/{name}_test.sh": f"[ $(sh {name}.sh 6 3) = {right} ]\n"},
        }
        for name, sign, right in (("add", "+", 9), ("subtract", "-", 3))
    ]
