# `make demo` and `make test` are all that a fresh machine with Python >= 3.10, git and make needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*[#][#] .*/\1/p' $(firstword $(MAKEFILE_LIST)))

PY := .venv/bin/python
# Tests run in this many processes, each with one thread: some of them time what they test. What they import is compiled
# once, also where Python is asked to keep no bytecode: they start hundreds of programs.
WORKERS ?= 3
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q
# The set-up is done again when one of these changes, and costs nothing otherwise.
INPUTS := pyproject.toml setup.py constraints.txt scripts/setup.sh scripts/install_torch.sh scripts/install_test_tools.sh
STAMP := .venv/.setup-$(shell cat $(INPUTS) | cksum | cut -d' ' -f1)

help: ## say what there is to make
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r n t; do printf '  make %-14s %s\n' "$$n" "$$t"; done

setup: $(STAMP) ## make .venv with everything, and install Apptainer where root may (PYTHON=… chooses the interpreter)
	@:

$(STAMP):
	@scripts/setup.sh $(STAMP)

demo: setup ## the main job: train a language model to repair code in real sandboxes (ARGS=… is passed on)
	@OMP_WAIT_POLICY=passive $(PY) examples/demo.py $(ARGS)

test: adapters ## run the tests but the long campaigns (ARGS=… is passed on to pytest)
	@$(PYTEST) -m 'not campaign' $(ARGS)

test-all: adapters ## run all tests, the long campaigns too
	@$(PYTEST) $(ARGS)

check: setup ## lint, formatting, types, which package may import which, and whether the documentation builds
	@status=0; for tool in 'ruff check' 'ruff format --check' mypy 'lint-imports --no-logo' 'mkdocs build'; do \
	    echo "== $$tool"; PYTHONPATH=. NO_MKDOCS_2_WARNING=1 .venv/bin/$$tool || status=1; done; exit $$status

docs: setup ## build the documentation strictly, into build/docs/index.html
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

docs-serve: setup ## show the documentation at http://127.0.0.1:8000 while it is written
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve

bench-env: setup ## measure the sandbox engine beside its peers, into benchmarks/results/env.json (ARGS="--only steps,reset")
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.env $(ARGS)

bench-episodes: setup ## measure graded episodes beside other designs, into benchmarks/results/episodes.json (resumable; ARGS="--threads 1,8")
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.episodes $(ARGS)

bench-endurance: setup ## play 10,000 graded episodes, kill 200 owners, and count what grows or is left, into benchmarks/results/endurance.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.endurance $(ARGS)

bench-cores: setup ## simulate graded episodes per second on 8, 64 and 192 cores from measured parts, into benchmarks/results/cores.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.cores $(ARGS)

bench-remote: setup ## measure sandboxes over HTTP beside local ones, into benchmarks/results/remote.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.remote $(ARGS)

bench-gpu: setup ## measure kernels, updates and generation beside their peers on a GPU, into runs/bench_gpu (ARGS="rows linear")
	@PYTHON=$(PY) scripts/bench_gpu.sh --minutes 60 $(ARGS)

test-gpu: setup ## run the tests that need a GPU
	@$(PY) -m pytest -q tests/trainers/kernels/on_triton.py $(ARGS)

hostile-episodes: setup ## play 2,000 random hostile episodes, with grading, on both back ends (an hour on one core)
	@OMP_NUM_THREADS=1 SWEGYM_HOSTILE_EPISODES=1000 $(PY) -m pytest -n $(WORKERS) -q tests/env/test_hostile_episodes.py -m campaign --timeout 0 $(ARGS)

honest-rewrites: setup ## grade all honest rewrites of gold patches of `mini`, every one of which must resolve
	@OMP_NUM_THREADS=1 SWEGYM_ALL_REWRITES=1 $(PY) -m pytest -n $(WORKERS) -q tests/redteam/test_rewrites.py $(ARGS)

test-vllm: setup ## test generation by a real vLLM on this CPU, installed into .venv-vllm (3.5 GB)
	@scripts/test_vllm.sh $(ARGS)

test-adapter: setup ## run the tests of one adapter against the real peer (ADAPTER=harbor; scripts/test_adapter.sh names all)
	@scripts/test_adapter.sh $(ADAPTER) $(ARGS)

