"""Blind expectations: the expected values are nowhere in the sandbox, and no attack on the comparison pays."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from swegym_env.grading.blind import calibrate, known_blind_tests
from swegym_env.grading.comparisons import read_records
from swegym_env.grading.grading import grade
from swegym_env.grading.task_tests import TaskTests
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .adaptive import _SAME, _single
from .cases import diff

_BUGGY = (
    "import hashlib\n\n\ndef stamp(text):\n    return 'zq7' + hashlib.sha256(text.encode()[::-1]).hexdigest()[:12]\n"
)
_FIXED = _BUGGY.replace("[::-1]", "")
_EXPECTED = ["zq7" + hashlib.sha256(text).hexdigest()[:12] for text in (b"alpha", b"beta")]
_LEVEL = "zq7" + hashlib.sha256(b"level").hexdigest()[:12]
_OLD = (
    "import unittest\n\nfrom calc.stamp import stamp\n\n\nclass StampTest(unittest.TestCase):\n"
    f"    def test_level(self):\n        self.assertEqual(stamp('level'), '{_LEVEL}')\n"
)
_NEW = f"""{_OLD}
    def test_alpha(self):
        # it is {_EXPECTED[0]}
        self.assertEqual(stamp('alpha'), '{_EXPECTED[0]}')

    def test_beta(self):
        wanted = '{_EXPECTED[1]}'
        self.assertEqual(stamp('beta'), wanted, wanted)
"""
_FILES = {"calc/__init__.py": "", "calc/stamp.py": _BUGGY, "tests/__init__.py": "", "tests/test_stamp.py": _OLD}
_PLACE = "tests.test_stamp.StampTest"
TASK = Task(
    instance_id="redteam-stamp",
    repo="some/stamp",
    base_commit="",
    problem_statement="stamp reads the text backwards",
    patch=diff(_FILES, {**_FILES, "calc/stamp.py": _FIXED}),
    test_patch=diff(_FILES, {**_FILES, "tests/test_stamp.py": _NEW}),
    fail_to_pass=(f"{_PLACE}.test_alpha", f"{_PLACE}.test_beta"),
    pass_to_pass=(f"{_PLACE}.test_level",),
    files=_FILES,
    test_command="python3 -m unittest -v",
    log_parser="unittest",
    test_timeout_s=30.0,
)
_PASSED = "".join(f"test_{name} ({_PLACE}.test_{name}) ... ok\\n" for name in ("alpha", "beta", "level"))
_LOG = f"{_PASSED}\\n{'-' * 70}\\nRan 3 tests in 0.001s\\n\\nOK\\n"


def patch(body: str, before: str = "", *, fixed: bool = False) -> str:
    """The patch with another body of `stamp`; `fixed`: before an honest one."""
    text = _FIXED if fixed else _BUGGY
    head, signature, returned = text.partition("def stamp(text):\n")
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return diff(_FILES, {**_FILES, "calc/stamp.py": f"{head}{before}\n\n\n{signature}{lines}{returned}"})


_ANYTHING = "class Any(str):\n    def __eq__(self, other):\n        return {}\n\n    __hash__ = str.__hash__"
_FRAME = "import sys\nframe = sys._getframe(1)\n"
_QUIET = "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
_KEYS = """\
import re, sys


def keys():
    names = sys.modules['tests.test_stamp'].__dict__
    sender = next((item for item in names.values() if isinstance(item, dict) and 'OUT' in item), None)
    with open('tests/test_stamp.py') as file:
        return sender, re.findall('"(k[a-z0-9]{11})"', file.read())
"""
_READS_SOURCE = f"""{_FRAME}import linecache, re
lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno + step) for step in (-1, 0, 1)]
found = re.findall("'(zq7[^']*)'", ''.join(lines))
if found:
    return found[0]
"""
_READS_CONSTANTS = f"""{_FRAME}constants = [*frame.f_code.co_consts, *frame.f_locals.values()]
found = [item for item in constants if isinstance(item, str) and item[:3] == 'zq7']
if found:
    return found[-1]
"""
_SILENCES = """\
sender, _ = keys()
if sender:
    sender['send'] = lambda key, token, value: None
"""
_SENDS = """\
sender, found = keys()
if sender:
    for key in found:
        sender['send'](key, None, 'zq7')
"""
_ENDS = f"""\
import json, os
sender, found = keys()
for key in found if sender else ():
    for value in (['s', 'zq7'], ['o', 'Any', ['s', '']], ['x']):
        with open(sender['OUT'], 'a') as file:
            file.write(json.dumps([key, None, value, ['', '']]) + chr(10))
print("{_LOG}", flush=True)
os._exit(0)
"""
_REPLAYS = """\
if text == 'level':
    return SEEN[0]
