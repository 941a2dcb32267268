#!/usr/bin/env bash
# Start `swe-train` on every node of a SLURM allocation, under torchrun; the .sbatch files beside it call this.
#
#   CONFIG=run.yaml          the run
#   MODEL_CONFIG=model.yaml  overrides it: the file with the model's section (optional)
#   RANKS_PER_NODE=6         fewer than there are GPUs, where a generation server takes the last ones (engine.gpus: "6,7")
#   MAX_RESTARTS=3           so often a node's ranks are started again where one dies, each time from the last checkpoint
#   CONTAINER=training.sif   run inside this image (optional); scripts/containers/training.def makes it
#   PYTHON=/path/to/python   the interpreter; by default that of the container, else .venv/bin/python
#   DRY_RUN=1                print what would be run
#   further arguments        are passed on to swe-train
set -euo pipefail

: "${CONFIG:?CONFIG: name the YAML file of the run}"
[[ -r $CONFIG ]] || { echo "launch.sh: CONFIG: $CONFIG cannot be read" >&2; exit 2; }
if [[ -n ${MODEL_CONFIG:-} && ! -r $MODEL_CONFIG ]]; then
    echo "launch.sh: MODEL_CONFIG: $MODEL_CONFIG cannot be read" >&2
    exit 2
fi

readonly nodes=${SLURM_NNODES:-1} ranks=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
python=(.venv/bin/python)
if [[ -n ${CONTAINER:-} ]]; then python=(apptainer exec --nv "$CONTAINER" python); fi
if [[ -n ${PYTHON:-} ]]; then python[-1]=$PYTHON; fi
head=localhost
if command -v scontrol >/dev/null && [[ -n ${SLURM_JOB_NODELIST:-} ]]; then
    head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi

arguments=("$CONFIG")
if [[ -n ${MODEL_CONFIG:-} ]]; then
    model=$("${python[@]}" -c 'import json, sys; from omegaconf import OmegaConf as O
for key, value in O.to_container(O.load(sys.argv[1])).items(): print(f"--{key}={json.dumps(value, ensure_ascii=False)}")' \
        "$MODEL_CONFIG")
    if [[ -n $model ]]; then mapfile -t -O 1 arguments <<<"$model"; fi
fi

# Else ranks that are started again meet in the store of the former ones, and look for them (PyTorch 2.13).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
command=("${python[@]}" -m torch.distributed.run --nnodes "$nodes" --nproc-per-node "$ranks" --rdzv-backend c10d
    --max-restarts "${MAX_RESTARTS:-3}"
    --rdzv-id "${SLURM_JOB_ID:-local}" --rdzv-endpoint "$head:${MASTER_PORT:-29500}"
    -m swe_trainers.cli.main "${arguments[@]}" --scale.fsdp true "$@")
if ((nodes > 1)); then command=(srun --ntasks-per-node 1 --kill-on-bad-exit 1 "${command[@]}"); fi
if [[ ${DRY_RUN:-} == 1 ]]; then printf '%s\n' "${command[@]}"; exit 0; fi
exec "${command[@]}"
