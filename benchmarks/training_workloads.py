"""The workloads of `benchmarks.training`, ours and the peers'."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["FULL", "SMALL", "Sizes", "make_work"]

SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
VOCABULARY = 4096
TURNS = 10
PROMPT = 8  # tokens that are always observed
EPOCHS = 2
MICROBATCH_TOKENS = 1024
Episode = tuple[list[int], list[bool]]  # ids, and the mask of sampled ones
Work = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the workloads.

    Attributes:
        episodes: of an update.
        length: of its shortest and longest episode.
        observed: tokens of an observation in generation, short and long.
        written: tokens of an action.
        batches: episodes generated in parallel.
        growth: tokens of the updates.
        growth_length: tokens of their episodes.
    """

    episodes: int
    length: tuple[int, int]
    observed: tuple[int, ...]
    written: int
    batches: tuple[int, ...]
    growth: tuple[int, ...]
    growth_length: int


FULL = Sizes(16, (256, 768), (96, 384), 24, (8, 32), (4096, 8192, 16384, 32768, 65536), 512)
SMALL = Sizes(8, (24, 48), (4,), 3, (2,), (512, 1024), 64)


def make_work(part: str, sizes: Sizes) -> tuple[Work, int]:
    """The function to time, and the tokens of each call; the first call may take longer."""
    name, _, rest = part.partition(":")
    if name == "update":
        who, share, *equal = rest.split(":")
        middle = sum(sizes.length) // 2
        length = (middle, middle) if equal else sizes.length
        episodes = conversations(float(share), n=sizes.episodes, length=length)
        update = trl_update(episodes) if who == "trl" else own_update(who, episodes)
        return update, sum(len(ids) for ids, _ in episodes)
    if name == "growth":
        n = int(rest) // sizes.growth_length
        episodes = conversations(0.8, n=n, length=(sizes.growth_length, sizes.growth_length))
        return own_update("grpo", episodes), n * sizes.growth_length
    batch, observed = (int(number) for number in rest.split(":"))
    play = {"engine": engine_turns, "generate": generate_turns}[name](batch, observed, sizes.written)
    return play, batch * TURNS * sizes.written