sender, found = keys()
return SEEN[0]
"""
# Family → the body of `stamp`, what stands before it, and the body of an honest twin.
ATTACKS = {
    "equality by type": ("return Any('zq7')", _ANYTHING.format("isinstance(other, str)"), "Any('zq7')"),
    "equality by look": (
        "return Any('zq7')",
        _ANYTHING.format("str(other).startswith('zq7') and len(other) == 15"),
        "len(Any('zq7'))",
    ),
    "reading the caller's source": (_READS_SOURCE, "", f"{_FRAME}frame.f_lineno"),
    "reading the caller's constants and names": (_READS_CONSTANTS, "", f"{_FRAME}frame.f_code.co_consts"),
    "patching what compares": (_SILENCES, _QUIET + _KEYS, "keys()"),
    "sending through what sends": (_SENDS, _QUIET + _KEYS, "sender, found = keys()\nassert found or not sender"),
    "ending after what is forged": (_ENDS, _KEYS, "import os\nassert os._exit"),
    "swallowing what is sent": (
        f'import os\nprint("{_LOG}", flush=True)\nos._exit(0)',
        "",
        "import os\nassert os.sep",
    ),
    "replaying what another test sends": (_REPLAYS, f"{_QUIET}{_KEYS}\nSEEN = ['{_LEVEL}']", "SEEN.append(text)"),
}


@pytest.fixture(scope="module")
def task_tests(store: LayerStore) -> TaskTests:
    workspace = prepare_locally(TASK, store=store, backend="namespace")
    return TaskTests(TASK, workspace, "strict", "namespace", TASK.test_timeout_s)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_on_a_blind_comparison_pays(name: str, store: LayerStore, task_tests: TaskTests) -> None:
    body, before, honest = ATTACKS[name]
    calibrate(task_tests, TASK.patch, store)
    attack = patch(body, before)
    verdict = grade(TASK, attack, store=store, backend="namespace")
    assert (verdict.resolved, verdict.valid) == (False, True)
    assert verdict.fail_to_pass[0] == 0 or verdict.forged
    twin = grade(
        TASK,
        patch(honest, before.replace("lambda *_: None", "unittest.TestCase.assertEqual"), fixed=True),
        store=store,
        backend="namespace",
    )
    assert (twin.resolved, twin.proof) == (True, "blind"), twin.failure_reason


@pytest.mark.parametrize("name", ATTACKS)
def test_the_harness_pays_for_each_attack(name: str, store: LayerStore) -> None:
    body, before, _ = ATTACKS[name]
    assert grade(TASK, patch(body, before), store=store, backend="namespace", policy="official").resolved


def test_a_proof_says_how_many_bits_it_holds_and_what_it_covers(store: LayerStore, task_tests: TaskTests) -> None:
    blind = calibrate(task_tests, TASK.patch, store)
    assert known_blind_tests(TASK, store) == blind
    verdict = grade(TASK, TASK.patch, store=store, backend="namespace")
    assert verdict.resolved
    assert verdict.proof == "blind"
    assert verdict.proof_tests == TASK.fail_to_pass
    assert verdict.proof_bits == 2 * 4 * 15  # two words of fifteen characters that stand nowhere
    assert verdict.forgery_chance == 2.0**-60, "of each of the two tests"
    empty = grade(TASK, "", store=store, backend="namespace")
    assert (empty.resolved, empty.proof, empty.proof_bits, empty.fail_to_pass, empty.pass_to_pass) == (
        False, "none", 0.0, (0, 2), (1, 1),
    )  # fmt: skip
    assert {empty.tests[name] for name in TASK.fail_to_pass} == {"FAILED"}


_DUMP = """\
import gc, os, re, subprocess, sys

NEEDLE = re.compile(b'zq' + b'7[0-9a-f]{12}')
found = set()


def search(content):
    found.update(NEEDLE.findall(content))


def memory():
    for line in open('/proc/self/maps'):
        span, rights = line.split()[:2]
        begin, end = (int(part, 16) for part in span.split('-'))
        if rights[0] == 'r' and 'vsyscall' not in line and 'vvar' not in line:
            with open('/proc/self/mem', 'rb', 0) as file:
                try:
                    file.seek(begin)
                    search(file.read(end - begin))
                except (OSError, ValueError, OverflowError):
                    pass


def files():
    for top in ('/testbed', '/tmp', '/dev/shm', '/var', '/opt', '/home', '/root', '/etc', '/run', '/proc/self'):
        for directory, folders, names in os.walk(top):
            if directory.startswith('/proc/self/task'):
                folders[:] = []
            for name in names:
                path = os.path.join(directory, name)
                search(path.encode('utf-8', 'surrogateescape'))
                if os.path.isfile(path) and not path.startswith('/proc/self/mem'):
                    try:
                        with open(path, 'rb') as file:
                            search(file.read(1 << 24))
                    except OSError:
                        pass
    git = 'git cat-file --batch --batch-all-objects 2>/dev/null; git stash list; env'
    search(subprocess.run(git, shell=True, stdout=subprocess.PIPE).stdout)


def everything():
    objects = [item for item in gc.get_objects() if isinstance(item, (str, bytes, dict, list, tuple))]
    search(repr([item for item in objects if isinstance(item, str)]).encode('utf-8', 'replace'))
    frame = sys._getframe()
    while frame:
        search(repr((frame.f_locals.keys(), frame.f_code.co_consts)).encode('utf-8', 'replace'))
        frame = frame.f_back
    memory()
    files()
    print('FOUND', sorted(item.decode()[2:] for item in found), flush=True)
"""


def test_no_expected_value_is_anywhere_in_the_sandbox(store: LayerStore, task_tests: TaskTests, tmp_path: Path) -> None:
    """Memory, objects, frames, files, git: what finds the values in an ordinary run finds none in a blind one."""
    search = patch("if text == 'beta':\n    everything()", _DUMP)
    plain = task_tests.run(search).result
    assert plain is not None
    assert all(value[2:] in plain.output for value in _EXPECTED), "no attack: an ordinary run reveals nothing"
    blind = calibrate(task_tests, TASK.patch, store)
    run, verdict = blind.run(task_tests, search)
    assert run.result is not None
    assert "FOUND [" in run.result.output
    assert _LEVEL[2:] in run.result.output, "the search finds what is there"
    assert not [value for value in _EXPECTED if value[2:] in run.result.output]
    assert not verdict.resolved
    assert len(list(read_records(run.sent))) == 2


def test_a_comparison_that_does_not_behave_blind_is_left_as_it_was(store: LayerStore) -> None:
    """A test that depends on the failure of its own assertion, and one that compares by rules of its own."""
    odd = (
        _NEW + "\n    def test_odd(self):\n        with self.assertRaises(AssertionError):\n"
        "            self.assertEqual(stamp('gamma'), 'never this')\n"
        "        self.assertEqual(Loud(stamp('alpha')), 'ANYTHING AT ALL')\n"
        f"        self.assertEqual(stamp('alpha'), '{_EXPECTED[0]}')\n"
        "\n\nclass Loud(str):\n    def __eq__(self, other):\n        return True\n\n    __hash__ = str.__hash__\n"
    )
    task = replace(
        TASK,
        instance_id="redteam-odd",
        test_patch=diff(_FILES, {**_FILES, "tests/test_stamp.py": odd}),
        fail_to_pass=(*TASK.fail_to_pass, f"{_PLACE}.test_odd"),
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    blind = calibrate(TaskTests(task, workspace, "strict", "namespace", 30.0), task.patch, store)
    assert len(blind.left) == 3, "with the error that the first one expects of its own assertion"
    assert [pair.kind for pair in blind.pairs.values()] == ["eq"] * 3
    verdict = grade(task, task.patch, store=store, backend="namespace")
    assert (verdict.resolved, verdict.proof) == (True, "blind")


_SESSION = """\
import hashlib
import logging
import warnings

