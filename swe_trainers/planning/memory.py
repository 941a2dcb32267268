"""The memory that a run needs on each device: a formula, tested against measured peaks.

With P parameters, P_t trainable ones, L layers, D hidden, F intermediate, Q and K the widths of queries and keys, N
tokens of a micro-batch, a bytes per number of the trunk:

    weights        a P       (4 or 8 bits: except the embeddings), and a P for each frozen copy
    gradients      4 P_t     float32, whatever the trunk's dtype is
    optimizer      8 P_t     AdamW's moments, 2.06 P_t of 8 bits; and 4 P_t for the float32 copies of bfloat16 weights,
                             2 P_t with 8-bit moments
    step           4 P_t     AdamW's temporaries, while there are no activations
    activations    a N L (4 D + 3 Q + 3 K + 4 F), kept by each layer for its backward pass: residual and norms, heads,
                   four tensors of a gated feed-forward layer. In families unknown to `model.fused`
                   6 D + 5 Q + 5 K + 4 F, and in bfloat16 their norms keep float32
    … recomputed   a N L D
    working        the tiles of `kernels.linear` and the float32 gradient of the hidden states; or, if activations are
                   recomputed, those of one layer if they need more
    cache          2 a L K × slots × longest episode, in the process that generates

FSDP2 over W ranks: gradients, optimizer and trained weights (in float32) are divided by W. In addition there are a
whole copy for generation, the gathered embeddings, and two gathered layers with their gradients. Sequence parallelism
divides N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swe_trainers.planning.architecture import Architecture
from swe_trainers.run_config import RunConfig

__all__ = ["Memory", "disk_bytes", "estimate_memory", "model_bytes"]

_TILE_BYTES = 32 << 20
"""The kernels' tile on a CPU; half of it is the smallest on a GPU."""
_TILE_FRACTION = 0.045
_CUDA_BYTES = 1 << 30
"""Memory of CUDA, cuBLAS and the allocator's gaps before any computation."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device at the peak.

    Attributes:
        weights: those in training and the copy for generation.
        copies: a frozen reference, a separate critic, a reward model.
        gradients, optimizer: of the trained weights.
        activations: of one micro-batch.
        working: tiles of logits, or one layer's recomputed activations.
        cache: keys and values during generation.
        runtime: of CUDA.
        step: the optimizer's temporaries, at another time than activations and working memory.
        start: at the start, when models are copied before they are sharded.
    """

    weights: int
    copies: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    cache: int
    runtime: int
    step: int
    start: int

    @property
    def peak(self) -> int:
        """The largest sum of memory in use at one time."""
        kept = self.weights + self.copies + self.gradients + self.optimizer + self.cache
        return self.runtime + max(kept + max(self.activations + self.working, self.step), self.start)

    def parts(self) -> Mapping[str, int]:
        """The parts of the peak by name, with the larger of step and activations."""
        kept = {
            name: getattr(self, name) for name in ("weights", "copies", "gradients", "optimizer", "cache", "runtime")
        }
        if self.activations + self.working >= self.step:
            return {**kept, "activations": self.activations, "working": self.working}
        return {**kept, "step": self.step}


