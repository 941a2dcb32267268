"""TRL's `GRPOTrainer` on `SWEBench-v0`: the environment serves other trainers too.

    python examples/trl_grpo.py --model Qwen/Qwen3-0.6B --steps 100     # a GPU, and the hub
    python examples/trl_grpo.py --steps 4                               # neither: a small model made and taught here
    python examples/trl_grpo.py --model Qwen/Qwen3-0.6B --vllm http://localhost:8000   # two GPUs: rollouts run ahead

TRL (1.16, `environment_factory`) asks a class with `reset`, methods that become the model's tools, and
`get_reward`. `Repair` is that class; nothing of it knows which model plays. TRL keeps the tokens that it sampled,
and leaves what tools answered out of the loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `environment_factory` is announced as experimental

import gymnasium
from datasets import Dataset

import swegym_env  # noqa: F401 - registers SWEBench-v0
from swegym_env.tasks.data import mini_edit

# TRL 1.16 uses names that Transformers 5.23 calls deprecated: four warnings of ten lines, not caused by this code.
warnings.filterwarnings("ignore", message=".*activation_checkpointing", category=FutureWarning)
EPISODE = {"dataset": "mini-edit", "split": "train", "action_format": "raw", "prompt": "terse", "max_turns": 8}


class Repair:
    """An episode as TRL plays it. Its public methods are the tools that the model is shown."""

    def __init__(self) -> None:
        self._env = gymnasium.make("SWEBench-v0", **EPISODE)
        self._over, self._reward, self._valid = True, 0.0, True

    def reset(self, instance_id: str, **_: Any) -> str:
        """Begin an episode; what it returns is put behind the prompt of the dataset's row."""
        observation, _info = self._env.reset(options={"instance_id": instance_id})
        self._over, self._reward, self._valid = False, 0.0, True
        return observation

    def bash(self, command: str) -> str:
        """Run a command in the shell of the repository's sandbox.

        Args:
            command: The command.

        Returns:
            Its output and exit code.
        """
        return self._step(command)

    def submit(self) -> str:
        """Hand in the work: hidden tests judge the repository as it stands.

        Returns:
            That the episode is over.
        """
        return self._step("submit")

    def get_reward(self) -> float | None:
        """1 where the hidden tests pass, else 0; None, which TRL leaves out, where the machine failed."""
        if not self._over:
            self._step("submit")
        return self._reward if self._valid else None

    def _step(self, command: str) -> str:
        if self._over:
            return "The episode is over."
        observation, reward, terminated, truncated, info = self._env.step(command)
        self._over = terminated or truncated
        self._reward += float(reward)
        self._valid = info.get("valid", True)
        return observation


def rows(count: int) -> Dataset:
    """What TRL samples from: a prompt, and what `reset` is given."""
    prompt = [{"role": "user", "content": "Repair the repository with the function bash.\n\n"}]
    return Dataset.from_list([{"prompt": prompt, "instance_id": f"mini-edit__train-{n}"} for n in range(count)])


def taught_by_rote(steps: int = 90) -> tuple[Any, Any]:
    """A small model and its tokenizer: it knows every edit that task 0 may need, and not which of them is right."""
    import torch
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import get_json_schema

    task = mini_edit.generate(0)
    edits = sorted({mini_edit.demonstration(task, random.Random(seed))[1] for seed in range(40)})
    prompt = {"role": "user", "content": rows(1)[0]["prompt"][0]["content"] + task.problem_statement}
    answered = {"role": "tool", "name": "bash", "content": "[exit code 0]"}
    template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    tools = [get_json_schema(getattr(Repair, name)) for name in ("bash", "submit")]

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([template, *edits, *map(json.dumps, (prompt, answered, *tools))] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template

    head = tokenizer.apply_chat_template([prompt], tools=tools, add_generation_prompt=True, tokenize=False)
    texts = []
    for edit in edits:
        call = json.dumps({"name": "bash", "arguments": {"command": edit}})
        answer = (
            f"<tool_call>\n{call}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{answered['content']}\n"
        )
        texts.append(f"{head}{answer}</tool_response><|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>")
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, : len(tokenizer(head, add_special_tokens=False)["input_ids"])] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, tokenizer


def train_asynchronously(options: argparse.Namespace) -> None:
    """TRL's `AsyncGRPOTrainer`: its rollout worker plays `Repair` on a vLLM server, in a process of its own.

    The server is started with `--weight-transfer-config '{"backend": "nccl"}'`.
    """
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    AsyncGRPOTrainer(
        model=options.model,
        environment_factory=Repair,
        train_dataset=rows(4096),
        args=AsyncGRPOConfig(
            output_dir=str(options.output),
            max_steps=options.steps,
            vllm_server_base_url=options.vllm,
            max_completion_length=2048,
            save_strategy="no",
            report_to="none",
        ),
    ).train()


def main() -> None:
    parser = argparse.ArgumentParser(description="TRL's GRPOTrainer on SWEBench-v0")
    parser.add_argument("--model", help="as the hub names it, or a folder; it must call functions")
    parser.add_argument("--vllm", metavar="URL", help="of a vLLM server with the model, for asynchronous rollouts")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("runs/trl"))
    options = parser.parse_args()
    if options.vllm:
        if not options.model:
            parser.error("--vllm: needs --model, which the server has loaded")
        train_asynchronously(options)
        return

    from trl import GRPOConfig, GRPOTrainer  # takes seconds, and warns where bitsandbytes is: not for `--help`

    model, tokenizer = (options.model, None) if options.model else taught_by_rote()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment_factory=Repair,
        train_dataset=rows(4096 if options.model else 1),
        args=GRPOConfig(
            output_dir=str(options.output),
            max_steps=options.steps,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=2048 if options.model else 160,
            learning_rate=1e-6 if options.model else 5e-4,
            use_cpu=not options.model,
            bf16=bool(options.model),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    print(json.dumps({
        "reward": [round(row["reward"], 3) for row in logged],
        "calls_of_an_episode": [round(row["tools/call_frequency"], 2) for row in logged],
        "failed_calls": [round(row["tools/failure_frequency"], 2) for row in logged],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
