"""The compiled filter decides as the profile reads, on every architecture and for all arguments."""

from __future__ import annotations

import errno
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.sandbox.linux.seccomp import PROFILE, RUNTIME_CALLS, compile_profile, profile_for_runtime

ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x50000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
TABLE = Path(PROFILE).with_name("system_calls.txt")
NAMED = {name: (x86, arm) for name, x86, arm in (line.split() for line in TABLE.read_text().splitlines()[1:])}
SHIPPED = json.loads(Path(PROFILE).read_text())


def number_of(name: str, machine: str) -> int | None:
    number = NAMED[name][machine == "aarch64"]
    return None if number == "-" else int(number)


def decide(program: bytes, machine: str, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run classic BPF by its definition (<linux/bpf_common.h>) over a `struct seccomp_data`."""
    six = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, ARCHITECTURES[machine], 0, *six)
    code = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, operand)[0]
            case 0x54:
                accumulator &= operand
            case 0x05:
                at += operand
            case 0x06:
                return int(operand)
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x25:
                at += if_true if accumulator > operand else if_false
            case 0x35:
                at += if_true if accumulator >= operand else if_false
            case _:
                raise AssertionError(f"operation {operation:#x}")


def holds(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    """The meaning of a condition as the OCI runtime specification defines it."""
    given_value, value, second = arguments[condition["index"]], condition["value"], condition.get("valueTwo", 0)
    return bool(
        {
            "SCMP_CMP_EQ": given_value == value,
            "SCMP_CMP_NE": given_value != value,
            "SCMP_CMP_LT": given_value < value,
            "SCMP_CMP_LE": given_value <= value,
            "SCMP_CMP_GT": given_value > value,
            "SCMP_CMP_GE": given_value >= value,
            "SCMP_CMP_MASKED_EQ": given_value & value == second,
        }[condition["op"]]
    )


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_shipped_profile_decides_every_call_as_it_reads(machine: str) -> None:
    program = compile_profile(SHIPPED, machine)
    values = (0, 1, 2, 8, 10, 15, 16, 17, 38, 40, 0x4206, 0x5412, 0x10000000, 0x40000, 0xFFFFFFFF, 1 << 32 | 1)
    for name in NAMED:
        number = number_of(name, machine)
        if number is None:
            continue
        rules = [rule for rule in SHIPPED["syscalls"] if name in rule["names"]]
        rules.sort(key=lambda rule: "args" not in rule)  # stable: a rule without conditions holds last
        for first in values:
            for second, third in ((0, 0), (first, first), (1, 4), (0x5412, 9)):
                arguments = (first, second, third, 0, 0, 0)
                matching = [rule for rule in rules if all(holds(each, arguments) for each in rule.get("args", ()))]
                expected = ERRNO | errno.EPERM
                if matching:
                    allowed = matching[0]["action"] == "SCMP_ACT_ALLOW"
                    expected = ALLOW if allowed else ERRNO | matching[0]["errnoRet"]
                assert decide(program, machine, number, arguments) == expected, (name, arguments)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_other_architectures_and_newer_calls_do_not_exist(machine: str) -> None:
    program = compile_profile(SHIPPED, machine)
    nothing = ERRNO | errno.ENOSYS
    read = number_of("read", machine)
    assert read is not None
    other = next(each for each in ARCHITECTURES if each != machine)
    assert decide(program, machine, read) == ALLOW
    assert decide(program, other, read) == nothing
    assert decide(program, machine, 5000) == nothing
    assert decide(program, machine, 0x40000000 | read) == nothing  # x32 of x86_64


def test_the_table_is_that_of_the_kernel_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers (linux-libc-dev)")
    calls = re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())
    assert len(calls) > 300
    for name, number in calls:
        assert NAMED[name][0] == number, name


VALUES = st.sampled_from([0, 1, 2, 0xFFFFFFFF, 1 << 32, (1 << 32) + 1, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
CONDITIONS = st.builds(
    lambda index, operator, value, second: {"index": index, "op": operator, "value": value, "valueTwo": second & value},
    st.integers(0, 5),
    st.sampled_from([f"SCMP_CMP_{name}" for name in ("EQ", "NE", "LT", "LE", "GT", "GE", "MASKED_EQ")]),
    VALUES,
    VALUES,
)
RULES = st.lists(CONDITIONS, min_size=1, max_size=4, unique_by=lambda condition: condition["index"])


@given(st.lists(RULES, max_size=4), st.tuples(*[VALUES] * 6), st.booleans())
def test_conditions_compare_64_bits(rules: list[list[dict[str, Any]]], arguments: tuple[int, ...], near: bool) -> None:
    if near and rules:  # equality of random numbers is rare
        arguments = tuple(
            next((each["value"] for each in rules[0] if each["index"] == index), number)
            for index, number in enumerate(arguments)
        )
    profile = {
        "defaultAction": "SCMP_ACT_KILL_PROCESS",
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ERRNO", "errnoRet": number, "args": conditions}
            for number, conditions in enumerate(rules)
        ],
    }
    matching = [n for n, conditions in enumerate(rules) if all(holds(each, arguments) for each in conditions)]
    expected = ERRNO | matching[0] if matching else KILL_PROCESS
    assert decide(compile_profile(profile, "x86_64"), "x86_64", 0, arguments) == expected


def test_docker_extensions_are_read_for_a_container_without_capabilities() -> None:
    def allow(name: str, **more: object) -> dict[str, object]:
        return {"names": [name], "action": "SCMP_ACT_ALLOW", **more}

    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            allow("read"),
            allow("bpf", includes={"caps": ["CAP_BPF"]}),
            allow("write", excludes={"caps": ["CAP_SYS_ADMIN"]}),
            allow("close", includes={"arches": ["s390x"]}),
            allow("dup", includes={"arches": ["amd64"]}, comment="of this machine"),
            allow("fstat", includes={"minKernel": "99.0"}),
            allow("lseek", includes={"minKernel": "2.6"}),
            allow("_llseek"),  # of 32 bits
            {"name": "brk", "action": "SCMP_ACT_ALLOW", "args": None},
            # Two conditions on one argument are alternatives.
            allow("clone", args=[{"index": 0, "value": n, "op": "SCMP_CMP_EQ"} for n in (17, 18)]),
        ],
    }
    program = compile_profile(profile, "x86_64")
    decided = {name: decide(program, "x86_64", number_of(name, "x86_64") or 0) == ALLOW for name in NAMED}
    assert {name for name, allowed in decided.items() if allowed} == {"read", "write", "dup", "lseek", "brk"}
    assert [decide(program, "x86_64", 56, (flags,)) == ALLOW for flags in (17, 18, 19)] == [True, True, False]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({}, "no action None"),
        ({"defaultAction": "SCMP_ACT_MAYBE"}, "no action 'SCMP_ACT_MAYBE'"),
        ({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5000}, "from 0 to 4095"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_ERRNO"}]}, "malformed"),
        ({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": 7}, "malformed"),
        (
            {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["keyctrl"], "action": "SCMP_ACT_ERRNO"}]},
            "did you mean 'keyctl'",
        ),
        (
            {
                "defaultAction": "SCMP_ACT_ERRNO",
                "syscalls": [
                    {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]}
                ],
            },
            "no condition",
        ),
    ],
)
def test_a_malformed_profile_is_refused_with_the_reason(profile: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_profile(profile, "x86_64")


def test_a_runtime_gets_only_what_it_must_decide_itself() -> None:
    profile = profile_for_runtime(SHIPPED)
    program, outer = compile_profile(profile), compile_profile(SHIPPED, allowed=RUNTIME_CALLS)
    machine = next(name for name in ARCHITECTURES if compile_profile(profile, name) == program)
    for name in NAMED:
        number = number_of(name, machine)
        if number is None:
            continue
        inner = decide(program, machine, number, (0x10000000,))  # clone: with a user namespace
        assert (inner == ALLOW) == (name not in RUNTIME_CALLS), name
        assert name not in RUNTIME_CALLS or decide(outer, machine, number) == ALLOW
    permissive = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mount", "keyctl"], "action": "SCMP_ACT_ERRNO"}],
    }
    assert profile_for_runtime(permissive)["syscalls"] == [{"names": ["mount"], "action": "SCMP_ACT_ERRNO", "args": []}]