def conversations(share: float, *, n: int, length: tuple[int, int]) -> list[Episode]:
    """Episodes in which this fraction of the tokens after the prompt is observed."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(n):
        size = int(random.integers(*length, endpoint=True))
        turn = (size - PROMPT) // TURNS
        observed = round(turn * share)
        mask = [False] * PROMPT + ([False] * observed + [True] * (turn - observed)) * TURNS
        mask += [True] * (size - len(mask))
        made.append((random.integers(10, VOCABULARY, size).tolist(), mask))
    return made


def policy() -> Any:
    """The model of the benchmark."""
    from swe_trainers.model.language_model import LanguageModel
    from swe_trainers.model.tokenizers import WordTokenizer

    words = WordTokenizer([f"w{i}" for i in range(VOCABULARY - 8)])
    return LanguageModel.from_config({**SHAPE, "vocab_size": VOCABULARY}, words)


def stock_model() -> Any:
    """The same model from transformers, for the peers: `LanguageModel` replaces layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**SHAPE, vocab_size=VOCABULARY)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def own_update(name: str, episodes: list[Episode]) -> Work:
    """An update as in training, from trajectories."""
    from swe_trainers.algorithms.grpo import GRPO
    from swe_trainers.algorithms.ppo import PPO

    random, played = np.random.default_rng(1), []
    for number, (ids, mask) in enumerate(episodes):
        rewards = np.zeros(len(ids), np.float32)
        rewards[-1] = random.normal()
        unknown = np.zeros(len(ids), np.float32)  # the engine's log-probabilities are reported, not trained on
        played.append(Trajectory(np.array(ids), np.array(mask), unknown, rewards, True, False, group=number // 8))
    same: dict[str, Any] = {"epochs": EPOCHS, "minibatches": 1, "learning_rate": 1e-5, "pack": True}
    same |= {"microbatch_tokens": MICROBATCH_TOKENS, "episodes_per_update": len(episodes)}
    algorithm = (PPO if name == "ppo" else GRPO)(**same)
    learner = algorithm.learner(policy(), seed=0)
    return lambda: algorithm.update(learner, played)


def trl_update(episodes: list[Episode]) -> Work:
    """The passes of GRPOTrainer with its own methods and its fastest settings on a CPU.

    Its fused head and PyTorch's fused AdamW are its defaults; a micro-batch has 1, 2, 4 or 8 rows, whichever is
    fastest in the first updates. It pads prompts left and completions right to the longest: it does not pack for GRPO,
    and the kernels of the hub need a GPU. Data loading and logging are not included.
    """
    trainer, optimizer = _trl_trainer(len(episodes))
    prompt = torch.tensor([ids[:PROMPT] for ids, _ in episodes])
    width = max(len(ids) for ids, _ in episodes) - PROMPT
    completion, present, acted = (torch.zeros(len(episodes), width, dtype=torch.long) for _ in range(3))
    for number, (ids, mask) in enumerate(episodes):
        completion[number, : len(ids) - PROMPT] = torch.tensor(ids[PROMPT:])
        present[number, : len(ids) - PROMPT] = 1
        acted[number, : len(ids) - PROMPT] = torch.tensor(mask[PROMPT:]).long()
    advantages = torch.randn(len(episodes), generator=torch.Generator().manual_seed(0))

    def update(rows: int) -> None:
        whole, shown = torch.cat([prompt, completion], 1), torch.cat([torch.ones_like(prompt), present], 1)
        parts = [slice(at, at + rows) for at in range(0, len(episodes), rows)]
        trainer.current_gradient_accumulation_steps = len(parts)
        with torch.no_grad():
            old, *_ = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001 - what its training step calls
                trainer.model, whole, shown, width, batch_size=rows
            )
        for _ in range(EPOCHS):
            for part in parts:
                inputs = {
                    "prompt_ids": prompt[part],
                    "prompt_mask": torch.ones_like(prompt[part]),
                    "advantages": advantages[part],
                    "completion_ids": completion[part],
                    "completion_mask": present[part],
                    "tool_mask": acted[part],
                    "old_per_token_logps": old[part],
                    "num_items_in_batch": acted.sum(),
                }
                trainer._compute_loss(trainer.model, inputs).backward()  # noqa: SLF001
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @cache
    def best() -> int:
        return fastest(update, [rows for rows in (1, 2, 4, 8) if rows <= len(episodes)])

    return lambda: update(best())


def _trl_trainer(n_episodes: int) -> tuple[Any, torch.optim.Optimizer]:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    words = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w1", pad_token="w2")
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=n_episodes,
        num_generations=8,
        report_to=[],
        use_cpu=True,
        bf16=False,
        beta=0.0,
        loss_type="grpo",
        num_iterations=EPOCHS,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": ["w3"] * 16})
    trainer = GRPOTrainer(
        stock_model().train(), lambda completions, **_: [0.0] * len(completions), config, data, processing_class=words
    )
    return trainer, torch.optim.AdamW(trainer.model.parameters(), lr=1e-5, fused=True)


def fastest(do: Callable[[int], object], choices: list[int]) -> int:
    """The fastest choice, after one warm-up call."""
    do(choices[0])
    seconds = {}
    for choice in choices:
        began = time.perf_counter()
        do(choice)
        seconds[choice] = time.perf_counter() - began
    return min(choices, key=lambda choice: seconds[choice])


def engine_turns(batch: int, observed: int, written: int) -> Work:
    """Episodes in slots of the embedded engine."""
    from swe_trainers.engines.embedded import EmbeddedEngine
    from swe_trainers.engines.sampling import Sampling

    turn = observed + written
    engine = EmbeddedEngine(policy().eval(), n_slots=batch, max_tokens=TURNS * turn + 1)
    random = np.random.default_rng(0)

    def play() -> None:
        slots = [engine.open() for _ in range(batch)]
        streams = [np.random.default_rng(slot) for slot in slots]
        for _ in range(TURNS):
            for slot in slots:
                seen = random.integers(10, VOCABULARY, observed).tolist()
                engine.submit(
                    slot,
                    seen,
                    max_new_tokens=written,
                    stop_ids=(),
                    sampling=Sampling(),
                    random=streams[slot],
                )
            while engine.busy:
                engine.step()
        for slot in slots:
            engine.close(slot)

    return play


def generate_turns(batch: int, observed: int, written: int) -> Work:
    """The whole history through `generate` at every turn; all episodes have the same length, without padding."""
    model = stock_model().eval()
    random = np.random.default_rng(0)
    exactly = {"max_new_tokens": written, "min_new_tokens": written, "pad_token_id": 0}

    def play() -> None:
        history = torch.empty((batch, 0), dtype=torch.long)
        for _ in range(TURNS):
            new = torch.from_numpy(random.integers(10, VOCABULARY, (batch, observed)))
            history = torch.cat([history, new], 1)
            with torch.inference_mode():
                seen = torch.ones_like(history)
                history = model.generate(history, attention_mask=seen, do_sample=True, top_k=0, **exactly)

    return play
