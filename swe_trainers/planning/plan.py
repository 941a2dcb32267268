"""`swe-train CONFIG --dry-run`: the model, memory, disk space and episodes of a run, without running it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.planning.architecture import Architecture, architecture_of, find_config, weights_are_here
from swe_trainers.planning.memory import disk_bytes, estimate_memory
from swe_trainers.planning.preflight import existing_parent, problems
from swe_trainers.run_config import RunConfig

__all__ = ["plan_run", "plan_text"]

_RANKS = (1, 2, 4, 8)


def plan_run(config: RunConfig, *, problem: str = "", vocabulary: int | None = None) -> dict[str, Any]:
    """The needs of a run.

    Args:
        config: of the run.
        problem: why the environment or the tokenizer cannot be loaded here; empty if they can.
        vocabulary: size of a word tokenizer's vocabulary, if it is known.
    Returns:
        Values for JSON: `model`, `memory` (bytes by part, for several numbers of GPUs if sharded), `episodes`,
        `environments`, `disk`, `fetched` (downloads), and `problems`: those that prevent the run on this machine, one
        line each.
    """
    found_problems = [*([problem] if problem else []), *problems(config)]
    model = None
    try:
        if config.model.tinker is None:
            model = architecture_of(config.model.path, config.model.architecture, vocabulary=vocabulary)
    except ConfigurationError as error:
        found_problems.append(str(error))
    return {
        "algorithm": config.algorithm,
        "model": _model(config, model),
        "memory": None if model is None else _memory(config, model),
        "episodes": _episodes(config),
        "demonstrations": None if config.demonstrations is None else str(config.demonstrations),
        "environments": _environments(config),
        "disk": _disk(config, model),
        "fetched": _fetched(config, model),
        "problems": [*dict.fromkeys(found_problems)],
    }


def plan_text(plan: Mapping[str, Any]) -> str:
    """A plan as text."""
    lines = [f"algorithm   {plan['algorithm']}", *_model_lines(plan["model"])]
    lines += _memory_lines(plan["memory"])
    episodes, environments, disk = plan["episodes"], plan["environments"], plan["disk"]
    if episodes is not None:
        lines.append(
            f"episodes    {episodes['per_update']:,} per update, of at most {episodes['tokens_per_update']:,} tokens, "
            f"{episodes['total']:,} in {episodes['updates']:,} updates"
        )
        memory = environments["memory_bytes"]
        held = "" if memory is None else f", {_bytes(memory)} of memory at their limits"
        lines.append(
            f"parallel    {environments['parallel']} environments{held}; this machine: {environments['cores']} cores, "
            f"{_bytes(environments['machine_memory_bytes'])}"
        )
    else:
        lines.append(f"episodes    none: trained on {plan['demonstrations']}")
    written = (
        "checkpoints of unknown size" if disk["needed_bytes"] is None else f"{_bytes(disk['needed_bytes'])} at most"
    )
    lines.append(f"disk        {written} in {disk['output_dir']} ({_bytes(disk['free_bytes'])} free)")
    lines += [f"downloads   {line}" for line in plan["fetched"]] or ["downloads   nothing"]
    lines += ["", "problems that prevent the run here:" if plan["problems"] else "no problem found"]
    return "\n".join([*lines, *(f"  - {problem}" for problem in plan["problems"])]) + "\n"


def _model(config: RunConfig, model: Architecture | None) -> dict[str, Any]:
    if config.model.tinker is not None:
        return {"name": config.model.tinker.base_model, "parameters": None, "server": "Tinker's API"}
    described: dict[str, Any] = {"name": config.model.path or config.model.architecture.get("model_type")}
    described |= {"dtype": config.model.dtype, "bits": config.model.bits, "random_weights": config.model.path is None}
    if model is None:
        return {**described, "parameters": None}
    sizes = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.name != "linear_layers"}
    lora = config.model.lora
    trained = model.parameters if lora is None else model.adapter_parameters(lora.rank, lora.targets)
    return {**described, **sizes, "trained_parameters": trained, "lora_rank": None if lora is None else lora.rank}


def _model_lines(model: Mapping[str, Any]) -> list[str]:
    if "server" in model:
        return [f"model       {model['name']}: on a server of {model['server']}"]
    if model["parameters"] is None:
        return [f"model       {model['name']}: neither its config.json nor a size in its name is available"]
    about = "" if model["exact"] else "about "
    kind = (
        "random weights"
        if model["random_weights"]
        else model["dtype"]
        if not model["bits"]
        else f"{model['bits']} bits"
    )
    what = f"{about}{_count(model['parameters'])} parameters in {model['layers']} layers, {kind}"
    trained = model["trained_parameters"]
    adapters = "" if model["lora_rank"] is None else f" by adapters of rank {model['lora_rank']}"
    lines = [f"model       {model['name']}: {what}", f"            trains {_count(trained)}{adapters}"]
    if not model["exact"]:
        lines.append("            estimated from the size in its name, within about a third: there is no config.json")
    return lines


def _memory(config: RunConfig, model: Architecture) -> list[dict[str, Any]]:
    cuda = config.model.device.startswith("cuda") or config.model.path is not None or _has_gpu()
    judge = None
    if config.reward is not None and config.reward.model is not None:
        try:
            judge = architecture_of(str(config.reward.model), {})
        except ConfigurationError:
            judge = None  # listed among the problems
    world = int(os.environ.get("WORLD_SIZE", "0"))
    ranks: Sequence[int] = (1,) if not config.scale.fsdp else (world,) if world else _RANKS
    found = []
    for count in ranks:
        memory = estimate_memory(config, model, judge=judge, ranks=count, cuda=cuda)
        found.append({"devices": count, "gpu": cuda, "peak_bytes": memory.peak, "parts": dict(memory.parts())})
    return found


def _memory_lines(memory: list[dict[str, Any]] | None) -> list[str]:
    if memory is None:
        return ["memory      unknown without the model's size"]
    lines = []
    for row in memory:
        where = "GPU" if row["gpu"] else "CPU"
        many = f" on each of {row['devices']} GPUs" if row["devices"] > 1 else f" on one {where}"
        lines.append(f"memory      about {_bytes(row['peak_bytes'])}{many}")
    parts = {name: size for name, size in memory[-1]["parts"].items() if size}
    return [*lines, "            " + ", ".join(f"{name} {_bytes(size)}" for name, size in parts.items())]


def _episodes(config: RunConfig) -> dict[str, int] | None:
    plan = config.trainer.rollout_plan
    if plan is None:
        return None
    return {
        "per_update": plan.episodes,
        "updates": plan.updates,
        "total": plan.episodes * plan.updates,
        "tokens_per_update": plan.episodes * config.environment.max_tokens,
    }


def _environments(config: RunConfig) -> dict[str, Any]:
    """The number of parallel environments, and their memory limit if the configuration has one."""
    limits = config.environment.kwargs.get("limits")
    each = limits.get("memory_bytes") if isinstance(limits, Mapping) else None
    measured = 2 if config.environment.training_wrappers and config.evaluation.episodes else 1
    return {
        "parallel": config.environment.parallel * measured,
        "memory_bytes": int(each * config.environment.parallel) if isinstance(each, (int, float)) else None,
        "cores": len(os.sched_getaffinity(0)),
        "machine_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _disk(config: RunConfig, model: Architecture | None) -> dict[str, Any]:
    needed = None if model is None else disk_bytes(config, model)
    free = shutil.disk_usage(existing_parent(config.output_dir)).free
    return {"output_dir": str(config.output_dir), "needed_bytes": needed, "free_bytes": free}


def _fetched(config: RunConfig, model: Architecture | None) -> list[str]:
    path = config.model.path
    if path is None or weights_are_here(path) or os.path.isabs(path) or path.count("/") > 1:
        return []
    size = "of unknown size" if model is None else f"about {_bytes(2 * model.parameters)}"
    found = find_config(path)
    reachable = "" if not isinstance(found, str) else " (no connection to it)"
    return [f"the weights of {path} from the hub, {size}{reachable}"]


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e3:.3g} kB"
