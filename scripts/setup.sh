#!/usr/bin/env bash
# Make .venv with everything that `make test`, `make check` and `make demo` need, then see to Apptainer.
#
#   scripts/setup.sh [STAMP]    STAMP: a file made when all went well
#
# PYTHON=/path/to/python chooses the interpreter. A .venv that is a link belongs to somebody else and is used as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly stamp=${1:-}

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

find_python() { # the first interpreter that is new enough and can make virtual environments
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.10 python3.14 python)
    if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

quiet=(-qq)
if [[ -t 1 ]]; then quiet=(); fi # a person sees pip's own progress bars
pip_install() { .venv/bin/python -m pip --no-input --disable-pip-version-check install "${quiet[@]}" -c constraints.txt "$@"; }

see_to_apptainer() {
    if command -v apptainer >/dev/null; then return; fi
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        scripts/install_apptainer.sh || say 'no Apptainer: sandboxes use user namespaces instead'
    else
        say 'no Apptainer: sandboxes use user namespaces instead (with root: scripts/install_apptainer.sh)'
    fi
}

if [[ -L .venv ]]; then exit 0; fi
say 'this takes some minutes and about 3.3 GB without a GPU (with one PyTorch brings gigabytes more); later calls take none'
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    python=$(find_python) || die "no Python >= 3.10 with venv among: ${PYTHON:-python3, python3.10 to python3.14}." \
        "Debian, Ubuntu: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python"
    say "making .venv with $("$python" -V) ($(command -v "$python"))"
    "$python" -m venv --clear .venv
fi
scripts/install_torch.sh .venv/bin/python "${quiet[@]}" # before all else, so that nothing else decides which build comes
extras=train,serve,grammar,grammars,dev
if command -v nvidia-smi >/dev/null; then extras+=,gpu; fi
say "installing the project and its tools ($extras)"
pip_install -e ".[$extras]" || die "the project's dependencies could not be installed; pip's last lines say why"
# The parsers and the grading of the SWE-bench harness, which verdicts are held against; the rest of what that package
# asks for (docker, modal, …) serves parts that are not used here.
pip_install --no-deps swebench || die "the SWE-bench harness could not be installed; pip's last lines say why"
# The agent that examples/agent_mini_swe.py drives; what its models ask for (litellm, openai, …) is not needed for that.
pip_install --no-deps mini-swe-agent || die "mini-swe-agent could not be installed; pip's last lines say why"
see_to_apptainer
scripts/install_test_tools.sh || say 'some tests will be skipped: scripts/install_test_tools.sh says what they need'
rm -f .venv/.setup-*
if [[ -n $stamp ]]; then touch "$stamp"; fi
say 'ready'
