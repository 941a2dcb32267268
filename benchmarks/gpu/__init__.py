"""The kernels, an update and generation on one GPU, beside their peers; `scripts/bench_gpu.sh` and `make bench-gpu`."""
