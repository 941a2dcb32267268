"""The results of `benchmarks.real_rows`: reads them, and sums them up by repository.

The file has the usual keys of a benchmark, `reproduced` and `not_reproduced` (with the cause, from
`real_rows_causes.yaml`), and `runs`: one line for each verdict, from which everything else is computed again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.records import Row, head, row
from swegym_env.files import write_atomically

PATCHES = ("gold", "empty", "rewrite")
WITHOUT_REWRITE = ("gold", "empty")
"""Of rows in other languages than Python, which the rewrites are for."""
CURVE = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 64, 100, 200, 400)
CAUSES = Path(__file__).with_name("real_rows_causes.yaml")

Entry = dict[str, Any]
Key = tuple[str, str, int]
"""Instance, patch and number of the run; the patch is "set-up" where the row could not be set up."""


def key_of(entry: Entry) -> Key:
    """What a verdict is the verdict on."""
    return entry["instance_id"], entry["patch"], entry["run"]


def patches_of(entry: Entry) -> tuple[str, ...]:
    """The patches that are graded for the row of a verdict."""
    return PATCHES if entry.get("language", "python") == "python" else WITHOUT_REWRITE


def seconds_of(entry: Entry) -> float:
    """Wall-clock seconds that a verdict took, the row's set-up included where it came first."""
    return float(entry.get("setup_s", 0.0) + entry.get("wall_s", 0.0))


def read_entries(results: Path, state: Path | None = None) -> dict[Key, Entry]:
    """The verdicts of a results file, and those of a state file, which count where both have one."""
    known: dict[Key, Entry] = {}
    if results.exists():
        known = {key_of(entry): entry for entry in json.loads(results.read_text()).get("runs", [])}
    for line in state.read_text().splitlines() if state is not None and state.exists() else ():
        entry = json.loads(line)
        if "forget" in entry:
            known = {key: value for key, value in known.items() if key[0] != entry["forget"]}
        else:
            known[key_of(entry)] = entry
    return known


def write_results(path: Path, known: Mapping[Key, Entry], times: int) -> str:
    """Write the results of all known verdicts, atomically. Returns the totals in one line."""
    by_id: dict[str, list[Entry]] = defaultdict(list)
    for key in sorted(known):
        by_id[key[0]].append(known[key])
    failing = {name: _miss(name, entries) for name, entries in by_id.items() if misses(entries)}
    reproduced = [
        name
        for name, entries in by_id.items()
        if name not in failing and len(entries) >= times * len(patches_of(entries[0]))
    ]
    result = {
        **head(),
        "rows": [asdict(each) for each in _rows(by_id)],
        "ratios": {"reproduced": _share(len(reproduced), len(reproduced) + len(failing)), **_ratios(by_id)},
        "reproduced": reproduced,
        "not_reproduced": failing,
    }
    text = json.dumps(result, indent=1).removesuffix("\n}")
    runs = ",\n".join(f"  {json.dumps(known[key])}" for key in sorted(known))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{text},\n "runs": [\n{runs}\n ]\n}}\n')
    return f"{len(reproduced)} rows reproduced {times} times, {len(failing)} not"


def misses(entries: Iterable[Entry]) -> list[Entry]:
    """The verdicts that are not as they should be, and the set-up that failed."""
    return [entry for entry in entries if entry["resolved"] != (entry["patch"] in ("gold", "rewrite"))
            or entry["patch"] == "set-up"]  # fmt: skip


def _miss(name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    import yaml

    first = misses(entries)[0]
    cause = yaml.safe_load(CAUSES.read_text()).get(name, "")
    return {"patch": first["patch"], "reason": first["reason"], "at_fault": first["at_fault"], "cause": cause}


def _rows(by_id: Mapping[str, Sequence[Entry]]) -> list[Row]:
    """Times, bytes and costs, by repository and over all."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entries in by_id.values():
        for entry in entries:
            groups[entry["repo"]].append(entry)
            groups["all"].append(entry)
    rows = []
    for case, entries in sorted(groups.items()):
        for metric, unit in (("setup_s", "s"), ("setup_cpu_s", "s"), ("wall_s", "s"), ("cpu_s", "s"), ("tests_s", "s")):
            values = [entry[metric] for entry in entries if metric in entry]
            if values:
                rows.append(row(case, metric, unit, values))
        for patch in ("gold", "rewrite"):
            costs = [
                (entry["tests_s"] + entry["controls_s"]) / entry["tests_s"]
                for entry in entries
                if entry["patch"] == patch and entry["resolved"] and entry["tests_s"] and "controls_s" in entry
            ]
            if costs:
                rows.append(row(case, f"runs_per_verdict/{patch}", "runs", costs))
        sizes = [sum(entry["layers"].values()) for entry in entries if "layers" in entry]
        if sizes:
            rows.append(row(case, "layers_of_a_row", "bytes", sizes))
            distinct = {name: size for entry in entries for name, size in entry.get("layers", {}).items()}
            rows.append(row(case, "layers_of_all_rows", "bytes", [sum(distinct.values())]))
        again = [entry for entry in entries if entry["patch"] == "gold" and entry["run"]]
        # The largest set-up: in a later one, layers were there.
        of_rows = {"setup": _of_each(entries, "setup_s", max), "gold_again": _of_each(again, "wall_s", min)}
        for what, seconds in of_rows.items():
            if seconds:
                rows.append(row(case, f"{what}_of_{len(seconds)}_rows", "s", [sum(seconds)]))
    return rows


def _of_each(entries: Iterable[Entry], name: str, choose: Callable[[list[float]], float]) -> list[float]:
    """One figure of each row that has any."""
    found: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if name in entry:
            found[entry["instance_id"]].append(entry[name])
    return [choose(figures) for figures in found.values()]


def _ratios(by_id: Mapping[str, Sequence[Entry]]) -> dict[str, float]:
    """Shares of the rows: which patches resolve, and what proves the repair."""
    ratios: dict[str, float] = {}
    for patch in PATCHES:
        graded = [entry for entries in by_id.values() for entry in entries if entry["patch"] == patch]
        ratios[f"resolved/{patch}"] = _share(sum(entry["resolved"] for entry in graded), len(graded))
    examined = [entry for entries in by_id.values() if (entry := proven(entries))]
    for proof in ("blind", "controls", "none"):
        ratios[f"proof/{proof}"] = _share(sum(entry["proof"] == proof for entry in examined), len(examined))
    for bits in CURVE:
        ratios[f"bits/at least {bits}"] = _share(sum(e["proof_bits"] >= bits for e in examined), len(examined))
    return ratios


def proven(entries: Iterable[Entry]) -> Entry | None:
    """The verdict that shows what proves a row's repair: that on the rewrite, else on the gold patch.

    Screening may pass the gold patch without a proof; the rewrite adds a file and is always examined.
    """
    graded = {entry["patch"]: entry for entry in entries if "proof" in entry and entry["resolved"]}
    return graded.get("rewrite") or graded.get("gold")


def _share(part: int, of: int) -> float:
    return round(part / of, 4) if of else 0.0
