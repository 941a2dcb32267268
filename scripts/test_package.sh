#!/usr/bin/env bash
# Install the wheel of dist/ into new environments that see nothing of this checkout, and use it as its users do.
#
#   make test-package ARGS="[PYTHON …] [--train] [--lowest]"
#
#   PYTHON     versions or paths, such as 3.10 or /usr/bin/python3.13 (by default: .venv's own)
#   --train    with the extra `train` too, and one update of examples/configs/frozen_lake.yaml
#   --lowest   with the lowest versions that pyproject.toml allows, in place of those of constraints.txt; uv finds them.
#              With --train, for Linux's x86_64 that PyTorch is a build with CUDA, of gigabytes.
#
# For each: every extra resolves by constraints.txt; the programs run, an episode is played, a type checker reads the
# types of both packages, the server's modules are imported.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
train='' lowest='' pythons=()
for argument; do
    case $argument in
        --train) train=yes ;;
        --lowest) lowest=yes ;;
        *) pythons+=("$argument") ;;
    esac
done
((${#pythons[@]})) || pythons=("$root/.venv/bin/python")
wheel=$(echo "$root"/dist/*.whl)
[[ -f $wheel ]] || { echo "test_package: expected one wheel in dist/, found: $wheel. Try: make build" >&2; exit 2; }
version=$(sed -nE 's/^version = "(.*)"/\1/p' pyproject.toml)

work=$(mktemp -d /tmp/swegym-package-XXXXXX)
chmod 755 "$work" # sandboxes of root belong to another user
trap 'rm -rf "$work"' EXIT
export SWEGYM_WORKDIR=$work/work SWEGYM_RUNDIR=$work/run
unset PYTHONPATH

say() { printf '%s: %s\n' "$python" "$*"; }

interpreter() { # of a version, by the names under which they are installed
    local name
    for name in "$1" "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$name" -c '' 2>/dev/null; then command -v "$name" && return; fi
    done
    echo "test_package: no Python $1" >&2
    return 2
}

check_types() { # as a user's own mypy would, in an empty folder
    cat >user.py <<'END'
from collections.abc import Sequence

import swegym_env
from swegym_env.env import SWEBenchEnv
from swe_trainers.cli.completion import settings_of

version: str = swegym_env.__version__
env = SWEBenchEnv("mini")
env.reset(seed="one")
values: Sequence[int] = dict(settings_of(int))["a"]
END
    local found
    found=$("$bin/python" -m mypy --strict user.py) && { say "mypy found nothing wrong in what is wrong"; return 1; }
    # Two mistakes that only the packages' own types tell, and nothing else: no package without types.
    [[ $(grep -c 'error:' <<<"$found") == 2 && $found == *'user.py:9:'*'"seed"'* && $found == *'user.py:10:'* ]] ||
        { echo "$found"; return 1; }
}

for python in "${pythons[@]}"; do
    from=$(interpreter "$python")
    place=$(mktemp -d "$work/XXXXXX")
    chmod 755 "$place"
    cd "$place"
    "$from" -m venv venv
    bin=$place/venv/bin
    pip=("$bin/python" -m pip -q --no-input --disable-pip-version-check)
    pins=$root/constraints.txt
    if [[ -n $lowest ]]; then
        "${pip[@]}" install uv
        pins=$place/lowest.txt
        "$bin/uv" pip compile -q --no-config --python "$bin/python" --resolution lowest-direct --extra serve \
            ${train:+--extra train} --output-file "$pins" "$root/pyproject.toml"
    fi
    "${pip[@]}" install -c "$pins" "$wheel"
    "${pip[@]}" check
    if "$bin/python" -c 'import torch' 2>/dev/null; then say 'the environment brought PyTorch along' && exit 1; fi
    [[ $("$bin/swegym" --version) == "swegym $version" ]]
    "$bin/swegym" doctor >doctor.txt || { cat doctor.txt && exit 1; }
    printf 'search --help\nls\nsubmit\n' | "$bin/swegym" run --dataset mini --tools default >episode.txt
    grep -q 'usage: search' episode.txt && grep -q 'FAIL_TO_PASS 0/' episode.txt
    "$bin/swegym" completion bash | bash -n
    "${pip[@]}" install -c "$root/constraints.txt" mypy
    check_types
    say "the environment: doctor, an episode, completion, types"
    "${pip[@]}" install -c "$pins" "$wheel[serve]"
    "$bin/python" -W error -c 'import swegym_env.serving.pool, swegym_env.serving.server, swegym_env.vector'
    "${pip[@]}" install --upgrade pip # older ones fetch whole wheels to know what they need
    if [[ -z $lowest ]]; then
        for extra in train gpu swebench ray serve dev; do
            "${pip[@]}" install --dry-run -c "$pins" "$wheel[$extra]"
        done
        say 'every extra resolves'
    fi
    if [[ -n $train ]]; then
        [[ -n $lowest ]] || "$root/scripts/install_torch.sh" "$bin/python" -q
        "${pip[@]}" install -c "$pins" "$wheel[train]"
        "${pip[@]}" check
        cp "$root/examples/configs/frozen_lake.yaml" .
        "$bin/swe-train" frozen_lake.yaml --quiet --trainer.max_updates 1 --evaluation.episodes 0
        [[ -f runs/frozen_lake/model/model.safetensors ]]
        "$bin/swe-eval" runs/frozen_lake --episodes 8
        say 'the trainer: one update, its model measured'
    fi
    rm -rf "$place"
done
