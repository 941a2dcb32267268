"""Rows of every dataset family: recognized by their columns, read field by field, rejected with row and field."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.answers.file_repair import FileRepair
from swegym_env.answers.kodcode import FunctionTask
from swegym_env.answers.vulnerability import VulnerabilityExample
from swegym_env.errors import ConfigurationError, TaskFormatError
from swegym_env.grading.grading import grade
from swegym_env.languages.python.setup import find_recipe
from swegym_env.prepare import command_of_all_tests
from swegym_env.registry import resolve
from swegym_env.repo.repositories import repository_layer
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.adapters import ADAPTERS, Adapter, adapt_row, find_adapter, task_from_row
from swegym_env.tasks.task import Task
from tests.env.repo.test_repositories import git
from tests.env.tasks.test_datasets import ROW

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = {name: ROW[name] for name in ROW if name not in ("image", "eval_script", "log_parser", "eval_type")}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-x = 2\n+x = 1\n",
    "FAIL_TO_PASS": ["tests/test_x.py::test_two"],
    "PASS_TO_PASS": ["tests/test_x.py::test_one", "tests/test_y.py::test_other"],
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "problem_statement": "x is 1",
}
REBENCH = {
    **OLDER,
    "FAIL_TO_PASS": ["t.py::test_x"],
    "PASS_TO_PASS": [],
    "test_patch": "diff --git a/tests/t.py b/tests/t.py\n--- a/tests/t.py\n+++ b/tests/t.py\n@@ -1 +1 @@\n-1\n+2\n",
    "meta": {"has_markdown": True},
    "docker_image": "swerebench/sweb.eval.x86_64.octo_1776_hello-17",
    "requirements": "attrs==23.1.0\n-e git+https://example.invalid/x#egg=x\nnumpy @ file:///croot/numpy\npytest==7.4.0\n",
    "install_config": {
        "python": "3.9",
        "pre_install": ["apt-get update", "touch ready"],
        "pip_packages": ["pytest"],
        "install": "pip install -e .[dev]",
        "test_cmd": "pytest --no-header -rA -p no:cacheprovider",
        "log_parser": "parse_log_pytest",
    },
}
KODCODE = {
    "version": "v1.0", "style": "instruct", "subset": "Leetcode", "question_id": "Leetcode_21032_I",
    "question": "Add one.", "solution": "def add_one(n):\n    return n + 1\n",
    "test": "from solution import add_one\n\ndef test_add_one():\n    assert add_one(1) == 2\n",
    "test_info": [{"function_name": "add_one", "function_declaration": "def add_one(n: int) -> int:", "docstring": ""}],
    "gpt_difficulty": "easy",
}  # fmt: skip
LIVE = {
    **{name: OLDER[name] for name in OLDER if name != "version"},
    "pull_number": "17",
    "issue_numbers": ["16"],
    "rebuild_cmds": ["pip install -e .", "make"],
    "test_cmds": ["pytest -rA", "pytest -rA extra"],
    "print_cmds": [],
    "log_parser": "pytest",
    "created_at": "2025-08-01T10:00:00Z",
}
PRO = {
    "instance_id": "instance_NodeBB__NodeBB-0123456789abcdef0123456789abcdef01234567-vnan",
    "repo": "NodeBB/NodeBB",
    "base_commit": COMMIT,
    "patch": ROW["patch"],
    "test_patch": ROW["patch"],
    "problem_statement": "Names are lost.",
    "requirements": "Names are kept.",
    "interface": "",
    "repo_language": "js",
    "fail_to_pass": "['test/a.js | keeps \\'names\\'']",
    "pass_to_pass": '["test/a.js | starts"]',
    "before_repo_set_cmd": "git reset --hard x\ngit checkout y -- test/a.js",
    "selected_test_files_to_run": "['test/a.js', 'test/b.js']",
    "dockerhub_tag": "nodebb.nodebb-NodeBB__NodeBB-0123456789abcdef0123456789abcdef01234567",
}
MULTI: dict[str, Any] = {
    "org": "BurntSushi", "repo": "ripgrep", "number": 727, "state": "closed", "title": "Fix it", "body": None,
    "base": {"label": "BurntSushi:master", "ref": "master", "sha": COMMIT},
    "resolved_issues": [
        {"number": 726, "title": "It fails", "body": "Always."},
        {"number": 7, "title": "So does this", "body": None},
    ],
    "fix_patch": ROW["patch"], "test_patch": ROW["patch"], "lang": "rust",
    "fixed_tests": {"tests::a": {"run": "NONE", "test": "FAIL", "fix": "PASS"}},
    "p2p_tests": {"tests::b": {"run": "PASS", "test": "PASS", "fix": "PASS"}, "tests::of_another_row": None},
    "f2p_tests": {}, "s2p_tests": {}, "n2p_tests": {},
    "run_result": {}, "test_patch_result": {}, "fix_patch_result": {},
}  # fmt: skip
POLY = {
    **{key: OLDER[key] for key in ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")},
    "language": "Java", "F2P": "['a.BTest:one', 'a.BTest:two']", "P2P": "[]", "test_command": "mvn test -Dtest=BTest",
    "Dockerfile": "FROM polybench_java_base\nWORKDIR /first\nCOPY . .\nWORKDIR /gson\nRUN mvn package\n",
    "task_category": "Bug Fix", "modified_nodes": "[]",
}  # fmt: skip
FLOW = {
    **{name: OLDER[name] for name in ("instance_id", "repo", "base_commit", "patch", "problem_statement")},
    "reference_commit": COMMIT, "docker_image": "hambaobao/sweflow:octo__--__hello",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a b"], "PASS_TO_PASS": ["tests/test_x.py::test_c"],
}  # fmt: skip
NEMO = {
    "responses_create_params": {
        "input": [],
        "metadata": {"instance_id": "x", "dataset_name": "nebius/SWE-rebench", "instance_dict": json.dumps(REBENCH)},
    },
    "agent_ref": {"name": "swe_agents"},
}


def _layer_of(task: Task, clones: Path, store: LayerStore) -> Path:
    return repository_layer(task.repo, task.base_commit, source=clones, patch=task.base_patch, store=store)


def test_columns_of_a_row_select_the_family() -> None:
    rows: dict[str, dict[str, Any]] = {
        "SWE-bench": ROW,
        "SWE-Gym": {**{k: v for k, v in OLDER.items() if k != "environment_setup_commit"}, "repo": "getmoto/moto"},
        "SWE-smith": SMITH,
        "SWE-rebench": REBENCH,
        "SWE-bench Live": LIVE,
        "SWE-bench Pro": PRO,
        "Multi-SWE-bench": MULTI,
        "SWE-PolyBench": POLY,
        "SWE-Flow": FLOW,
        "NeMo Gym": NEMO,
        "KodCode": KODCODE,
        "vulnerability detection": {"func": "int main() {}", "target": 0},
        "file repair": {"buggy": "a", "fixed": "b"},
    }
    assert {name: find_adapter(row) for name, row in rows.items()} == {name: name for name in rows}


@pytest.mark.parametrize("name", ADAPTERS)
def test_columns_of_a_family_are_enough_to_select_it(name: str) -> None:
    family = resolve(ADAPTERS[name], "adapter")
    assert isinstance(family, Adapter)
    if family.matches is None:
        assert find_adapter(dict.fromkeys(family.columns, "")) == name
    else:
        assert not family.accepts({})


def test_older_rows_use_the_setup_table_and_published_images() -> None:
    row = {**OLDER, "repo": "django/django", "instance_id": "django__django-11001", "version": "3.0"}
    row["test_patch"] = "diff --git a/tests/forms_tests/test_x.py b/tests/forms_tests/test_x.py\n--- a/x\n+++ b/x\n"
    task = task_from_row(row)
    assert task.official_image == "docker://swebench/sweb.eval.x86_64.django_1776_django-11001:latest"
    recipe = find_recipe(task)
    assert recipe is not None
    assert recipe.python == "3.6"
    assert recipe.tests_of(task).endswith("--parallel 1 forms_tests.test_x")
    shown = command_of_all_tests(task, recipe, Path("nowhere"))
    assert shown.endswith("--parallel 1")  # agents do not learn which tests are hidden


def test_swe_gym_rows_name_their_images() -> None:
    row = {**OLDER, "repo": "getmoto/moto", "instance_id": "getmoto__moto-5134"}
    del row["environment_setup_commit"]
    assert task_from_row(row).official_image == "docker://xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5134:latest"


def test_swe_rebench_rows_use_their_own_setup_commands() -> None:
    task = task_from_row(REBENCH)
    assert task.python == "3.9"
    assert task.setup == (
        "touch ready",  # and no apt-get, which no sandbox has
        "python -m pip install --no-deps attrs==23.1.0 pytest==7.4.0",
        "pip install -e .[dev]",
    )
    assert task.test_command == "pytest --no-header -rA -p no:cacheprovider tests/t.py"
    assert task.official_image == "docker://swerebench/sweb.eval.x86_64.octo_1776_hello-17"
    as_text = task_from_row({**REBENCH, "install_config": json.dumps(REBENCH["install_config"]), "requirements": None})
    assert as_text.setup[1] == "python -m pip install pytest"


def test_swe_rebench_rows_of_other_languages_run_in_their_image() -> None:
    config = {"test_cmd": "go test -v ./...", "log_parser": "parse_log_gotest", "install": ["go mod download"]}
    task = task_from_row({**REBENCH, "language": "go", "install_config": config, "image_name": "swerebench/go:1"})
    assert (task.setup, task.test_command, task.log_parser) == ((), "go test -v ./...", "parse_log_gotest")
    assert task.image_repository == f"/{task.repo.partition('/')[2]}"
    assert task_from_row({**REBENCH, "language": "python"}).setup == task_from_row(REBENCH).setup
    assert task_from_row(REBENCH).image_repository == "/testbed"


def test_swe_bench_live_rows_have_their_own_commands() -> None:
    task = task_from_row(LIVE)
    assert task.test_command == "pip install -e .; make\npytest -rA; pytest -rA extra"
    assert task.log_parser == "pytest"
    image = LIVE["instance_id"].lower().replace("__", "_1776_")
    assert task.official_image == f"docker://starryzhang/sweb.eval.x86_64.{image}"
    assert task_from_row({**LIVE, "docker_image": "hub/x:1"}).official_image == "docker://hub/x:1"
    with pytest.raises(TaskFormatError, match="'log_parser': expected the name of a parser, and no program"):
        task_from_row({**LIVE, "log_parser": "def parser(log):\n    return {}\n"})
    with pytest.raises(TaskFormatError, match="'docker_image': expected an image for Linux"):
        task_from_row({**LIVE, "docker_image": "starryzhang/sweb.eval.win.x"})


def test_swe_bench_pro_rows_are_played_with_their_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWEGYM_SWE_BENCH_PRO", raising=False)
    task = task_from_row(PRO)
    assert task.fail_to_pass == ("test/a.js | keeps 'names'",)
    assert task.pass_to_pass == ("test/a.js | starts",)
    assert task.problem_statement == "Names are lost.\n\n## Requirements\n\nNames are kept."
    assert task.official_image == f"docker://jefzda/sweap-images:{PRO['dockerhub_tag']}"
    assert (task.image_repository, task.test_command) == ("/app", "")
    with pytest.raises(TaskFormatError, match="'fail_to_pass': expected a non-empty list of names"):
        task_from_row({**PRO, "fail_to_pass": "[1]"})


def test_swe_bench_pro_tests_run_by_the_scripts_of_its_repository(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path / "run_scripts" / PRO["instance_id"]
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text(
        "echo \"asked for '$1'\"; grep -q 'x = 2' x.py && echo fine || echo bad >&2\n"
    )
    (scripts / "parser.py").write_text(
        "import json, sys\n"
        "out, err = (open(path).read() for path in sys.argv[1:3])\n"
        "assert \"asked for 'test/a.js,test/b.js'\" in out\n"
        "status = 'PASSED' if 'fine' in out and not err else 'FAILED'\n"
        "json.dump({'tests': [{'name': \"test/a.js | keeps 'names'\", 'status': status}]}, open(sys.argv[3], 'w'))\n"
    )
    monkeypatch.setenv("SWEGYM_SWE_BENCH_PRO", str(tmp_path))
    row = {
        **PRO,
        "pass_to_pass": "[]",
        "patch": SMITH["patch"].replace("-x = 2\n+x = 1", "-x = 1\n+x = 2"),
        "test_patch": "",
    }
    task = dataclasses.replace(task_from_row(row), files={"x.py": "x = 1\n"}, official_image="")
    assert grade(task, task.patch, store=store, policy="official").resolved
    empty = grade(task, "", store=store, policy="official")
    assert empty.valid and not empty.resolved


def test_multi_swe_bench_rows_are_pull_requests() -> None:
    task = task_from_row(MULTI)
    assert (task.instance_id, task.repo, task.base_commit) == ("BurntSushi__ripgrep-727", "BurntSushi/ripgrep", COMMIT)
    assert task.problem_statement == "It fails\n\nAlways.\n\nSo does this"
    assert (task.fail_to_pass, task.pass_to_pass) == (("tests::a",), ("tests::b",))
    assert task.official_image == "docker://mswebench/burntsushi_m_ripgrep:pr-727"
    assert (task.image_repository, task.test_command) == ("/home/ripgrep", "bash /home/run.sh")
    lists = {"name": ["tests::a"], "run": ["NONE"], "test": ["FAIL"], "fix": ["PASS"]}
    assert task_from_row({**MULTI, "fixed_tests": lists}).fail_to_pass == ("tests::a",)
    assert task_from_row({**MULTI, "resolved_issues": []}).problem_statement == "Fix it"
    with pytest.raises(TaskFormatError, match="base: field 'sha': missing"):
        task_from_row({**MULTI, "base": {"ref": "master"}})


def test_swe_polybench_rows_name_the_directory_of_their_dockerfile() -> None:
    task = task_from_row(POLY)
    assert task.fail_to_pass == ("a.BTest:one", "a.BTest:two")
    assert (task.image_repository, task.test_command) == ("/gson", "mvn test -Dtest=BTest")
    name = POLY["instance_id"].lower()
    assert task.official_image == f"docker://ghcr.io/timesler/swe-polybench.eval.x86_64.{name}:v1.1"


def test_swe_flow_rows_run_their_tests_by_name() -> None:
    task = task_from_row(FLOW)
    assert task.test_command.endswith("'tests/test_x.py::test_a b' tests/test_x.py::test_c")
    assert task.official_image == "docker://hambaobao/sweflow:octo__--__hello"


def test_nemo_gym_rows_hold_rows_of_other_families() -> None:
    assert task_from_row(NEMO) == task_from_row(REBENCH)
    broken = {**REBENCH, "FAIL_TO_PASS": []}
    with pytest.raises(TaskFormatError, match="'FAIL_TO_PASS'"):
        task_from_row({"responses_create_params": {"metadata": {"instance_dict": json.dumps(broken)}}})
    with pytest.raises(TaskFormatError, match="the row of another family"):
        task_from_row({"responses_create_params": {"metadata": {"instance_dict": json.dumps(NEMO)}}})
    assert find_adapter({"responses_create_params": {"input": []}, "instance_id": "x"}) == "SWE-bench"


def test_swe_smith_task_starts_with_its_bug_and_hides_the_fix(tmp_path: Path, store: LayerStore) -> None:
    clone = tmp_path / "oauthlib+oauthlib"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    (clone / "x.py").write_text("x = 2\n")
    (clone / "y.py").write_text("y = 1\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "works")
    commit = git(clone, "rev-parse", "HEAD").strip()
    right = git(clone, "rev-parse", "HEAD:x.py").strip()
    task = task_from_row({**SMITH, "repo": f"swesmith/oauthlib__oauthlib.{commit[:8]}"})
    assert (task.repo, task.base_commit) == ("oauthlib/oauthlib", commit[:8])
    assert task.pass_to_pass == ("tests/test_x.py::test_one",)  # of the files that are run
    testbed = _layer_of(task, tmp_path, store) / "testbed"
    assert (testbed / "x.py").read_text() == "x = 1\n"
    assert git(testbed, "status", "--porcelain") == ""
    assert git(testbed, "rev-list", "--all", "--count").strip() == "1"
    assert right not in git(testbed, "cat-file", "--batch-all-objects", "--batch-check")
    assert git(testbed, "fsck", "--full", "--unreachable").strip() == ""
    (tmp_path / "gold.diff").write_text(task.patch)
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", str(testbed), str(checkout)], check=True, env=_safe(tmp_path))
    git(checkout, "apply", str(tmp_path / "gold.diff"))
    assert (checkout / "x.py").read_text() == "x = 2\n"


def test_r2e_gym_task_starts_before_its_commit(tmp_path: Path, store: LayerStore) -> None:
    clone = tmp_path / "aio-libs+aiohttp"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    for text in ("old\nkept\n", "new\nkept\n"):
        (clone / "a.py").write_text(text)
        (clone / "test_a.py").write_text(f"# {text}")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", text)
    commit = git(clone, "rev-parse", "HEAD").strip()
    task = task_from_row(_r2e_row(commit))
    assert (task.instance_id, task.repo) == (f"aiohttp__{commit[:12]}", "aio-libs/aiohttp")
    assert task.problem_statement == "It is old.\n"
    assert task.fail_to_pass == ("TestA.test_new", "TestA.test_odd[a b]")
    assert task.pass_to_pass == ("TestA.test_kept",)
    testbed = _layer_of(task, tmp_path, store) / "testbed"
    assert (testbed / "a.py").read_text() == "old\nkept\n"
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", str(testbed), str(checkout)], check=True, env=_safe(tmp_path))
    for name, patch in (("gold", task.patch), ("tests", task.test_patch)):
        (tmp_path / name).write_text(patch)
        git(checkout, "apply", str(tmp_path / name))
    assert (checkout / "a.py").read_text() == "new\nkept\n"
    assert (checkout / "r2e_tests" / "test_1.py").read_text() == "class TestA: ...\n"
    with pytest.raises(TaskFormatError, match=r"row \(instance .*|field 'parsed_commit_content'"):
        task_from_row({**_r2e_row(commit), "parsed_commit_content": '{"file_diffs": [{"header": 3}]}'})


def _r2e_row(commit: str) -> dict[str, Any]:
    def diff(path: str) -> dict[str, Any]:
        lines = [("deleted", "old"), ("added", "new"), ("context", "kept")]
        span = {"start": 1, "length": 2}
        return {
            "header": {"file": {"path": path}, "misc_line": None},
            "minus_file": {"path": f"a/{path}"},
            "plus_file": {"path": f"b/{path}"},
            "hunks": [
                {
                    "descriptor": {"old_range": span, "new_range": span, "section": ""},
                    "line_group": {"all_lines": [{"type": kind, "content": content} for kind, content in lines]},
                }
            ],
        }

    before = "== short test summary info ==\nPASSED r2e_tests/test_1.py::TestA::test_kept\n"
    before += "FAILED r2e_tests/test_1.py::TestA::test_new - x\n"
    return {
        "repo_name": "aiohttp",
        "docker_image": "namanjain12/aiohttp_final:" + commit,
        "commit_hash": commit,
        "parsed_commit_content": json.dumps({"file_diffs": [diff("a.py"), diff("test_a.py")]}),
        "execution_result_content": json.dumps(
            {
                "test_file_names": ["test_1.py"],
                "test_file_codes": ["class TestA: ...\n"],
                "old_commit_res_stdout": before,
            }
        ),
        "expected_output_json": json.dumps(
            {
                "TestA.test_kept": "PASSED",
                "\x1b[1mTestA.test_new\x1b[0m": "PASSED",
                "TestA.test_odd[a b]": "PASSED",
                "TestA.bad": "FAILED",
            }
        ),
        "problem_statement": "Write it.\n[ISSUE]\nIt is old.\n[/ISSUE]\n",
    }


def _safe(home: Path) -> dict[str, str]:
    (home / ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}


def test_kodcode_rows_of_both_releases_make_the_same_task() -> None:
    new = adapt_row(KODCODE)
    assert isinstance(new, FunctionTask)
    assert (new.instance_id, new.entry_point, new.difficulty) == ("Leetcode_21032_I", "add_one", "easy")
    assert new.source == "def add_one(n: int) -> int:\n    raise NotImplementedError\n"
    old = {name: KODCODE[name] for name in ("subset", "question", "solution", "gpt_difficulty")}
    old |= {"conversation_id": "Leetcode_21032_I", "test_code": KODCODE["test"], "test_entry_point": "add_one"}
    first = adapt_row(old)
    assert isinstance(first, FunctionTask)
    assert (first.instance_id, first.entry_point, first.tests) == (new.instance_id, new.entry_point, new.tests)
    assert first.declaration == "def add_one(n):"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("def test_x(:\n", "expected a Python module"),
        ("x = 1\n", "expected functions or methods named test_"),
        ("", ""),
    ],
)
def test_kodcode_row_without_tests_is_rejected(test: str, expected: str) -> None:
    with pytest.raises(TaskFormatError, match=rf"row 3.*field 'test'.*{expected}"):
        adapt_row({**KODCODE, "test": test}, where="f.jsonl row 3")


def test_humaneval_pack_rows_are_functions_to_debug() -> None:
    row = {
        "task_id": "Python/7", "entry_point": "twice", "declaration": "def twice(x):\n", "docstring": "Double x.",
        "canonical_solution": "    return 2 * x\n", "buggy_solution": "    return 2 + x\n", "bug_type": "operator",
        "test": "def check(twice):\n    assert twice(3) == 6\n\ncheck(twice)", "prompt": "…",
    }  # fmt: skip
    task = adapt_row(row)
    assert isinstance(task, FunctionTask)
    assert task.instance_id == "Python__7"
    assert task.source == "def twice(x):\n    return 2 + x\n"
    assert task.as_task().fail_to_pass == ("test_solution.Functions.test_twice",)
    with pytest.raises(TaskFormatError, match=r"expected a task in Python, got 'Rust__7'"):
        adapt_row({**row, "task_id": "Rust/7"})


@pytest.mark.parametrize(
    ("label", "vulnerable"),
    [
        (1, True),
        (0, False),
        (True, True),
        ("1", True),
        ("0", False),
        ("Vulnerable", True),
        ("safe", False),
        (0.0, False),
    ],
)
def test_labels_are_read_in_all_common_spellings(label: object, vulnerable: bool) -> None:
    example = adapt_row({"idx": 12, "func": "f()", "target": label, "cwe": ["CWE-79", "CWE-80"]})
    assert isinstance(example, VulnerabilityExample)
    assert example.vulnerable is vulnerable
    assert (example.instance_id, example.cwe) == ("12", "CWE-79")


@pytest.mark.parametrize("label", [2, "maybe", None, [], -1])
def test_other_labels_are_rejected(label: object) -> None:
    with pytest.raises(TaskFormatError, match=r"^row 4: field 'label': expected true or false"):
        adapt_row({"text": "f()", "label": label}, where="row 4")


def test_vulnerability_examples_have_nothing_to_run() -> None:
    with pytest.raises(ConfigurationError, match=r"nothing to run. Try: gymnasium.make\('VulnerabilityDetection-v0'"):
        task_from_row({"text": "f()", "label": 1})


def test_rows_without_an_id_get_one_from_their_content() -> None:
    one, other = (adapt_row({"text": text, "label": 1}).instance_id for text in ("f()", "g()"))
    assert re.fullmatch("[0-9a-f]{12}", one)
    assert one != other


def test_file_repair_rows_may_have_no_tests() -> None:
    repair = adapt_row({"id": 3, "buggy": "int x = 1;\n", "fixed": "int x = 2;\n", "language": "Java"})
    assert isinstance(repair, FileRepair)
    assert (repair.path, repair.language) == ("code.java", "java")
    with pytest.raises(ConfigurationError, match="it has no tests"):
        repair.as_task()
    with pytest.raises(TaskFormatError, match="expected another text than the broken file's"):
        adapt_row({"buggy": "x\n", "fixed": "x"})
    with pytest.raises(TaskFormatError, match="paths inside the repository"):
        adapt_row({"buggy": "x\n", "fixed": "y", "path": "../x.py"})


def test_row_of_no_family_is_rejected_with_the_missing_column() -> None:
    with pytest.raises(TaskFormatError, match=r"^f row 1: field 'instance_id': missing"):
        task_from_row({"colour": "blue"}, where="f row 1")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    base=st.sampled_from([SMITH, REBENCH, KODCODE, ROW, _r2e_row(COMMIT), LIVE, PRO, MULTI, POLY, FLOW, NEMO]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_damaged_rows_are_rejected_by_field_or_load(base: dict[str, Any], data: st.DataObject) -> None:
    damaged = dict(base)
    for column in data.draw(st.sets(st.sampled_from(sorted(base)), min_size=1, max_size=3)):
        damaged[column] = data.draw(json_values)
    message = ""
    try:
        task = task_from_row(damaged, where="row 9")
    except TaskFormatError as error:
        task, message = None, str(error)
    assert isinstance(task, Task) or re.fullmatch(r"(?=.*row 9)(?=.*field ').*", message)
