"""The speed of parsing actions and rendering observations: `python -m benchmarks.parsing`.

Actions per second for each format, on typical answers (a paragraph of prose or a thought, then the action); the time
for a megabyte of adversarial text; and an output of 100 MB, shortened while it streams from a real sandbox.
"""

from __future__ import annotations

import resource
import time

from benchmarks.records import Row, row, write_results
from swegym_env.agent.formats import ACTION_FORMATS, action_format
from swegym_env.agent.observations import render_result
from swegym_env.agent.search_replace import Block, write_blocks
from swegym_env.sandbox import SandboxSpec, open_sandbox

PROSE = "The bound is exclusive here, so the last element is never looked at. I look at the file first.\n" * 3
COMMAND = "grep -rn 'def __getitem__' src/ | head -20 && sed -n '40,80p' src/collection.py"
REPEATS = 20
ANSWERS = 500
FLOOD = "head -c 100000000 /dev/zero | tr '\\0' x"


def answer(name: str) -> str:
    """A typical answer in this format."""
    chosen = action_format(name)
    if name == "raw":
        return COMMAND
    if name == "search_replace":
        return PROSE + write_blocks([Block("src/collection.py", "    return 1\n" * 5, "    return 2\n" * 5)])
    return (f"<think>{PROSE}</think>\n" if name == "openai" else PROSE) + chosen.write(COMMAND)


def actions() -> list[Row]:
    """Actions per second on one core, for each format."""
    rows = []
    for name in sorted(ACTION_FORMATS):
        chosen = action_format(name)
        text = answer(name)
        rates = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            for _ in range(ANSWERS):
                chosen.parse(text)
            rates.append(ANSWERS / (time.perf_counter() - begun))
        rows.append(row(name, "actions", "1/s", rates))
    return rows


def adversarial() -> list[Row]:
    """Seconds for a megabyte of unclosed openings, the worst of several patterns."""
    rows = []
    pieces = ("<think></think>", "```bash\n", "<tool_call>", "[TOOL_CALLS]", "<function=a>", "{", "<arg_key>", "`")
    for name in sorted(ACTION_FORMATS):
        chosen = action_format(name)
        worst = []
        for piece in pieces:
            text = piece * ((1 << 20) // len(piece))
            begun = time.perf_counter()
            chosen.parse(text)
            worst.append(time.perf_counter() - begun)
        rows.append(row(name, "adversarial 1 MiB, worst piece", "s", [max(worst)]))
    return rows


def flood() -> list[Row]:
    """Seconds from the command to the observation for 100 MB of output, and the memory used in this process."""
    seconds, plain = [], []
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        sandbox.start()
        sandbox.run("true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(7):
            begun = time.perf_counter()
            shown = render_result(sandbox.run(FLOOD), limit_chars=10_000)
            seconds.append(time.perf_counter() - begun)
            if shown.truncated_chars < 99_000_000:
                raise AssertionError(shown.truncated_chars)
            begun = time.perf_counter()
            sandbox.run(f"{FLOOD} | cat >/dev/null")
            plain.append(time.perf_counter() - begun)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    finally:
        sandbox.close()
    return [
        row("output of 100 MB", "command to observation", "s", seconds),
        row("output of 100 MB", "the same, read by cat inside", "s", plain),
        row("output of 100 MB", "growth of the process", "MiB", [grown / 1024]),
    ]


def main() -> None:
    read, worst, streamed = actions(), adversarial(), flood()
    ratios = {
        "slowest_format_over_10000_per_s": min(each.median for each in read) / 10_000,
        "flood_over_the_same_read_by_cat_inside": streamed[0].median / streamed[1].median,
    }
    print(write_results("parsing", [*read, *worst, *streamed], ratios=ratios, packages=("gymnasium", "jinja2")))


if __name__ == "__main__":
    main()
