#!/usr/bin/env bash
# Test the adapters for OpenEnv against the real package, which needs another version of the Model Context Protocol than
# ours and lives in .venv-openenv: 500 MB, a minute the first time.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! .venv-openenv/bin/python -c 'import openenv, pytest, gymnasium' 2>/dev/null; then
    .venv/bin/python -m venv .venv-openenv
    .venv-openenv/bin/python -m pip install -q -e '.[openenv]' openenv==0.10.0 pytest
fi
# Without this project's settings of pytest, whose plugins are not there.
exec .venv-openenv/bin/python -m pytest -c /dev/null --rootdir="$PWD" --noconftest -p no:cacheprovider -q -o markers=campaign \
    tests/env/adapters/in_openenv.py "$@"
