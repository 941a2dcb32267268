#!/usr/bin/env bash
# Test the adapter of Inspect against the real package, which needs other versions than ours and lives in .venv-inspect:
# 300 MB, a minute the first time. Inspect's own check of sandboxes, `inspect eval` with a scripted model, what the
# machine breaks, and what a killed process leaves.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! .venv-inspect/bin/python -c 'import inspect_ai, pytest_asyncio, gymnasium' 2>/dev/null; then
    .venv/bin/python -m venv .venv-inspect
    .venv-inspect/bin/python -m pip install -q inspect-ai==0.3.285 pytest pytest-asyncio
    .venv-inspect/bin/python -m pip install -q -e .
fi
# Without this project's settings of pytest, whose plugins are not there.
exec .venv-inspect/bin/python -m pytest -c /dev/null --rootdir="$PWD" --noconftest -p no:cacheprovider -q \
    -o asyncio_mode=auto tests/env/adapters/in_inspect.py "$@"
