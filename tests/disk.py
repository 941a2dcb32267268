"""Full and read-only disks, to test how commands report them."""

from __future__ import annotations

import os
from pathlib import Path

_SCRIPT = """
place=$0 free=$1 mode=$2; shift 2
mount -t tmpfs -o size=512k,mode=755 none "$place" || exit 99
head -c $(((512 - free) * 1024)) /dev/zero > "$place/fill" 2>/dev/null
[ "$mode" = rw ] || mount -o remount,bind,ro "$place" || exit 99
"$@"
code=$?
find "$place" -mindepth 1 ! -name fill > "$place.left"
exit $code
"""


def on_small_disk(place: Path, *, free_kib: int = 0, read_only: bool = False) -> list[str]:
    """The prefix that runs a command with a small disk mounted at `place`, visible to this command only.

    The disk disappears with the command; `left_on(place)` lists what was on it at the end.

    Args:
        place: an existing directory.
        free_kib: of 512.
        read_only: mount it read-only.
    """
    script = ["sh", "-c", _SCRIPT, str(place), str(free_kib), "ro" if read_only else "rw"]
    if os.geteuid() == 0:
        return ["unshare", "--mount", *script]
    # Mounting needs a user namespace in which the process is root; the command runs as the ordinary user again.
    again = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
    return ["unshare", "--user", "--map-root-user", "--mount", *script, *again]


def left_on(place: Path) -> list[str]:
    """Names of what a command left on its small disk, relative to it."""
    listed = place.with_name(place.name + ".left").read_text().splitlines()
    return sorted(str(Path(path).relative_to(place)) for path in listed)
