#!/usr/bin/env bash
# Measure on a GPU machine from a bare copy of the source: no git, no .venv, no network. It needs a Python >= 3.10 with
# PyTorch, Triton, transformers and NumPy; the part `tests` also pytest and hypothesis.
#
#   scripts/bench_gpu.sh [PART ...] [--output DIR] [--wheels DIR] [--minutes M] [--peers none] [--seconds S] [--device cpu]
#
#   PART       rows, linear, layers, update, generation, learning, tests; all if none is given
#   --output   folder of the results (default $OUT, else runs/bench_gpu): PART.jsonl, a line as soon as it is measured,
#              and kernels.json; the same command again measures what is missing
#   --wheels   folder with wheels of peers and of what they need; a peer that is not there is a row "peer absent"
#   --minutes  stop then (default 9); what was measured is kept
#   --peers    none measures ours alone, to tune it
#   --seconds  the rounds of a case end after this long (default 6)
#   --device   cpu shows at tiny sizes, under Triton's interpreter, that everything runs
#
# PYTHON=/path/to/python chooses the interpreter. Exit code: 0 all measured, 1 something failed, 3 run it again.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
readonly root python=${PYTHON:-python3}

output=${OUT:-} wheels='' minutes=9 device=cuda peers=all seconds=6 parts=()
while (($#)); do
    case $1 in
    --output | --wheels | --minutes | --device | --peers | --seconds)
        (($# > 1)) || { echo "bench_gpu: $1 needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift
        ;;
    -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit
        ;;
    -*) echo "bench_gpu: no option $1; --help lists them" >&2; exit 2 ;;
    *) parts+=("$1") ;;
    esac
    shift
done
output=${output:-$root/runs/bench_gpu}
mkdir -p "$output"
output=$(cd "$output" && pwd)

path=$root
if [[ -n $wheels ]]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    # Unpacked, not installed: packages that share a folder (those of cutlass-dsl) would replace each other's.
    for wheel in "$wheels"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$site" || echo "bench_gpu: $wheel could not be unpacked" >&2
    done
    # Python reads .pth files of site folders, not of those in PYTHONPATH.
    printf 'import os, site\n\nsite.addsitedir(os.path.dirname(__file__))\n' >"$site/sitecustomize.py"
    path+=:$site
fi

cd "$root"
export PYTHONPATH=$path PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
# The benchmark stops in time by itself, less what the wheels took; what does not return is killed half a minute later.
left=$(awk "BEGIN { print $minutes - $SECONDS / 60 }")
status=0
timeout --foreground --kill-after=10 "$(awk "BEGIN { print ($left > 0 ? $left : 0) * 60 + 20 }")" \
    "$python" -m benchmarks.gpu "${parts[@]}" --output "$output" --minutes "$left" --device "$device" --peers "$peers" \
    --seconds "$seconds" ||
    status=$?
if ((status == 124 || status == 137)); then status=3; fi
exit "$status"
