"""System call filters: a profile, which is data, compiled to the program that the kernel runs at every system call.

A profile is JSON in the format of OCI runtimes and Docker: a default action, and rules that give system calls another
one, some only for certain arguments. `seccomp.json` beside this file is the one that sandboxes use. Of the calls with
several rules the first one whose conditions hold decides, and a rule without conditions holds last. Rules of Docker's
`includes` and `excludes` are read for a container without capabilities.

The program is classic BPF: a binary search by the number of the call, so that any call takes about eight comparisons.
Since Linux 5.11 the kernel remembers which calls are always allowed and does not even run it for those.
"""

from __future__ import annotations

import difflib
import errno
import functools
import os
import platform
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

__all__ = ["PROFILE", "RUNTIME_CALLS", "compile_profile", "profile_for_runtime", "without_preallocation"]

PROFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seccomp.json")
"""The profile of the package."""

RUNTIME_CALLS = (
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "mount_setattr", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "unshare", "setns", "clone", "sethostname", "setdomainname"),
)
"""What a container runtime needs to make a container, and no program in it."""

_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "system_calls.txt")
_MACHINES = {  # name of the machine → column of the table, AUDIT_ARCH of <linux/audit.h>, name of Go (as in profiles)
    "x86_64": (1, 0xC000003E, "amd64"),
    "aarch64": (2, 0xC00000B7, "arm64"),
}
# <linux/seccomp.h>
_KILL_PROCESS, _KILL_THREAD, _TRAP, _ERRNO, _LOG, _ALLOW = 0x80000000, 0, 0x30000, 0x50000, 0x7FFC0000, 0x7FFF0000
_ACTIONS = {
    "SCMP_ACT_ALLOW": _ALLOW,
    "SCMP_ACT_LOG": _LOG,
    "SCMP_ACT_ERRNO": _ERRNO,
    "SCMP_ACT_TRAP": _TRAP,
    "SCMP_ACT_KILL": _KILL_THREAD,
    "SCMP_ACT_KILL_THREAD": _KILL_THREAD,
    "SCMP_ACT_KILL_PROCESS": _KILL_PROCESS,
}
# Classic BPF, <linux/filter.h>: load a word, mask it, jump where equal, greater, greater or equal, always; return.
_LOAD, _AND, _JEQ, _JGT, _JGE, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x05, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in `struct seccomp_data`
_MOST_INSTRUCTIONS = 4096
# <linux/falloc.h>: free a range, without another size of the file. <linux/fs.h>: FS_IOC_RESVSP, FS_IOC_RESVSP64,
# FS_IOC_ZERO_RANGE, which any file takes, and FS_IOC_FSSETXATTR, which sets how much XFS takes at once.
_PUNCH_HOLE = 3
_TAKE_SPACE = (0x40305828, 0x4030582A, 0x40305839, 0x401C5820)
_FAR = 255  # the most instructions that a conditional jump can skip
_WORD = 0xFFFFFFFF
_CONDITION_KEYS = ("index", "op", "value", "valueTwo")
_OTHER = {True: "SCMP_ACT_ERRNO", False: "SCMP_ACT_ALLOW"}  # what rules do where the default is to allow, or to refuse

_Code = list[tuple[int, int, int, int]]  # operation, operand, instructions to skip if true, and if false
_Condition = tuple[int, str, int, int]  # argument, operator, value, second value
_Rule = tuple[tuple[_Condition, ...], int]  # conditions that all must hold; action
_Outcome = tuple[_Rule, ...]  # the last has no conditions


