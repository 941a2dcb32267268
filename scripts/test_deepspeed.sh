#!/usr/bin/env bash
# Test ZeRO on CPU ranks by a real DeepSpeed, which lives in .venv-deepspeed beside the packages of .venv: 20 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
env=.venv-deepspeed
if ! $env/bin/python -c 'import deepspeed' 2>/dev/null; then
    .venv/bin/python -m venv $env
    # A .pth, not --system-site-packages: .venv is an environment itself, and its packages are wanted.
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$($env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
    $env/bin/python -m pip install -q setuptools wheel ninja
    # Its compiled operators are made when they are used: some of them need a GPU to be compiled.
    DS_BUILD_OPS=0 $env/bin/python -m pip install -q --no-build-isolation --no-deps deepspeed==0.19.8
    $env/bin/python -m pip install -q --no-deps hjson==3.1.0 py-cpuinfo msgpack einops psutil
fi
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 TORCH_EXTENSIONS_DIR="$PWD/$env/operators" PATH="$PWD/$env/bin:$PATH"
# What ranks on one machine share memory by is compiled here, once: in a test both would wait minutes for it.
flock "$env" $env/bin/python -W ignore -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)'
# DeepSpeed warns on import of what it does without; our own tests take warnings for errors.
exec $env/bin/python -m pytest -q -W ignore tests/trainers/scale/on_deepspeed.py "$@"
