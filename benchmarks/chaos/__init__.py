"""Training while its processes are killed: `python -m benchmarks.chaos`.

ledger.py    a wrapper that numbers every command inside the sandbox and checks that each ran exactly once
fleet.py     three sandbox servers and a pool, each restarted at the same port after its death
victims.py   which process is killed and when, drawn from a seed
run.py       one training run with such a fleet, and what it leaves behind
__main__.py  runs with and without deaths, side by side, into benchmarks/results/chaos.json
"""

from __future__ import annotations

__all__: list[str] = []