def compile_profile(profile: Mapping[str, Any], machine: str = "", allowed: Collection[str] = ()) -> bytes:
    """The filter program of a profile, as seccomp(2) takes it: 8 bytes an instruction.

    Calls of other architectures and of x32 are refused with ENOSYS, and so are calls that are newer than the table of
    this package, unless the profile allows what it does not name.

    Args:
        profile: in the format of OCI runtimes and Docker.
        machine: "x86_64" or "aarch64"; by default this one.
        allowed: names of calls that are allowed whatever the profile says.

    Raises:
        ValueError: the profile is malformed, or the machine unknown.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(f"no table of system calls for {machine!r}; there are: {', '.join(_MACHINES)}")
    numbers = _numbers(machine)
    default = _action(profile.get("defaultAction"), profile.get("defaultErrnoRet", errno.EPERM))
    outcomes: dict[int, _Outcome] = {}
    for name, rules in _rules(profile, machine).items():
        if name in numbers:
            outcomes[numbers[name]] = _outcome(name, rules, default)
    outcomes.update({numbers[name]: (((), _ALLOW),) for name in allowed if name in numbers})
    refused = _ERRNO | errno.ENOSYS
    newer = default if default in (_ALLOW, _LOG) else refused
    starts: list[tuple[int, _Outcome]] = []  # the first number of each range with the same outcome
    for number in range(max(numbers.values()) + 1):
        outcome = outcomes.get(number, (((), default),))
        if not starts or starts[-1][1] != outcome:
            starts.append((number, outcome))
    starts.append((max(numbers.values()) + 1, (((), newer),)))
    if machine == "x86_64":
        starts.append((0x40000000, (((), refused),)))  # the bit that marks calls of x32
    code = [
        (_LOAD, _ARCHITECTURE_AT, 0, 0),
        (_JEQ, _MACHINES[machine][1], 1, 0),
        (_RETURN, refused, 0, 0),
        (_LOAD, _NUMBER_AT, 0, 0),
        *_search(starts),
    ]
    if len(code) > _MOST_INSTRUCTIONS:
        raise ValueError(f"the filter has {len(code)} instructions, the kernel takes {_MOST_INSTRUCTIONS}")
    return b"".join(struct.pack("=HBBI", operation, true, false, operand) for operation, operand, true, false in code)


def profile_for_runtime(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a profile that is left to a container runtime, in a form that means the same to each.

    The runtime runs under the filter of `compile_profile(profile, allowed=RUNTIME_CALLS)`, and installs this one after
    it has made the container: it refuses those calls, as `profile` does, and lets the first filter decide on the rest.
    Older runtimes know neither `errnoRet` nor a default with exceptions for one call, and would refuse with EPERM where
    a program expects ENOSYS.

    Raises:
        ValueError: the profile is malformed.
    """
    default = _action(profile.get("defaultAction"), profile.get("defaultErrnoRet", errno.EPERM))
    allows = default in (_ALLOW, _LOG)
    rules: list[dict[str, Any]] = []
    if not allows:
        names = {name for machine in _MACHINES for name in _numbers(machine)}
        rules.append({"names": sorted(names.difference(RUNTIME_CALLS)), "action": "SCMP_ACT_ALLOW"})
    found = _rules(profile, platform.machine())
    for name in RUNTIME_CALLS:
        excepted = any(conditions and action not in (_ALLOW, _LOG) for conditions, action in found.get(name, ()))
        for conditions, action in found.get(name, ()):
            if (action in (_ALLOW, _LOG)) == allows or (excepted and not allows and not conditions):
                continue
            arguments = [dict(zip(_CONDITION_KEYS, condition, strict=True)) for condition in conditions]
            rules.append({"names": [name], "action": _OTHER[allows], "args": arguments})
    return {
        "defaultAction": _OTHER[not allows],
        "architectures": ["SCMP_ARCH_X86_64" if platform.machine() == "x86_64" else "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    }


def without_preallocation(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The same profile, but nothing takes space on a disk at once and without writing.

    Where only measuring limits what lies on a disk, that would be faster than any measurement. Programs find what
    older file systems answer (EOPNOTSUPP), and write. To free space is allowed.
    """
    refused = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EOPNOTSUPP}
    mode = {"index": 1, "value": _PUNCH_HOLE, "op": "SCMP_CMP_NE"}
    always = {"index": 3, "value": 0, "op": "SCMP_CMP_GE"}
    rules = [
        {"names": ["fallocate"], "args": [mode], **refused},
        {"names": ["file_setattr"], "args": [always], **refused},
    ]
    for request in _TAKE_SPACE:  # the kernel looks at 32 bits
        same = {"index": 1, "value": _WORD, "valueTwo": request, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["ioctl"], "args": [same], **refused})
    others = profile.get("syscalls", ())
    if not isinstance(others, Sequence):
        raise ValueError(f"the profile's `syscalls` is malformed: {others!r}")  # noqa: TRY004 - as all of a profile
    return {**profile, "syscalls": [*rules, *others]}


@functools.cache
def _numbers(machine: str) -> dict[str, int]:
    """Name of a system call → its number."""
    column = _MACHINES[machine][0]
    with open(_TABLE) as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return {fields[0]: int(fields[column]) for fields in lines if fields[column] != "-"}


def _rules(profile: Mapping[str, Any], machine: str) -> dict[str, list[_Rule]]:
    """Name of a system call → its rules, in the order of the profile."""
    found: dict[str, list[_Rule]] = {}
    try:
        for group in profile.get("syscalls", ()):
            if not _applies(group, machine):
                continue
            action = _action(group["action"], group.get("errnoRet", errno.EPERM))
            arguments = [_condition(argument) for argument in group.get("args") or ()]
            # As in other runtimes, two conditions on one argument are alternatives.
            repeated = len({index for index, *_ in arguments}) < len(arguments)
            alternatives = [(argument,) for argument in arguments] if repeated else [tuple(arguments)]
            for name in group.get("names") or [group["name"]]:
                _check_name(name, action)
                found.setdefault(name, []).extend((conditions, action) for conditions in alternatives)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the profile's `syscalls` is malformed: {error!r}") from error
    return found


def _applies(group: Mapping[str, Any], machine: str) -> bool:
    """Whether a rule of Docker's format is for this machine, this kernel, and a container without capabilities."""
    for word, wanted in (("includes", True), ("excludes", False)):
        conditions = group.get(word) or {}
        if wanted and conditions.get("caps"):
            return False
        arches = conditions.get("arches")
        if arches and (_MACHINES[machine][2] in arches) is not wanted:
            return False
        kernel = conditions.get("minKernel")
        if kernel and (_version(os.uname().release) >= _version(kernel)) is not wanted:
            return False
    return True


def _version(text: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.partition("-")[0].split(".")[:2])


def _check_name(name: str, action: int) -> None:
    """A misspelt name in a rule that refuses would refuse nothing; profiles allow calls of many architectures."""
    if action not in (_ALLOW, _LOG) and not any(name in _numbers(machine) for machine in _MACHINES):
        near = difflib.get_close_matches(name, _numbers("x86_64"), n=1)
        raise ValueError(f"no system call {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _action(name: object, number: object) -> int:
    if not isinstance(name, str) or name not in _ACTIONS:
        raise ValueError(f"no action {name!r}; there are: {', '.join(_ACTIONS)}")
    if not isinstance(number, int) or not 0 <= number < 4096:
        raise ValueError(f"errnoRet: expected a number from 0 to 4095, got {number!r}")
    return _ACTIONS[name] | (number if name == "SCMP_ACT_ERRNO" else 0)


def _condition(argument: Mapping[str, Any]) -> _Condition:
    index, operator = argument["index"], argument["op"]
    value, second = argument.get("value", 0), argument.get("valueTwo", 0)
    if operator not in _COMPARISONS or index not in range(6):
        raise ValueError(f"no condition {operator!r} on argument {index!r}; there are: {', '.join(_COMPARISONS)}")
    if not all(isinstance(number, int) and 0 <= number < 1 << 64 for number in (value, second)):
        raise ValueError(f"conditions compare with numbers of 64 bits, got {value!r} and {second!r}")
    return index, operator, value, second


def _outcome(name: str, rules: Sequence[_Rule], default: int) -> _Outcome:
    """What decides on one call: the rules with conditions in order, then the one without, or the default."""
    last = {action for conditions, action in rules if not conditions}
    if len(last) > 1:
        raise ValueError(f"{name}: two rules without conditions disagree")
    return (*dict.fromkeys(rule for rule in rules if rule[0]), ((), last.pop() if last else default))


def _search(starts: Sequence[tuple[int, _Outcome]]) -> _Code:
    """Find the range that the number of a call lies in, by halves."""
    if len(starts) == 1:
        return _decide(starts[0][1])
    middle = len(starts) // 2
    below, above = _search(starts[:middle]), _search(starts[middle:])
    if len(below) <= _FAR:
        return [(_JGE, starts[middle][0], len(below), 0), *below, *above]
    return [(_JGE, starts[middle][0], 0, 1), (_JUMP, len(below), 0, 0), *below, *above]


def _decide(outcome: _Outcome) -> _Code:
    code: _Code = []
    for conditions, action in outcome:
        tests: _Code = []
        for condition in reversed(conditions):
            tests = _test(condition, failed=len(tests) + 1) + tests
        code += [*tests, (_RETURN, action, 0, 0)]
    return code


def _test(condition: _Condition, failed: int) -> _Code:
    """Code that goes on behind itself where the condition holds, else `failed` instructions further."""
    index, operator, value, second = condition
    return _COMPARISONS[operator](_ARGUMENTS_AT + 8 * index, value, second, failed)


def _equal(place: int, value: int, _: int, failed: int) -> _Code:
    return _masked(place, (1 << 64) - 1, value, failed)


def _masked(place: int, mask: int, value: int, failed: int) -> _Code:
    """The word of 64 bits at `place` equals `value` under `mask`; its halves are little-endian."""
    code: _Code = []
    for offset, shift in ((0, 0), (4, 32)):
        bits = mask >> shift & _WORD
        if not bits:
            continue
        masked = [] if bits == _WORD else [(_AND, bits, 0, 0)]
        half = [(_LOAD, place + offset, 0, 0), *masked]
        code = [*half, (_JEQ, value >> shift & _WORD, 0, failed + len(code)), *code]
    return code


def _unequal(place: int, value: int, _: int, failed: int) -> _Code:
    return [
        (_LOAD, place + 4, 0, 0),
        (_JEQ, value >> 32 & _WORD, 0, 2),
        (_LOAD, place, 0, 0),
        (_JEQ, value & _WORD, failed, 0),
    ]


def _above(operation: int, place: int, value: int, failed: int) -> _Code:
    """Greater, or greater or equal, as `operation` compares the lower halves."""
    return [
        (_LOAD, place + 4, 0, 0),
        (_JGT, value >> 32 & _WORD, 3, 0),
        (_JEQ, value >> 32 & _WORD, 0, 2 + failed),
        (_LOAD, place, 0, 0),
        (operation, value & _WORD, 0, failed),
    ]


def _below(operation: int, place: int, value: int, failed: int) -> _Code:
    """Not greater (or equal), as `operation` compares the lower halves."""
    return [
        (_LOAD, place + 4, 0, 0),
        (_JGT, value >> 32 & _WORD, 3 + failed, 0),
        (_JEQ, value >> 32 & _WORD, 0, 2),
        (_LOAD, place, 0, 0),
        (operation, value & _WORD, failed, 0),
    ]


_COMPARISONS: dict[str, Callable[[int, int, int, int], _Code]] = {
    "SCMP_CMP_EQ": _equal,
    "SCMP_CMP_MASKED_EQ": _masked,
    "SCMP_CMP_NE": _unequal,
    "SCMP_CMP_GT": lambda place, value, _, failed: _above(_JGT, place, value, failed),
    "SCMP_CMP_GE": lambda place, value, _, failed: _above(_JGE, place, value, failed),
    "SCMP_CMP_LE": lambda place, value, _, failed: _below(_JGT, place, value, failed),
    "SCMP_CMP_LT": lambda place, value, _, failed: _below(_JGE, place, value, failed),
}
