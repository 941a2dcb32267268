"""Train the agent that people use: mini-swe-agent, unchanged, whose model is trained to repair code in sandboxes.

    python examples/train_agent.py --output runs/train_agent

    runs of mini-swe-agent → conversations.jsonl → tokenizer → `cloning` → PPO on the tests' verdicts → held-out tasks

A policy that knows where to edit but seldom what plays mini-swe-agent's language model, and its runs are recorded. A
small model from random weights clones them. Then PPO lets it play the agent's model itself, with the verdict of the
hidden tests as its only reward. It is measured before and after on tasks whose broken functions bear names that no
training file contains.

The environment is one line, and an agent of your own takes the place of the name: a folder with `agent.yaml`. Started
again, everything goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium

import swegym_env  # noqa: F401 - registers SWEAgent-v0
from swe_trainers.evaluation.evaluate import evaluate_run
from swe_trainers.experiment import run_experiment
from swe_trainers.model.tokenizers import train_sentencepiece
from swe_trainers.run_config import run_config
from swegym_env.tasks.data import mini_edit

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # what mini-swe-agent asks for at the end
# One token each: between blanks, as the model reads them in code, and alone, as it writes them. As JSON the agent shows
# it `<` and `>` escaped.
OPERATORS = ["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!="]
SEPARATORS = [*"_(|0123456789", *(operator for operator in OPERATORS if len(operator) == 2)]
SEPARATORS += [f" {operator} ".replace("<", "\\u003c").replace(">", "\\u003e") for operator in OPERATORS]
SEPARATORS += [" from", " *.py"]  # beside names, which are then the same tokens where they are read and written
SMALL = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": True,
    "initializer_range": 0.08,  # near 1/sqrt(hidden_size); from the default 0.02 it learns to copy late, or never
}  # fmt: skip


def environment(agent: str, split: str) -> dict[str, Any]:
    """Arguments of the environment: an answer of the model is a command, which becomes a call of the agent's tool."""
    return {"agent": agent, "dataset": "mini-edit", "split": split, "action_format": "raw", "max_turns": 4, "pool": 0}


def record(agent: str, count: int, parallel: int, path: Path, *, skill: float, seed: int) -> None:
    """Runs of the agent whose model draws the right operator with probability `skill`; one conversation a line."""
    done = {json.loads(line)["task"] for line in path.read_text().splitlines()} if path.exists() else set()
    left = [number for number in range(count) if number not in done]

    def conversations(worker: int) -> Iterator[str]:
        env = gymnasium.make("SWEAgent-v0", **environment(agent, "train"), reward="none")
        for number in left[worker::parallel]:
            rng, messages = random.Random(f"{seed}/{number}"), []
            observation, _ = env.reset(seed=seed, options={"instance_id": f"mini-edit__train-{number}"})
            for action in mini_edit.demonstration(env.unwrapped.task, rng, skill=skill):
                command = SUBMIT if action == "submit" else action
                messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": command}]
                observation, *_ = env.step(command)
            yield json.dumps({"task": number, "messages": messages}) + "\n"
        env.close()

    def work(worker: int) -> None:
        for line in conversations(worker):
            with path.open("a", encoding="utf-8") as file:  # one write a line: a run that is killed keeps whole ones
                file.write(line)

    with ThreadPoolExecutor(parallel) as threads:
        list(threads.map(work, range(parallel)))


def main() -> None:
    parser = argparse.ArgumentParser(description="mini-swe-agent, trained", allow_abbrev=False)
    parser.add_argument("--agent", default="mini-swe-agent", help="a name, or a folder with agent.yaml")
    parser.add_argument("--recorded", type=int, default=2400, help="episodes to clone")
    parser.add_argument("--skill", type=float, default=0.45, help="how often the recorded policy repairs rightly")
    parser.add_argument("--epochs", type=int, default=4, help="of cloning")
    parser.add_argument("--updates", type=int, default=14, help="of PPO")
    parser.add_argument("--episodes", type=int, default=192, help="of each update")
    parser.add_argument("--held-out", type=int, default=120, help="episodes of each measurement")
    parser.add_argument("--parallel", type=int, default=8, help="agents at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/train_agent"))
    options = parser.parse_args()
    recorded, tokenizer = options.output / "conversations.jsonl", options.output / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    record(options.agent, options.recorded, options.parallel, recorded, skill=options.skill, seed=options.seed)
    if not any(tokenizer.iterdir()):
        runs = [json.loads(line)["messages"] for line in recorded.read_text().splitlines()]
        whole, part = runs[:200], runs[200:]  # the agent's instructions are in each, and weigh no more than the rest
        texts = [message["content"] for messages in whole for message in messages]
        texts += [messages[0]["content"].partition("\n")[0] for messages in part]
        texts += [message["content"] for messages in part for message in messages[1:]]
        learned = train_sentencepiece(
            texts, 1700, split_by_whitespace=False, separators=SEPARATORS, max_piece_length=100
        )
        learned.save(tokenizer)

    def stage(split: str, name: str, **settings: Any) -> Any:
        return run_config(
            {
                "environment": {
                    "id": "swegym_env:SWEAgent-v0",
                    "kwargs": environment(options.agent, split),
                    "parallel": options.parallel,
                    "max_tokens": 448,
                    "max_new_tokens": 28,
                },
                "threads": 1,
                "seed": options.seed,
                "checkpoint_every": 1,
                "output_dir": options.output / name,
                **settings,
            }
        )

    def measure(model: str, name: str) -> float:
        config = stage("test", name, model={"path": model}, trainer={"algorithm": "ppo"})
        summary = evaluate_run(config, options.output / name, episodes=options.held_out, resume=True)
        return float(summary["resolve_rate"])

    run_experiment(
        stage(
            "train",
            "cloning",
            model={"architecture": SMALL, "tokenizer": str(tokenizer)},
            demonstrations=recorded,
            trainer={
                "algorithm": "cloning", "learning_rate": 2e-3, "warmup_updates": 30, "decay": "linear",
                "weight_decay": 0.01, "epochs": options.epochs, "minibatch_episodes": 16,
            },
            checkpoint_every=50,
            threads=2,
        ),
        console=False,
    )  # fmt: skip
    cloned, trained = (str((options.output / name / "model").absolute()) for name in ("cloning", "ppo"))
    before = measure(cloned, "before")
    run_experiment(
        stage(
            "train",
            "ppo",
            model={"path": cloned},
            trainer={
                "algorithm": "ppo", "learning_rate": 2e-4, "decay": "linear", "max_updates": options.updates,
                "episodes_per_update": options.episodes, "epochs": 2, "minibatches": 4, "gamma": 1.0, "lam": 0.95,
                "value_coefficient": 0.1, "value_clip": None, "kl_coefficient": 0.01, "kl_placement": "reward",
                "kl_estimator": "k1",
            },
        ),
        console=False,
    )  # fmt: skip
    print(json.dumps({"resolve_rate_before": before, "resolve_rate_after": measure(trained, "after")}))


if __name__ == "__main__":
    main()
