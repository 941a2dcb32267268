#!/usr/bin/env bash
# Play Harbor tasks by Harbor's own command in our sandboxes, in .venv-harbor (Python 3.12 or newer; a minute the first time).
#
#   scripts/test_harbor.sh TASKS    a task folder, or a folder of them: the solution has to earn 1, and no answer 0
set -euo pipefail
tasks=$(realpath "${1:?a folder of Harbor tasks}")
cd "$(dirname "$0")/.."
python=${HARBOR_PYTHON:-.venv-harbor/bin/python}
if ! "$python" -c 'import harbor' 2>/dev/null; then
    newer=$(command -v python3.13 || command -v python3.12 || ls -d ~/.pyenv/versions/3.1[23]*/bin/python | head -1)
    "$newer" -m venv .venv-harbor
    .venv-harbor/bin/python -m pip install -q 'harbor>=0.24' gymnasium gitpython datasets unidiff
fi
export PYTHONPATH=$PWD
jobs=$(mktemp -d)
trap 'rm -rf "$jobs"' EXIT
for agent in oracle nop; do
    "$(dirname "$python")/harbor" run -y -q -p "$tasks" -a "$agent" -o "$jobs" --job-name "$agent" \
        --env swegym_env.adapters.harbor:SwegymEnvironment -n 1 >"$jobs/$agent.log" 2>&1 || { tail -20 "$jobs/$agent.log"; exit 1; }
done
"$python" - "$jobs" <<'END'
import json, sys
from pathlib import Path

missed = 0
for agent, expected in (("oracle", 1.0), ("nop", 0.0)):
    for place in sorted(Path(sys.argv[1], agent).glob("*/result.json")):
        result = json.loads(place.read_text())
        rewards = (result.get("verifier_result") or {}).get("rewards")
        error = (result.get("exception_info") or {}).get("exception_message", "")
        missed += rewards is None or rewards.get("reward") != expected
        print(f"{result['task_name']:40} {agent:7} {rewards} {error[:200]}")
sys.exit(bool(missed))
END
