"""Tokens per second of generation at 8 and 64 sequences: the embedded engine, `generate`, and vLLM if installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import models, peers
from benchmarks.gpu.timing import Bench, Call, Contender, Ratio
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.sampling import Sampling
from swe_trainers.model.language_model import LanguageModel

__all__ = ["measure"]

BATCHES, PROMPT, NEW = (8, 64), 512, 128
TINY = ((2,), 6, 3)


def measure(bench: Bench) -> None:
    """All cases of the part."""
    batches, prompt, new = TINY if bench.tiny else (BATCHES, PROMPT, NEW)
    cases = {batch: f"generation {batch} sequences, {prompt} read and {new} written tokens" for batch in batches}
    if all(bench.journal.is_done(case) and bench.journal.is_done(f"decoding: {case}") for case in cases.values()):
        return
    model = models.policy(bench.device)
    model.eval()
    for batch, case in cases.items():
        _Generation(bench, model, batch, prompt, new).measure(case)


class _Generation:
    """The cases of one number of sequences."""

    def __init__(self, bench: Bench, model: LanguageModel, batch: int, prompt: int, new: int) -> None:
        self.bench, self.model, self.new = bench, model, new
        self.prompts = np.zeros((batch, prompt), np.int64)
        self.refresh(0)

    def refresh(self, number: int) -> None:
        """New prompts."""
        draw = np.random.default_rng(1_000 + number)
        self.prompts[:] = draw.integers(10, self.model.tokenizer.vocab_size - 10, self.prompts.shape)

    def measure(self, case: str) -> None:
        """The whole turn, then decoding alone beside reading the weights once a token."""
        tokens = len(self.prompts) * self.new
        engine = Contender("embedded engine", self._engine, tokens=tokens)
        beside = (Ratio("its rate, of ours", engine.name),)
        makers = {"generate": self._generate, "vLLM": self._vllm}
        others = [Contender(name, make, beside, tokens=tokens, peer=True) for name, make in makers.items()]
        self.bench.case(case, [engine, *others], refresh=self.refresh)
        weights = sum(parameter.numel() for parameter in self.model.causal_lm.parameters())
        source = torch.empty(weights, dtype=self.model.unembedding.weight.dtype, device=self.bench.device)
        reading = Ratio("of the rate at which the weights can be read", "copy of the weights", (self.new - 1) / 2)
        decoding = [
            Contender("copy of the weights", lambda: lambda: source.clone),
            Contender("decoding", self._decoding, (reading,), tokens=tokens - len(self.prompts)),
            Contender(
                "decoding without graphs",
                partial(self._decoding, static_shapes=False),
                tokens=tokens - len(self.prompts),
            ),
        ]
        self.bench.case(f"decoding: {case}", decoding, refresh=self.refresh)
        calls = f"calls of decoding: {case}"
        if not self.bench.journal.is_done(calls):
            prepare = self._decoding()
            for name, count in (("host syncs", self.bench.host_syncs), ("kernels and copies", self.bench.kernels)):
                self.bench.attempt(calls, f"{name} a token", lambda count=count: count(prepare()) / (self.new - 1))
            self.bench.journal.done(calls)

    def _start(self, engine: EmbeddedEngine) -> list[int]:
        slots = [engine.open() for _ in self.prompts]
        for slot, prompt in zip(slots, self.prompts.tolist(), strict=True):
            random = np.random.default_rng(slot)
            engine.submit(slot, prompt, max_new_tokens=self.new, stop_ids=(), sampling=Sampling(), random=random)
        return slots

    def _finish(self, engine: EmbeddedEngine, slots: list[int]) -> None:
        while engine.busy:
            engine.step()
        for slot in slots:
            engine.close(slot)

    def _make_engine(self, static_shapes: bool | None = None) -> EmbeddedEngine:
        n, prompt = self.prompts.shape
        return EmbeddedEngine(self.model, n_slots=n, max_tokens=prompt + self.new + 1, static_shapes=static_shapes)

    def _engine(self) -> Callable[[], Call]:
        engine = self._make_engine()
        return lambda: lambda: self._finish(engine, self._start(engine))

    def _decoding(self, static_shapes: bool | None = None) -> Callable[[], Call]:
        engine = self._make_engine(static_shapes)

        def prepare() -> Call:
            slots = self._start(engine)
            before = engine.throughput.sampled_tokens
            while engine.throughput.sampled_tokens < before + len(slots):
                engine.step()
            return partial(self._finish, engine, slots)

        return prepare

    def _generate(self) -> Callable[[], Call]:
        from transformers import AutoConfig, AutoModelForCausalLM

        dtype = self.model.unembedding.weight.dtype
        config = AutoConfig.for_model(**models.shape(tiny=self.bench.tiny), vocab_size=self.model.tokenizer.vocab_size)
        with torch.device(self.bench.device):  # a CPU would draw the random weights for half a minute
            stock = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
        stock.eval()
        exactly = {"max_new_tokens": self.new, "min_new_tokens": self.new, "pad_token_id": 0}

        def call() -> Any:
            ids = torch.from_numpy(self.prompts).to(self.bench.device)
            with torch.inference_mode():
                return stock.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, **exactly)

        return lambda: call

    def _vllm(self) -> Callable[[], Call]:
        engine_class, parameters = (peers.load("vllm", name) for name in ("LLM", "SamplingParams"))
        from transformers import AutoConfig

        folder = self.bench.journal.path.with_name("vllm")  # beside the results
        config = AutoConfig.for_model(
            **models.shape(tiny=self.bench.tiny),
            vocab_size=self.model.tokenizer.vocab_size,
            architectures=["Qwen3ForCausalLM"],
        )
        config.save_pretrained(folder)
        n, prompt = self.prompts.shape
        engine = engine_class(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            gpu_memory_utilization=0.5,
            max_model_len=prompt + self.new + 1,
            max_num_seqs=n,
        )
        sampling = parameters(max_tokens=self.new, min_tokens=self.new, ignore_eos=True, detokenize=False)

        def call() -> Any:
            prompts = [{"prompt_token_ids": ids} for ids in self.prompts.tolist()]
            return engine.generate(prompts, sampling, use_tqdm=False)

        return lambda: call
