"""Training while its parts are killed: `python -m benchmarks.chaos`.

ledger.py    a wrapper that has every command of every episode leave its number inside the sandbox, and looks for it
fleet.py     three servers and a pool of them, each started again at the same port when it is dead
victims.py   who is killed, and when: by a seed
run.py       one training run in such a fleet, and what is left afterwards
__main__.py  runs with and without deaths, side by side, into benchmarks/results/chaos.json
"""

from __future__ import annotations

__all__: list[str] = []
