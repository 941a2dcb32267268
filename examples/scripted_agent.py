"""An agent that is a program: it tries every operator until the call in the issue gives the right answer.

    python examples/scripted_agent.py --episodes 8 --record runs/scripted
    swegym view runs/scripted

It plays the tasks of `mini-edit`, whose bug is one wrong operator, and sees what a language model would see: the
issue and what its commands print. A scripted agent is the baseline that a model has to beat, and shows whether an
environment is sound.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0
from swegym_env.wrappers import RecordTrajectory

OPERATORS = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=")


def repair(issue: str) -> Iterator[str]:
    """The commands of one episode; each is sent what the one before it printed. Stops when the call is right."""
    call = re.search(r"(\w+)\(-?\d+, -?\d+\)", issue)
    path = re.search(r"\w+\.py", issue)
    expected = re.search(r"(?:but|expected|should be) (-?\w+)", issue)
    assert call and path and expected, issue
    shown = yield f"grep -n -A1 'def {call[1]}(' {path[0]}"
    number, first, operator, second = re.findall(r"(\d+)-\s+return (\w+) (\S+) (\w+)", shown)[0]
    for candidate in OPERATORS:
        if candidate == operator:
            continue
        yield f"sed -i '{number}s|return .*|return {first} {candidate} {second}|' {path[0]}"
        shown = yield f"python3 -c 'from {path[0].removesuffix('.py')} import *; print({call[0]})'"
        if shown.split("\n")[0] == expected[1]:
            break
    yield "submit"


def main() -> None:
    parser = argparse.ArgumentParser(description="an agent that is a program")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--record", help="directory for the recorded episodes")
    options = parser.parse_args()

    env = gymnasium.make("SWEBench-v0", dataset="mini-edit", action_format="raw", prompt="terse", max_turns=30)
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "scripted"})
    resolved = turns = 0
    for seed in range(options.episodes):
        issue, _ = env.reset(seed=seed)
        agent = repair(issue)
        action, over = next(agent), False
        while not over:
            observation, _, terminated, truncated, info = env.step(action)
            turns += 1
            over = terminated or truncated
            action = "" if over else agent.send(observation)
        resolved += info["resolved"]
    env.close()
    print(json.dumps({"episodes": options.episodes, "resolved": resolved, "turns": turns / options.episodes}))


if __name__ == "__main__":
    main()