adapters: setup ## install the peers of adapters that need other versions than ours, each in an environment below .venv/adapters
	@scripts/test_adapter.sh --make

test-deepspeed: setup ## test ZeRO on CPU ranks by a real DeepSpeed, installed into .venv-deepspeed
	@scripts/test_deepspeed.sh $(ARGS)

bench-scale: setup ## simulate fleets of 10, 100 and 1,000 hosts from what was measured, into benchmarks/results/scale.json
	@$(PY) -m benchmarks.scale_simulation $(ARGS)

bench-reaping: setup ## kill servers, pools, owners, supervisors and shells of sandboxes 500 times, and count what is left or lost, into benchmarks/results/reaping.json
	@$(PY) -m benchmarks.reaping $(ARGS)

bench-blind-bits: setup ## bits of the blind expectations of a dataset's rows (ARGS: --dataset FILE --repos CLONES), into benchmarks/results/blind_bits.json
	@$(PY) -m benchmarks.blind_bits $(ARGS)

bench-neighbours: setup ## 31 honest environments beside a hostile sandbox, in ten ways, into benchmarks/results/neighbours.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.neighbours $(ARGS)

chaos: setup ## kill sandbox servers, pool, generation server and ranks while a policy learns, into benchmarks/results/chaos.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.chaos $(ARGS)

bench-learning: setup ## every algorithm learns from random weights, and every mutant does not (resumable; an hour on one core)
	@OMP_NUM_THREADS=1 nice -n 10 $(PY) -m benchmarks.learning $(ARGS)

bench-collecting: setup ## environment steps per second of processor time beside a plain loop and Stable-Baselines3, into benchmarks/results/collecting.json
	@$(PY) -m benchmarks.collecting $(ARGS)

bench-layers: setup ## what the repositories of a dataset take on disk, into benchmarks/results/layers.json
	@$(PY) -m benchmarks.layers $(ARGS)

bench-findings: setup ## the first verdict of a task on another machine, into benchmarks/results/findings.json
	@$(PY) -m benchmarks.findings $(ARGS)

bench-adapters: setup ## an episode through the back ends of mini-swe-agent, Harbor and verifiers beside ours, into benchmarks/results/adapters.json
	@scripts/test_adapter.sh peers --make
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.adapters $(ARGS)

bench-harbor: setup ## public Harbor tasks, their own solution and an empty answer, into benchmarks/results/harbor_tasks.json (ARGS=FOLDER)
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.harbor_tasks $(ARGS)

bench-tampering: setup ## published ways to forge a verdict, through other projects' grading and ours, into benchmarks/results/tampering.json
	@scripts/test_adapter.sh peers --make
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.tampering $(ARGS)

bench-programs: setup ## what SWEAgent-v0 costs beyond the agent's own work, into benchmarks/results/programs.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.programs $(ARGS)

bench-eval: setup ## 200 episodes of swe-eval: what of both cores goes into sandboxes and tests, into benchmarks/results/evaluation.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.evaluation $(ARGS)

bench-train: setup ## measure updates and generation beside their peers, into benchmarks/results/training.json (ARGS="--only growth:*")
	@OMP_NUM_THREADS=2 $(PY) -m benchmarks.training $(ARGS)

bench-ray: setup ## rollouts on a simulated Ray cluster of two nodes beside one worker, into benchmarks/results/ray_rollouts.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.ray_rollouts $(ARGS)

bench-async: setup ## episodes played ahead of the learner beside taking turns, into benchmarks/results/async_rollouts.json
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.async_rollouts $(ARGS)

pins: ## choose the exact versions of everything anew, with uv (ARGS=--upgrade raises them)
	@scripts/pins.sh $(ARGS)

build: setup ## make the wheel and the source archive in dist/, with the log in build/build.log
	@rm -rf build/lib build/bdist.* dist
	@mkdir -p build && { $(PY) -m build >build/build.log 2>&1 || { cat build/build.log; exit 1; }; } && ls dist/*

test-package: build ## install the wheel into new environments, and use what is in it (ARGS="3.10 3.13 --train", or ARGS="3.10 --lowest")
	@scripts/test_package.sh $(ARGS)

clean: ## remove build products and caches; .venv and runs/ stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
