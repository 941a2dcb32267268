"""One episode by hand: reset, look, edit, submit, verdict.

    python examples/one_episode.py

The gold patch stands in for an agent's own idea, so that this ends with a repaired repository.
"""

from __future__ import annotations

import argparse

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0


def main() -> None:
    parser = argparse.ArgumentParser(description="one episode by hand")
    parser.add_argument("--instance", default="mini__lrucache-001")
    options = parser.parse_args()

    env = gymnasium.make("SWEBench-v0", dataset="mini", action_format="raw", max_turns=10)
    observation, info = env.reset(options={"instance_id": options.instance})
    print(info["system_prompt"], observation, sep="\n\n")

    gold = env.unwrapped.task.patch
    for action in ("git log --oneline && ls", f"git apply - <<'END_OF_PATCH'\n{gold}END_OF_PATCH", "submit"):
        observation, reward, _terminated, _truncated, info = env.step(action)
        print(f"\n>>> {action.splitlines()[0]}\n{observation}")

    print(f"\n{info['patch']}\nreward {reward}, ended because: {info['end_reason']}")
    print(f"repaired {info['fail_to_pass']}, kept {info['pass_to_pass']}; {info['timing'].grading_s:.2f} s of grading")
    env.close()


if __name__ == "__main__":
    main()