def estimate_memory(
    config: RunConfig, model: Architecture, *, judge: Architecture | None = None, ranks: int = 1, cuda: bool = True
) -> Memory:
    """Memory of each training device, by the formula above.

    Args:
        config: of the run.
        model: its sizes.
        judge: the sizes of a reward model, which is float32 and not sharded.
        ranks: processes over which FSDP shards.
        cuda: the device is a GPU.
    """
    settings = config.trainer
    number_bytes = _number_bytes(config)
    trained = _trained(config, model)
    policy = model_bytes(config, model)
    sharded = ranks if config.scale.fsdp else 1
    masters = _masters(config, model)
    copies = _copies(config, model)
    weights = policy
    if config.scale.fsdp:
        shard = 0 if config.scale.cpu_offload else (policy + masters // 2) // sharded
        layer = (policy - number_bytes * model.embedding_parameters) // model.layers
        weights = policy + shard + number_bytes * model.embedding_parameters + 2 * layer
        copies = copies // sharded
    copies += 4 * judge.parameters if judge is not None else 0
    on_device = not config.scale.cpu_offload
    gradients = 4 * trained // sharded
    if config.scale.fsdp:
        gradients += number_bytes * model.embedding_parameters
    tokens = -(-max(settings.microbatch_tokens, config.environment.max_tokens) // config.scale.sequence_parallel)
    layer_numbers = _layer_activations(model, number_bytes)
    working = _logits(model, tokens, number_bytes, cuda=cuda)
    held = model.layers * layer_numbers
    if config.model.recompute_activations or config.scale.activation_checkpointing:
        held, working = model.layers * model.hidden, max(working, int(number_bytes * tokens * layer_numbers))
    plays = settings.rollout_plan is not None and config.engine.in_process
    slots = config.environment.parallel if plays else 0
    if plays and config.rollout.max_staleness and config.engine.device is None:
        copies += policy  # asynchronous rollouts generate with a copy
    kv = 2 * number_bytes * model.layers * model.kv_width * slots * config.environment.max_tokens
    next_logits = 3 * 4 * slots * model.vocabulary  # logits and probabilities of the next token, float32
    return Memory(
        weights=weights,
        copies=copies,
        gradients=gradients if on_device else number_bytes * model.embedding_parameters,
        optimizer=(_moments(config, trained) // sharded if on_device else 0) + (0 if config.scale.fsdp else masters),
        activations=int(number_bytes * tokens * held),
        working=max(working, next_logits),
        cache=kv,
        runtime=_CUDA_BYTES if cuda else 0,
        step=4 * trained // sharded if on_device else 0,
        start=2 * policy if config.scale.fsdp else 0,
    )


def model_bytes(config: RunConfig, model: Architecture) -> int:
    """Bytes of one copy of the policy, including adapters."""
    number_bytes = _number_bytes(config)
    body = model.parameters - model.embedding_parameters
    # 4 bits, and a doubly quantised scale for every 64 numbers.
    packed = {None: number_bytes, 8: 1.0, 4: 0.52}[config.model.bits]
    adapters = 4 * _trained(config, model) if config.model.lora is not None else 0
    return int(body * packed) + number_bytes * model.embedding_parameters + adapters


def disk_bytes(config: RunConfig, model: Architecture) -> int:
    """Bytes on disk at the peak: checkpoints, one more while it is written, models, and 16 MiB of logs and reports.

    A checkpoint has the trained weights, their moments and the frozen copies.
    """
    trained = _trained(config, model)
    narrow = model_bytes(config, model) if _masters(config, model) and not config.scale.fsdp else 0
    checkpoint = 4 * trained + _moments(config, trained) + narrow + _copies(config, model)
    models = 1 if config.engine.in_process else 2
    return (config.keep_checkpoints + 1) * checkpoint + models * model_bytes(config, model) + (16 << 20)


def _number_bytes(config: RunConfig) -> int:
    return {"float32": 4, "bfloat16": 2}[config.model.dtype]


def _trained(config: RunConfig, model: Architecture) -> int:
    """The number of trained parameters; the optimizer sees each as float32."""
    lora = config.model.lora
    return model.parameters if lora is None else model.adapter_parameters(lora.rank, lora.targets)


def _moments(config: RunConfig, trained: int) -> int:
    """Bytes of AdamW's two moments; of 8 bits with their scales, as if all trained parameters were matrices."""
    return 8 * trained if config.trainer.moments == "float32" else int((2 + 8 / 128) * trained)


def _masters(config: RunConfig, model: Architecture) -> int:
    """Bytes of the float32 copies of trained bfloat16 weights, or, with 8-bit moments, of their lower halves."""
    each = 4 if config.trainer.moments == "float32" else 2
    return each * model.parameters if config.model.lora is None and _number_bytes(config) == 2 else 0


def _copies(config: RunConfig, model: Architecture) -> int:
    """Bytes of models beside the policy: a reference, not needed with adapters, and a separate critic."""
    one = model_bytes(config, model)
    settings = config.trainer
    reference = settings.needs_reference and config.model.lora is None
    trained = _trained(config, model)
    critic = one + _masters(config, model) + 4 * trained + _moments(config, trained)
    return one * reference + critic * settings.needs_critic


def _layer_activations(model: Architecture, number_bytes: int) -> float:
    """Numbers per token that one layer keeps for its backward pass."""
    if model.fused:
        return 4 * model.hidden + 3 * model.query_width + 3 * model.kv_width + 4 * model.intermediate
    norms = 4 * model.hidden + 1.5 * (model.query_width + model.kv_width) if number_bytes == 2 else 0.0
    return 6 * model.hidden + 5 * model.query_width + 5 * model.kv_width + 4 * model.intermediate + norms


def _logits(model: Architecture, tokens: int, number_bytes: int, *, cuda: bool) -> int:
    """Bytes of tiles, and of the hidden states' gradients in float32 and in their own dtype."""
    full = tokens * model.vocabulary * number_bytes
    tile = max(int(_TILE_FRACTION * full), _TILE_BYTES // 2) if cuda else _TILE_BYTES
    tiles = 2 if cuda else 1  # a CPU processes a tile in blocks that fit its cache
    return tiles * min(tile, full) + tokens * model.hidden * (4 + 2 * number_bytes)