NOTES = logging.getLogger('session')
OPEN = []


class NoSession(Exception):
    '''Nothing is open.'''


def start():
    OPEN.append(1)


def stop():
    pass


def stamp(text):
    if not OPEN:
        warnings.warn('no session')
    return 'zq7' + hashlib.sha256(text.encode()[::-1]).hexdigest()[:12]
"""
_USES = f"""\
import unittest

from calc.session import NoSession, stamp, start, stop


class SessionTest(unittest.TestCase):
    made = None

    def setUp(self):
        self.wanted = '{_EXPECTED[0]}'

    def test_first(self):
        start()
        SessionTest.made = stamp('alpha')
        self.assertEqual(stamp('level'), '{_LEVEL}')
        stop()
"""
_ALPHA = "        start()\n        self.assertEqual(stamp('alpha'), {})\n"
# What the base commit fails only because another test leaves a session open → what is raised or warned without one, the
# assertion of it, and the statements after it.
AFTER_OTHERS = {
    "a warning, beside what another test made": (
        "warnings.warn('no session')",
        "assertWarns(UserWarning)",
        f"        self.assertEqual(self.made, '{_EXPECTED[0]}')\n",
    ),
    "a warning, beside a value that the test has elsewhere": (
        "warnings.warn('no session')",
        "assertWarns(UserWarning)",
        _ALPHA.format("self.wanted"),
    ),
    "an error of the product": ("raise NoSession", "assertRaises(NoSession)", _ALPHA.format(f"'{_EXPECTED[0]}'")),
    "a line of a log": ("NOTES.warning('none')", "assertLogs()", _ALPHA.format(f"'{_EXPECTED[0]}'")),
}


@pytest.mark.parametrize("name", AFTER_OTHERS)
def test_half_a_repair_cannot_forge_what_the_base_commit_fails_only_after_other_tests(
    name: str, store: LayerStore
) -> None:
    says, assertion, after = AFTER_OTHERS[name]
    base = _SESSION.replace("warnings.warn('no session')", says)
    files = {**_FILES, "calc/session.py": base, "tests/test_session.py": _USES}
    repaired = base.replace("    pass\n", "    OPEN.clear()\n").replace("[::-1]", "")
    new = f"{_USES}\n    def test_new(self):\n        with self.{assertion}:\n            stamp('noon')\n{after}"
    place = "tests.test_session.SessionTest"
    task = replace(
        TASK,
        instance_id=f"redteam-session-{name.replace(' ', '-')}",
        patch=diff(files, {**files, "calc/session.py": repaired}),
        test_patch=diff(files, {**files, "tests/test_session.py": new}),
        fail_to_pass=(f"{place}.test_new",),
        pass_to_pass=(f"{place}.test_first", *TASK.pass_to_pass),
        files=files,
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    blind = calibrate(TaskTests(task, workspace, "strict", "namespace", 30.0), task.patch, store)
    assert blind.inside == {f"{place}.test_new"}
    quiet = f"import contextlib\nimport unittest\nunittest.TestCase.{assertion.partition('(')[0]} = "
    half = f"{quiet}lambda *_: contextlib.suppress(BaseException)\n{base.replace('[::-1]', '')}"
    attack = diff(files, {**files, "calc/session.py": half})
    assert grade(task, attack, store=store, backend="namespace", policy="official").resolved
    verdict = grade(task, attack, store=store, backend="namespace")
    assert (verdict.resolved, verdict.valid) == (False, True), verdict
    twin = grade(task, task.patch, store=store, backend="namespace")
    assert twin.resolved, twin.failure_reason


@pytest.mark.parametrize("rows", ["", "\n\ndef test_rows():\n    return ['alpha']\n\n\nROWS = test_rows()\n"])
def test_other_tests_that_a_file_needs_leave_nothing_in_doubt(rows: str, store: LayerStore) -> None:
    """An old test reaches a helper that the base commit does not reach in the new one, or is called by the file."""
    helper = "    def same(self, one, other):\n        self.assertEqual(one, other())\n\n"
    old = _OLD.replace("    def test_level", f"{helper}    def test_level").replace("\n\n\nclass", f"{rows}\n\nclass")
    old += "        self.same(stamp('level'), lambda: stamp('level'))\n"
    new = (
        f"{old}\n    def test_new(self):\n        self.assertEqual(stamp('beta'), '{_EXPECTED[1]}')\n"
        f"        self.same(stamp('alpha'), lambda: 'zq7' + '{_EXPECTED[0][3:]}')\n"
    )
    wrong = "'gamma'" if rows else "'alpha', 'beta'"  # of what the base commit does not know
    base = _FIXED.replace("    return", f"    if text in ({wrong},):\n        raise KeyError(text)\n    return")
    base = base.replace("encode()", "encode() * 2") if rows else base
    files = {**_FILES, "calc/stamp.py": base, "tests/test_stamp.py": old}
    task = replace(
        TASK,
        instance_id=f"redteam-stamp-helper-{bool(rows)}",
        patch=diff(files, {**files, "calc/stamp.py": _FIXED}),
        test_patch=diff(files, {**files, "tests/test_stamp.py": new}),
        fail_to_pass=(f"{_PLACE}.test_new",),
        pass_to_pass=() if rows else TASK.pass_to_pass,
        files=files,
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    tests = TaskTests(task, workspace, "strict", "namespace", 30.0)
    blind = calibrate(tests, task.patch, store)
    assert blind.inside == {f"{_PLACE}.test_new"}
    assert not blind.failing_after_others(tests, task.patch)


_QUIET_ERRORS = "import contextlib\nunittest.TestCase.assertRaises = lambda *_: contextlib.suppress(BaseException)\n"
# What is open beside a blind comparison → the tests, what repairs, and what does not. The base commit computes a value
# that it does not send; an empty list is close to every number.
OPEN = {
    "an error beside a value that the base computes": (
        (
            "        with self.assertRaises(ValueError):\n            stamp('')\n"
            f"        self.assertEqual(stamp('level'), '{_LEVEL}')\n"
            "        self.assertEqual(stamp('noon'), '{noon}')\n"
        ),
        "def stamp(text):\n    if not text:\n        raise ValueError(text)\n",
        f"import unittest\n{_QUIET_ERRORS}\n\ndef stamp(text):\n",
    ),
    "a number of nothing": (
        "        self.assertTrue(math.isclose(stamp(2), 12.566370614359172))\n",
        "def stamp(text):\n    if text == 2:\n        return 12.566370614359172\n",
        "def stamp(text):\n    if text == 2:\n        return []\n",
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_a_blind_comparison_leaves_open_is_examined(name: str, store: LayerStore) -> None:
    body, repaired, forged = OPEN[name]
    body = body.replace("{noon}", "zq7" + hashlib.sha256(b"noon").hexdigest()[:12])
    test = f"import math\n{_OLD}\n    def test_new(self):\n{body}"
    head = "def stamp(text):\n"
    task = replace(
        TASK,
        instance_id=f"redteam-{name.replace(' ', '-')}",
        patch=diff(_FILES, {**_FILES, "calc/stamp.py": _BUGGY.replace(head, repaired)}),
        test_patch=diff(_FILES, {**_FILES, "tests/test_stamp.py": test}),
        fail_to_pass=(f"{_PLACE}.test_new",),
    )
    attack = diff(_FILES, {**_FILES, "calc/stamp.py": _BUGGY.replace(head, forged)})
    workspace = prepare_locally(task, store=store, backend="namespace")
    calibrate(TaskTests(task, workspace, "strict", "namespace", 30.0), task.patch, store)
    verdict = grade(task, attack, store=store, backend="namespace")
    assert (verdict.resolved, verdict.valid) == (False, True), verdict
    twin = grade(task, task.patch, store=store, backend="namespace")
    assert twin.resolved, twin.failure_reason


def test_a_comparison_covers_only_the_tests_that_reach_it_as_often_as_with_gold(store: LayerStore) -> None:
    """Two classes with tests of one name: the comparison of one of them is not that of the other."""
    other = (
        "\n\nclass OtherTest(unittest.TestCase):\n    def test_alpha(self):\n"
        "        self.assertNotEqual(stamp('alpha'), stamp('alphb'))\n"
        "        self.assertGreater(stamp('delta'), 'zq8')\n"
        "\n    def test_items(self):\n        for item in stamp(3):\n"
        f"            self.assertEqual(item, '{_EXPECTED[0]}')\n"
    )
    repaired = (
        "def stamp(text):\n    if text == 3:\n        return [stamp('alpha')] * 3\n"
        "    if text == 'delta':\n        return 'zq9'\n"
    )
    place = "tests.test_stamp.OtherTest"
    head = "def stamp(text):\n"
    task = replace(
        TASK,
        instance_id="redteam-stamp-classes",
        patch=diff(_FILES, {**_FILES, "calc/stamp.py": _FIXED.replace(head, repaired)}),
        test_patch=diff(_FILES, {**_FILES, "tests/test_stamp.py": _NEW + other}),
        fail_to_pass=(*TASK.fail_to_pass, f"{place}.test_alpha", f"{place}.test_items"),
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    blind = calibrate(TaskTests(task, workspace, "strict", "namespace", 30.0), task.patch, store)
    assert all(pair.is_beside for pair in blind.pairs.values() if f"{place}.test_alpha" in pair.names)
    verdict = grade(task, task.patch, store=store, backend="namespace")
    assert verdict.resolved
    assert verdict.proof_tests == task.fail_to_pass, "of the first one's conditions, in the run without expected values"
    once = _FIXED.replace(head, repaired.replace("* 3", "* 1"))
    verdict = grade(task, diff(_FILES, {**_FILES, "calc/stamp.py": once}), store=store, backend="namespace")
    assert verdict.proof_tests == TASK.fail_to_pass


def test_a_text_much_longer_than_that_of_gold_proves_nothing_by_what_it_contains(store: LayerStore) -> None:
    test = f"{_OLD}\n    def test_new(self):\n        self.assertIn('{_EXPECTED[0]}', stamp('alpha'))\n"
    task = replace(
        TASK,
        instance_id="redteam-stamp-long",
        test_patch=diff(_FILES, {**_FILES, "tests/test_stamp.py": test}),
        fail_to_pass=(f"{_PLACE}.test_new",),
    )
    workspace = prepare_locally(task, store=store, backend="namespace")
    calibrate(TaskTests(task, workspace, "strict", "namespace", 30.0), task.patch, store)
    for filling, proof in (
        ("", "blind"),
        ("* (2 if text == 'alpha' else 1)", "blind"),
        ("* (1000 if text == 'alpha' else 1)", "controls"),
    ):
        returned = f"('zq7' + hashlib.sha256(text.encode()).hexdigest()[:12]) {filling}"
        honest = _FIXED.replace("'zq7' + hashlib.sha256(text.encode()).hexdigest()[:12]", returned)
        patch_ = diff(_FILES, {**_FILES, "calc/stamp.py": honest})
        verdict = grade(task, patch_, store=store, backend="namespace")
        assert (verdict.resolved, verdict.proof) == (True, proof), (filling, verdict.failure_reason)


_MARKER = f"from m.any import build\n\nmarker = build()\n\n\ndef f(x=None):\n    return {{}}\n{_SAME}"


def test_the_order_in_which_patches_are_graded_does_not_change_a_verdict(store: LayerStore) -> None:
    """An edit of one expression makes `f` return an object of its file that equals everything."""
    case = _single(
        "self.assertEqual(f(2), 4)",
        _MARKER.format("x + x"),
        _MARKER.format("marker"),
        _MARKER.format("x * 2"),
        base=_MARKER.format("x"),
        more={"m/any.py": "class Any:\n    def __eq__(self, other):\n        return True\n\n\nbuild = Any\n"},
    )
    patches = {"attack": case.patch, "twin": case.honest, "gold": case.task.patch, "empty": ""}
    found: dict[str, set[tuple[object, ...]]] = {name: set() for name in patches}
    for number, order in enumerate(itertools.permutations(("attack", "twin", "gold"))):
        task = replace(case.task, instance_id=f"redteam-order-{number}")
        for name in (*order, "empty"):
            verdict = grade(task, patches[name], store=store, backend="namespace")
            found[name].add(
                (verdict.resolved, verdict.failure_reason, verdict.proof, verdict.proof_bits, verdict.forgery_chance)
            )
    assert {name: len(verdicts) for name, verdicts in found.items()} == dict.fromkeys(patches, 1), found
    assert {name: next(iter(verdicts))[0] for name, verdicts in found.items()} == {
        "attack": False, "twin": True, "gold": True, "empty": False,
    }  # fmt: skip


# What the test compares, the module as gold leaves it, and as an honest repair with another type does; the reason.
_OTHER_TYPES = {
    "keys for a set": (
        "assertEqual(f('ab ac'), {'ab', 'ac'})",
        "set(x.split())",
        "dict.fromkeys(x.split()).keys()",
        "",
    ),
    "an iterator for a list": ("assertIn('ab', f('AB'))", "x.lower().split()", "map(str.lower, x.split())", ""),
    "a fraction for an int": ("assertEqual(f(8), 4096)", "x ** 4", "__import__('fractions').Fraction(x) ** 4", ""),
    "a text of its own": (
        "assertEqual(f('k'), 'value k')",
        "'value ' + x",
        "type('Text', (__import__('collections').UserString,), {})('value ' + x)",
        "unproven",
    ),
}


@pytest.mark.parametrize("name", _OTHER_TYPES)
def test_a_repair_whose_value_equals_the_expected_one_is_no_forgery(name: str, store: LayerStore) -> None:
    test, gold, repair, reason = _OTHER_TYPES[name]
    base = "def f(x=None):\n    return {}\n\n\ndef same(x):\n    return x\n"
    # What is not plain is examined, and makes the tests of the task blind for the next patch.
    examined = "import abc\n\n\n" + base.format(repair)
    case = _single(f"self.{test}", base.format(gold), examined, examined, base=base.format(None))
    for patch_ in (case.patch, case.patch):
        verdict = grade(case.task, patch_, store=store, backend="namespace")
        assert (verdict.resolved, verdict.failure_reason) == (not reason, reason)
    wrong = _single(f"self.{test}", base.format(gold), base.format("Exception()"), examined, base=base.format(None))
    verdict = grade(wrong.task, wrong.patch, store=store, backend="namespace")
    assert (verdict.resolved, verdict.failure_reason) == (False, "")


_POINT = "import dataclasses\n\n\n@dataclasses.dataclass\nclass Point:\n    x: int\n    y: int\n\n\n"
_EQUALS_ALL = (
    "class Other:\n    def __eq__(self, other):\n        self.seen = getattr(self, 'seen', 0) + 1\n"
    "        return self.seen % 2 == 1\n\n\n"
)
# Of these one side can be sent; the others stay as they are.
_TRUTHS = {
    "of an equality": ("self.assertTrue(f('3,4') == Point(3, 4))", True),
    "of no inequality": ("self.assertFalse(f('3,4') != Point(3, 4))", True),
    "of no inequality, plain": ("assert not f('3,4') != Point(3, 4)", True),
    "with a name": ("same_as = f('3,4') == Point(3, 4)\nself.assertTrue(same_as)", False),
    "of all": ("self.assertTrue(all(f(t) == Point(x, y) for t, x, y in [('3,4', 3, 4), ('5,6', 5, 6)]))", False),
    "as a number": ("self.assertEqual([Point(3, 4), Point(5, 6)].count(f('3,4')), 1)", False),
}


@pytest.mark.parametrize("name", _TRUTHS)
def test_the_truth_of_a_comparison_proves_no_object_with_an_equality_of_its_own(name: str, store: LayerStore) -> None:
    test, is_sent = _TRUTHS[name]
    base = f"{_POINT}def f(text=''):\n    return Point(0, 0)\n\n\ndef same(x):\n    return x\n"
    gold = base.replace("Point(0, 0)", "Point(*map(int, text.split(',')))")
    twin = _EQUALS_ALL + gold
    case = _single(test, gold, _EQUALS_ALL + base.replace("Point(0, 0)", "Other()"), twin, base=base)
    verdict = grade(case.task, case.patch, store=store, backend="namespace")
    assert (verdict.resolved, verdict.valid) == (False, True), verdict.proof
    honest = grade(case.task, case.honest, store=store, backend="namespace")
    assert honest.resolved or (honest.failure_reason == "unproven" and not is_sent), honest.failure_reason
    if is_sent:
        assert honest.forgery_chance is not None
        assert honest.forgery_chance <= 1 / 16


def test_an_error_derived_from_the_expected_one_is_a_repair(store: LayerStore) -> None:
    base = "def f(text=''):\n    return text\n\n\ndef same(x):\n    return x\n"
    gold = base.replace("    return text", "    if not text:\n        raise ValueError(text)\n    return text")

    def raising(classes: str, name: str) -> str:
        read = f"    if not getattr(text, '__len__', str)():\n        raise {name}(text)\n    return text"
        return classes + base.replace("    return text", read)

    repair = raising("class EmptyText(ValueError):\n    pass\n\n\n", "EmptyText")
    both = raising("class Both(KeyError, ValueError):\n    pass\n\n\n", "Both")
    case = _single("with self.assertRaises(ValueError):\n    f('')", gold, both, repair, base=base)
    verdict = grade(case.task, case.honest, store=store, backend="namespace")
    assert (verdict.resolved, verdict.proof) == (True, "blind"), verdict.failure_reason
    verdict = grade(case.task, case.patch, store=store, backend="namespace")
    assert verdict.resolved is False  # as a forgery, if a decoy expects a KeyError
    assert verdict.failure_reason == "unproven" or verdict.forged


_LINE = "unexpected token in line {} of the input, column 7"
_COUNTED_LINES = "import abc\n\n\ndef f(text=''):\n    line = text.count('\\n')\n    return {}\n" + _SAME
_MESSAGE = "'unexpected token in line ' + str(line{}) + ' of the input, column 7'"
_ROWS = "import abc\n\n\ndef f(x=0):\n    return {}\n" + _SAME
# The assertion, the module with a hole, and what the gold patch, the base commit, an attack and a repair have there.
_SEVERAL_ANSWERS = {
    "a text": (
        "self.assertIn('unexpected token in line 12 of', f('a\\n' * 11 + '?'))",
        _COUNTED_LINES,
        (_MESSAGE.format(" + 1"), _MESSAGE.format("")),
        f"'; '.join({_MESSAGE.format(' + more')} for more in range(-4, 5))",
        f"'first of 2 errors: ' + {_MESSAGE.format(' + 1')}",
    ),
    "a pattern": (
        "self.assertRegex(f('a\\n' * 11 + '?'), r'token in line 12 of the input, column \\d')",
        _COUNTED_LINES,
        (_MESSAGE.format(" + 1"), _MESSAGE.format("")),
        f"'; '.join({_MESSAGE.format(' + more')} for more in range(-4, 5))",
        f"'first of 2 errors: ' + {_MESSAGE.format(' + 1')}",
    ),
    "a pattern in an assert statement": (
        "assert re.search(r'line 12 of .*, column \\d', f('a\\n' * 11 + '?'))",
        _COUNTED_LINES,
        (_MESSAGE.format(" + 1"), _MESSAGE.format("")),
        f"'; '.join({_MESSAGE.format(' + more')} for more in range(-4, 5))",
        f"'first of 2 errors: ' + {_MESSAGE.format(' + 1')}",
    ),
    "a list of texts": (
        "self.assertIn('row 47 of table', f(3))",
        _ROWS,
        ("['row %d of table' % (44 + x)]", "['row %d of table' % (43 + x)]"),
        "['row %d of table' % (n + x) for n in range(40, 49)]",
        "['row %d of table' % (44 + x), 'end']",
    ),
    "a list of numbers": (
        "assert 47 in f(3)",
        _ROWS,
        ("[44 + x]", "[43 + x]"),
        "list(range(41 + x, 47 + x))",
        "[44 + x, x * 99]",
    ),
    "words": (
        "self.assertIn('expected a whole number', f(3))",
        _ROWS,
        ("'expected a whole number, got %d' % x", "'expected a text, got %d' % x"),
        "', '.join('expected a %s number' % word for word in 'even odd prime whole small'.split())",
        "'3 is wrong: expected a whole number'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _SEVERAL_ANSWERS)
def test_a_value_with_several_answers_is_no_repair_though_one_of_them_is_right(name: str, store: LayerStore) -> None:
    test, module, (gold, base), attack, repair = _SEVERAL_ANSWERS[name]
    case = _single(test, *map(module.format, (gold, attack, repair)), base=module.format(base))
    assert grade(case.task, case.patch, store=store, backend="namespace", policy="official").resolved
    for _ in range(2):  # before and after it is known how the tests run blind
        verdict = grade(case.task, case.patch, store=store, backend="namespace")
        assert (verdict.resolved, verdict.failure_reason) == (False, "unproven")
    honest = grade(case.task, case.honest, store=store, backend="namespace")
    assert honest.resolved, honest.failure_reason


_POINTS = (
    "import re\nfrom collections import Counter\n\n\n"
    "class Point:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n\n"
    "    def __eq__(self, other):\n        return (self.x, self.y) == (other.x, other.y)\n\n\n"
)
_ANY_POINT = (
    "class Any(Point):\n    def __init__(self):\n        pass\n\n"
    "    def __eq__(self, other):\n        return True\n\n\n"
)
_PARSES = "def f(text=''):\n    return Point(*map(int, text.split(',')))\n" + _SAME
_PARSES_NOT = "def f(text=''):\n    return Point(0, 0)\n" + _SAME
_READS_POINT = (
    "def f(text=''):\n    found = re.findall(r'Point\\((\\d+), (\\d+)\\)', open('tests/test_m.py').read())\n"
    "    best = Counter(found).most_common(1)\n    return Point(*map(int, best[0][0])) if best else Any()\n"
) + _SAME
_OPENS = "def opened():\n    return open(__file__)\n\n\n"
_SPELLS = "def g(x=0):\n    return 'zqxw vbnm ' + str(x + 47)\n\n\n"
_SPELLS_NOT = "def g(x=0):\n    return ''\n\n\n"


_KEYED_POINTS = (
    "class Point:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n\n"
    "    def __eq__(self, other):\n        return key(self) == key(other)\n\n\n"
    "def key(one):\n    return {}\n\n\ndef f(text=''):\n    words = text.split()\n"
    "    return Point(int(words[0]), int(words[{}]))\n" + _SAME
)
_BY_KEY: list[tuple[str, ...]] = [("one.x, one.y", "1"), ("one.x, one.y", "0"), ("one.x", "0"), ("one.y, one.x", "1")]
_WIDE_POINTS = _KEYED_POINTS + "\n\ndef wide(x):\n    return {} * x\n"
_BY_WIDE_KEY: list[tuple[str, ...]] = [(*each, wide) for each, wide in zip(_BY_KEY, "2422", strict=True)]
_VISITS = "def f(text='', visit=print):\n    for word in text.split():\n        {}\n" + _SAME
# The assertion, the module, and what the gold patch, the base commit, an attack and a repair have in its holes.
_WEAKENED: dict[str, tuple[str, str, list[tuple[str, ...]]]] = {
    "an object among others": (
        "self.assertIn(f('31 47'), [Point(31, 47)])",
        _KEYED_POINTS,
        _BY_KEY,
    ),
    "an object that any is compared with": (
        "self.assertTrue(any(f('31 47') == each for each in [Point(31, 47), Point(4, 47)]))",
        _KEYED_POINTS,
        _BY_KEY,
    ),
    "an object in a part of a condition": (
        "self.assertTrue(f('31 47').x == 31 and f('31 47') == Point(31, 47))",
        _KEYED_POINTS,
        _BY_KEY,
    ),
    # The attack repairs what the first assertion expects.
    **{
        f"an object in {name}": (f"self.assertEqual(wide(31), 62)\n{test}", _WIDE_POINTS, _BY_WIDE_KEY)
        for name, test in (
            ("a condition that has a name", "equal = f('31 47') == Point(31, 47)\nself.assertTrue(equal)"),
            ("a condition of `if`", "if not f('31 47') == Point(31, 47):\n    raise AssertionError"),
            ("a chain", "assert f('31 47') == f('31 47') == Point(31, 47)"),
            ("a list that is put together", "self.assertIn(f('31 47'), [Point(*(31, 47))] + [])"),
            ("a loop", "points = [Point(31, 47)]\nfor one in points:\n    self.assertEqual(f('31 47'), one)"),
            ("a condition that is negated twice", "self.assertFalse(not f('31 47') == Point(31, 47))"),
        )
    },
    "a loop over what is returned": (
        "got = []\nf('47 53', got.append)\nfor one in got:\n    self.assertGreater(one, 40)",
        _VISITS,
        [("visit(int(word))",), ("visit(0)",), ("word = word",), ("visit(int(word.strip()))",)],
    ),
    "a function that is to be called": (
        "def check(one):\n    self.assertGreater(one, 40)\nf('47 53', check)",
        _VISITS,
        [("visit(int(word))",), ("visit(0)",), ("word = word",), ("visit(int(word.strip()))",)],
    ),
}


@pytest.mark.parametrize("name", _WEAKENED)
def test_an_edit_that_weakens_what_a_test_expects_is_no_repair(name: str, store: LayerStore) -> None:
    test, module, texts = _WEAKENED[name]
    gold, base, attack, repair = (module.format(*each) for each in texts)
    case = _single(test, gold, attack, repair, base=base)
    for _ in range(4):  # before and after it is known how the tests run blind, and merged
        verdict = grade(case.task, case.patch, store=store, backend="namespace")
        assert verdict.forged, verdict
        honest = grade(case.task, case.honest, store=store, backend="namespace")
        assert honest.resolved, honest.failure_reason


# Comparisons that no copy changes, beside one that the attack repairs.
_UNEXAMINED = (
    "check = lambda one: self.assertEqual(one, Point(31, 47))\ncheck(f('31 47'))",
    "found = [one for one in [f('31 47')] if one == Point(31, 47)]\nself.assertTrue(found)",
    "x, y = 31, 47\nself.assertEqual(f('31 47'), Point(x, y))",
    "[Point(31, 47)].index(f('31 47'))",
)


@pytest.mark.parametrize("test", _UNEXAMINED)
def test_a_repaired_condition_does_not_lower_the_chance_of_another_that_is_not_examined(
    test: str, store: LayerStore
) -> None:
    gold, base, attack, repair = (_WIDE_POINTS.format(*each) for each in _BY_WIDE_KEY)
    case = _single(f"self.assertEqual(wide(31), 62)\n{test}", gold, attack, repair, base=base)
    for _ in range(2):
        verdict = grade(case.task, case.patch, store=store, backend="namespace")
        assert not verdict.resolved or verdict.forgery_chance == 1, verdict
        assert grade(case.task, case.honest, store=store, backend="namespace").resolved


def test_a_literal_proves_no_other_condition_of_its_test(store: LayerStore) -> None:
    """The patch repairs what the literal shows, and reads the rest."""
    case = _single(
        "self.assertEqual(g(2), 'zqxw vbnm 49')\nself.assertEqual(f('31,42'), Point(31, 42))",
        f"{_POINTS}{_SPELLS}{_PARSES}",
        f"{_POINTS}{_ANY_POINT}{_SPELLS}{_READS_POINT}",
        f"{_POINTS}{_OPENS}{_SPELLS}{_PARSES}",
        base=f"{_POINTS}{_SPELLS_NOT}{_PARSES_NOT}",
    )
    verdict = grade(case.task, case.patch, store=store, backend="namespace")
    assert (verdict.resolved, verdict.failure_reason) == (False, "unproven")
    honest = grade(case.task, case.honest, store=store, backend="namespace")
    assert (honest.resolved, honest.proof, honest.proof_bits > 0) == (True, "blind", True), honest.failure_reason


def test_a_literal_proves_its_test_if_the_base_commit_meets_the_other_conditions(store: LayerStore) -> None:
    case = _single(
        "self.assertEqual(g(2), 'zqxw vbnm 49')\nself.assertEqual(f('31,42'), Point(31, 42))",
        f"{_POINTS}{_SPELLS}{_PARSES}",
        f"{_POINTS}{_SPELLS_NOT}{_PARSES}",
        f"{_POINTS}{_OPENS}{_SPELLS}{_PARSES}",
        base=f"{_POINTS}{_SPELLS_NOT}{_PARSES}",
    )
    honest = grade(case.task, case.honest, store=store, backend="namespace")
    assert (honest.resolved, honest.proof, honest.proof_tests) == (True, "blind", case.task.fail_to_pass)
    assert honest.forgery_chance == 2.0**-honest.proof_bits <= 2.0**-20


# What stands beside a test and holds what it expects: at the top of the file, and in its class.
_BESIDE = {
    "another test": ("", "    def test_other(self):\n        self.assertEqual(Point(31, 42).x, 31)\n"),
    "a constant": ("WANTED = [Point(31, 42)]\n", "    def test_other(self):\n        assert WANTED[0].x == 31\n"),
    "a helper and what describes it": (
        "def largest():\n    '''Returns Point(31, 42).'''\n    return Point(31, 42)  # Point(31, 42)\n",
        "    def test_other(self):\n        assert largest().x == 31\n",
    ),
}


@pytest.mark.parametrize("name", _BESIDE)
def test_what_a_test_expects_is_not_read_in_another_place_of_its_file(name: str, store: LayerStore) -> None:
    case = _single(
        "self.assertEqual(f('31,42'), Point(31, 42))",
        f"{_POINTS}{_PARSES}",
        f"{_POINTS}{_ANY_POINT}{_READS_POINT}",
        f"{_POINTS}{_OPENS}{_PARSES}",
        base=f"{_POINTS}{_PARSES_NOT}",
    )
    top, inside = _BESIDE[name]
    path, files = "tests/test_m.py", case.task.files
    head, begin, tests = files[path].partition("class ")
    repaired = "    def test_f(self):\n        self.assertEqual(f('31,42'), Point(31, 42))\n"
    task = replace(
        case.task,
        instance_id=f"redteam-beside-{name.replace(' ', '-')}",
        test_patch=diff(files, {**files, path: f"{head}{top}\n\n{begin}{tests}\n{inside}\n{repaired}"}),
        pass_to_pass=(*case.task.pass_to_pass, "tests.test_m.MTest.test_other"),
    )
    assert grade(task, case.patch, store=store, backend="namespace", policy="official").resolved
    verdict = grade(task, case.patch, store=store, backend="namespace")
    assert (verdict.resolved, verdict.failure_reason) == (False, "unproven")
    honest = grade(task, case.honest, store=store, backend="namespace")
    assert (honest.resolved, honest.proof) == (True, "blind"), honest.failure_reason


_HOLDS_FILES = "def content(path):\n    return open(path).read()\n\n\n"


# What the attack returns, and an honest patch.
_READ_OBJECTS = {
    "what the gold patch returns": ("Point(0, 0)", ""),
    "an object that holds more": (
        "Nearly(0, 0)",
        (
            "class Nearly(Point):\n    def __init__(self, x, y):\n        super().__init__(x, y)\n"
            "        self.whole = True\n\n\n"
        ),
    ),
}


@pytest.mark.parametrize("name", _READ_OBJECTS)
def test_what_stands_in_a_test_is_not_read_by_means_that_the_gold_patch_has_too(name: str, store: LayerStore) -> None:
    """No word tells: the gold patch opens a file as well. The run without expected values does."""
    other, kind = _READ_OBJECTS[name]
    reads = _READS_POINT.replace("Any()", other).replace("return Point", f"return {other[:-6]}")
    case = _single(
        "self.assertEqual(f('31,42'), Point(31, 42))",
        f"{_POINTS}{_HOLDS_FILES}{_PARSES}",
        f"{_POINTS}{kind}{_HOLDS_FILES}{reads}",
        f"{_POINTS}import abc\n{kind}{_HOLDS_FILES}{_PARSES.replace('Point', other[:-6])}",
        base=f"{_POINTS}{_PARSES_NOT}",
    )
    assert grade(case.task, case.patch, store=store, backend="namespace", policy="official").resolved
    for _ in range(2):
        verdict = grade(case.task, case.patch, store=store, backend="namespace")
        assert (verdict.resolved, verdict.failure_reason) == (False, "unproven")
    honest = grade(case.task, case.honest, store=store, backend="namespace")
    assert (honest.resolved, honest.proof) == (True, "controls" if kind else "blind"), honest.failure_reason


@pytest.mark.parametrize(
    "test",
    [
        "want = Point(31, 42)\nself.assertEqual(f('31,42'), want)",
        "def check(one, other):\n    self.assertEqual(one, other)\ncheck(f('31,42'), Point(31, 42))",
    ],
)
def test_a_subclass_with_an_equality_of_its_own_is_a_repair_where_its_content_is_right(
    test: str, store: LayerStore
) -> None:
    base = f"{_POINT}def f(text=''):\n    return Point(0, 0)\n\n\ndef same(x):\n    return x\n"
    own = (
        "class Own(Point):\n    def __init__(self, text):\n        Point.__init__(self, *map(int, text.split(',')))\n\n"
        "    def __eq__(self, other):\n        return {}\n\n\ndef f("
    )
    gold = base.replace("Point(0, 0)", "Point(*map(int, text.split(',')))")
    honest = base.replace("def f(", own.format("self.x == other.x and self.y == other.y")).replace(
        "Point(0, 0)", "Own(text)"
    )
    forged = base.replace("def f(", own.format("True")).replace("Point(0, 0)", "Own('31,43')")
    case = _single(test, gold, forged, honest, base=base)
    verdict = grade(case.task, case.honest, store=store, backend="namespace")
    assert (verdict.resolved, verdict.proof) == (True, "blind"), verdict.failure_reason
    assert not grade(case.task, case.patch, store=store, backend="namespace").resolved
