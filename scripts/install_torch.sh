#!/usr/bin/env bash
# Install PyTorch by the pin of constraints.txt: with CUDA where there is an NVIDIA driver, else for the CPU alone, which
# is a tenth of the size.
#
#   scripts/install_torch.sh [PYTHON [PIP OPTIONS]]    PYTHON: python, else python3, if none is given
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$(command -v python || command -v python3 || echo python3)} # Debian has no python outside of an environment
shift || true

say() { printf 'setup: %s\n' "$*"; }
pip_install() { "$python" -m pip --no-input --disable-pip-version-check install "$@" -c "$here/constraints.txt"; }

version=$(sed -nE 's/^torch==([^ ;]+).*/\1/p' "$here/constraints.txt")
if command -v nvidia-smi >/dev/null; then
    say "installing PyTorch $version with CUDA"
    pip_install "$@" "torch==$version"
    exit
fi
say "installing PyTorch $version for the CPU"
pip_install "$@" "torch==$version+cpu" 2>/dev/null ||
    pip_install "$@" --retries 1 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" 2>/dev/null ||
    pip_install "$@" "torch==$version" || { say "PyTorch $version could not be installed; pip's last lines say why" >&2; exit 1; }
