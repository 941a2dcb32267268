"""Set-up layers are built once and shared; the table, the interpreters and the package index settings of the host."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.languages import Toolchain
from swegym_env.languages.package_index import package_index
from swegym_env.languages.python.interpreters import fetch_interpreter, find_interpreter
from swegym_env.languages.python.setup import SHIPPED_TABLE, PythonRecipe, find_recipe, read_table
from swegym_env.languages.setup_layers import export_changes
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.places import empty_store

FILES = {"src/thing/__init__.py": "VALUE = 1\n", "README": "x\n"}
INSTANCES = (("x-1", "1.0"), ("x-2", "1.0"), ("x-2", "2.0"))
SEE_SOURCES = 'echo /testbed/src > "$(python -c "import site; print(site.getsitepackages()[0])")/thing.pth"'


def task(**fields: object) -> Task:
    plain = {"instance_id": "x-1", "repo": "some/thing", "base_commit": "", "problem_statement": "p", "patch": ""}
    return Task(**{**plain, **fields})  # type: ignore[arg-type]


def run(spec: SandboxSpec, command: str) -> str:
    sandbox = open_sandbox(spec)
    try:
        sandbox.start()
        return sandbox.run(command).output
    finally:
        sandbox.close()


@pytest.fixture(scope="module")
def store(public_directory: Path) -> LayerStore:
    """One layer store for all tests here: most of the time goes into making virtual environments."""
    return empty_store(public_directory)


def test_setup_commands_run_once_and_a_failing_one_raises_an_error_with_its_log(store: LayerStore) -> None:
    one = task(files=FILES, setup=(SEE_SOURCES, "date +%N > /opt/testbed/when", "echo made > generated.txt; rm README"))
    first = prepare_locally(one, store=store)
    output = run(
        first.spec, "python -c 'import thing; print(thing.VALUE)'; cat generated.txt README; cat /opt/testbed/when"
    )
    assert output.startswith("1\nmade\nx\n")  # what it deletes of the repository is in the repository's own layer above
    again = prepare_locally(one, store=LayerStore(store.root))
    assert again == first
    assert run(again.spec, "cat /opt/testbed/when") == output.splitlines()[-1] + "\n"
    bare = prepare_locally(one, store=store, install=False)
    assert bare.spec.layers == first.spec.layers[-1:]
    assert "No module named 'thing'" in run(bare.spec, "python3 -c 'import thing'")
    # Other commands for the same files are run, and their failure leaves the first layer as it is.
    with pytest.raises(
        LayerError, match=r"x-1: set-up command 'no-such-tool --x' exited with 127: .*not found.*The whole log: "
    ) as caught:
        prepare_locally(task(files=FILES, setup=("echo first", "no-such-tool --x")), store=store)
    assert "first" in Path(str(caught.value).rpartition(": ")[2]).read_text()
    layers = [entry.name for entry in store.root.iterdir() if entry.name.startswith("setup-")]
    assert layers == [layer.name for layer in first.spec.layers if layer.name.startswith("setup-")]


def test_one_environment_serves_all_commits_of_a_version(
    store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "some+thing"
    (clone / "src" / "thing").mkdir(parents=True)
    git = ["git", "-C", str(clone), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    commits = []
    for number in range(3):
        (clone / "src/thing/__init__.py").write_text(f"VALUE = {number}\n")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", str(number)], check=True)
        commits.append(
            subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        )
    table = tmp_path / "table.yaml"
    table.write_text(
        "some/thing:\n"
        "- versions: ['1.0']\n"
        "  build_tools: []\n"
        "  env: {FLAVOUR: sweet}\n"
        f"  commands: ['{SEE_SOURCES}', 'python -c \"import thing; print(thing.VALUE)\" > installed.txt',"
        " 'git describe --tags >> installed.txt']\n"
        "  test_command: python -m unittest\n"
    )
    monkeypatch.setenv("SWEGYM_SETUP_COMMANDS", str(table))
    rows = [task(base_commit=commit, version="1.0", environment_setup_commit=commits[0]) for commit in commits[1:]]
    spaces = [prepare_locally(row, repos=tmp_path, store=store) for row in rows]
    assert spaces[0].test_command == "python -m unittest"
    shared = set(spaces[0].spec.layers) & set(spaces[1].spec.layers)
    assert [layer.name.split("-")[0] for layer in shared if not layer.name.startswith("interpreter")] == ["environment"]
    for number, space in enumerate(spaces, 1):
        see = "git tag; cat installed.txt; python -c 'import thing; print(thing.VALUE)'; echo $FLAVOUR; git status -s"
        output = run(space.spec, see)
        assert output == f"{number}\nv1.0\n{number}\nsweet\n?? installed.txt\n"  # the tag was for set-up only
    unknown = prepare_locally(task(base_commit=commits[1], version="9.9"), repos=tmp_path, store=store)
    assert len(unknown.spec.layers) == 1


def test_exported_changes_as_a_layer_give_the_same_files(store: LayerStore, public_directory: Path) -> None:
    base = prepare_locally(task(files=FILES), store=store).spec
    lower = store.get_or_build(("some", "lower"), _write_lower)
    spec = SandboxSpec(layers=(lower, *base.layers))
    sandbox = open_sandbox(spec)
    script = (
        "cd /opt/x && rm gone && rm -r away && echo new > kept && ln -s kept link && "
        "mkdir -p a/b && echo 1 > a/b/c && chmod +x a/b/c"
    )
    see = "cd /opt/x && find . -printf '%P %y %m %l\\n' | sort && cat kept a/b/c; ls -la /tmp"
    try:
        sandbox.start()
        assert sandbox.run(f"{script} && echo x > /tmp/private").exit_code == 0
        layer = store.get_or_build(("some", "upper"), lambda place: export_changes(sandbox, place, leave_out=("tmp",)))
        expected = sandbox.run(see).output
    finally:
        sandbox.close()
    copied = run(SandboxSpec(layers=(lower, layer, *base.layers)), see)
    assert copied.partition("total")[0] == expected.partition("total")[0]
    assert "private" not in copied
    assert "away" not in copied


def _write_lower(layer: Path) -> None:
    from swegym_env.sandbox.identity import own

    for path in ("opt/x/gone", "opt/x/away/f", "opt/x/kept"):
        (layer / path).parent.mkdir(parents=True, exist_ok=True)
        (layer / path).write_text("old\n")
    for entry in layer.rglob("*"):
        own(entry)


def test_the_shipped_table_is_valid_and_has_recipes_for_its_versions() -> None:
    table = read_table(SHIPPED_TABLE)
    assert find_recipe(task(repo="marshmallow-code/marshmallow", version="3.0")) is not None
    recipe = find_recipe(task(repo="pydicom/pydicom", version="1.4"))
    assert recipe is not None
    assert recipe.python == "3.8"
    assert find_recipe(task(repo="pydicom/pydicom", version="0.1")) is None
    assert find_recipe(task(repo="nobody/nothing")) is None
    assert all(
        recipe.python and (recipe.commands or recipe.extensions) and recipe.test_command
        for entries in table.values()
        for _, recipe in entries
    )


def test_programs_of_an_instance_are_not_brought_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.yaml"
    table.write_text(
        "some/thing:\n"
        "- versions: ['1.0']\n"
        "  programs: {sh: dash}\n"
        "  instance_programs: {x-2: {tex-x: texlive-x fonts-x}}\n"
        "- programs: {sh: dash}\n"
    )
    monkeypatch.setenv("SWEGYM_SETUP_COMMANDS", str(table))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [find_recipe(task(instance_id=name, version=version)) for name, version in INSTANCES]
    assert [dict(recipe.programs) for recipe in found if recipe] == [
        {"sh": "dash"},
        {"sh": "dash", "tex-x": "texlive-x fonts-x"},
        {"sh": "dash"},
    ]
    assert [recipe.toolchain().problem for recipe in found if recipe] == [
        "",
        "no tex-x on this machine. Try: install fonts-x texlive-x",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- x", "expected repositories"),
        ("a/b: {}", "a/b: expected a list, got dict"),
        ("a/b: [3]", "a/b, entry 1: expected fields, got int"),
        ("a/b: [{comands: []}]", "a/b, entry 1: unknown field 'comands'; did you mean 'commands'"),
        ("a/b: [{python: 3.9}]", "a/b, entry 1, python: expected text in quotes, got 3.9"),
        ("a/b: [{versions: [3.0]}]", "a/b, entry 1, versions: expected text in quotes, got 3.0"),
        ("a/b: [{commands: make}]", "a/b, entry 1, commands: expected a list, got str"),
        ("a/b: [{env: {A: 1}}]", "a/b, entry 1, env: expected variables"),
        ("a/b: [{instance_programs: {tex: tex}}]", "a/b, entry 1, instance_programs, tex: expected names of programs"),
        ("a/b: [{instance_programs: [tex]}]", "a/b, entry 1, instance_programs: expected instances with programs"),
        ("a: [", "cannot be read"),
    ],
)
def test_errors_in_a_table_are_one_line_and_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_table(tmp_path / "t.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_package_index_settings_of_the_host_are_used(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "mirror" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nextra-index-url =\n    file://{index}\n    https://two\nretries = 1\n"
    )
    taken = package_index(
        {
            "HOME": str(tmp_path),
            "PIP_FIND_LINKS": f"{wheels} /nowhere/at/all",
            "PIP_RETRIES": "7",
            "PIP_TARGET": "/x",
            "https_proxy": "http://proxy:1",
            "AWS_SECRET_ACCESS_KEY": "s",
        }
    )
    assert taken.env["PIP_EXTRA_INDEX_URL"] == f"file://{index} https://two"
    assert taken.env["PIP_RETRIES"] == "7"  # a variable counts before a file
    assert taken.env["https_proxy"] == "http://proxy:1"
    assert not {"PIP_TARGET", "AWS_SECRET_ACCESS_KEY", "HOME"} & taken.env.keys()
    assert taken.binds.keys() >= {str(wheels), str(index.parent)}
    assert all(os.path.exists(path) for path in taken.binds)


@pytest.mark.parametrize(
    "place", [".pyenv/versions/3.4.9", ".local/share/uv/python/cpython-3.4.9-linux", "miniforge3/envs/old", "anaconda3"]
)
def test_interpreters_of_pyenv_uv_and_conda_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for variable in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "CONDA_PREFIX", "MAMBA_ROOT_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    executable = tmp_path / place / "bin/python3.4"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 3.4.9\necho {tmp_path / place}\necho {executable}\n")
    executable.chmod(0o755)
    find_interpreter.cache_clear()
    found = find_interpreter("3.4")
    find_interpreter.cache_clear()
    assert (found.version, found.prefix, found.executable) == ("3.4.9", tmp_path / place, executable)


def test_an_interpreter_of_the_machine_is_found_by_its_version() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = find_interpreter(version)
    assert found.version.startswith(f"{version}.")
    assert subprocess.run([found.executable, "-c", "import venv"], check=True).returncode == 0
    with pytest.raises(LayerError, match=r"no Python 3\.1 on this machine .*Try: uv python install 3\.1"):
        find_interpreter("3.1")


def program(directory: Path, name: str, *lines: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("\n".join(("#!/bin/bash", *lines)) + "\n")
    (directory / name).chmod(0o755)


def test_a_missing_interpreter_is_fetched_by_the_first_program_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SWEGYM_WORKDIR", str(tmp_path / "work"))
    programs = tmp_path / "programs"
    program(
        programs, "uv", f"echo uv >> {tmp_path}/asked", "echo 'error: No download found for Python 3.4' >&2", "exit 2"
    )
    made = tmp_path / "work/interpreters/conda-3.4"
    program(
        programs,
        "micromamba",
        f"echo micromamba $* >> {tmp_path}/asked",
        f"mkdir -p {made}/bin",
        f"printf '#!/bin/sh\\nprintf \"3.4.9\\\\n{made}\\\\n{made}/bin/python3.4\\\\n\"\\n' > {made}/bin/python3.4",
        f"chmod +x {made}/bin/python3.4",
    )
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    found = fetch_interpreter("3.4")
    assert (found.version, found.prefix) == ("3.4.9", made)
    assert (tmp_path / "asked").read_text() == (
        f"uv\nmicromamba create --yes --prefix {made} --channel conda-forge python=3.4 pip\n"
    )
    assert f"Python 3.4 is not on this machine: micromamba fetches it into {made.parent}" in caplog.messages
    assert fetch_interpreter("3.4") == found
    find_interpreter.cache_clear()
    program(programs, "micromamba", f"echo again >> {tmp_path}/asked", "echo no such package", "exit 1")
    for _ in range(2):  # what could not be had is not asked for again
        with pytest.raises(
            LayerError, match=r"^Python 3\.2 cannot be fetched: uv: error: No .*; micromamba: no such pa"
        ):
            fetch_interpreter("3.2")
    assert (tmp_path / "asked").read_text().count("again") == 1
    find_interpreter.cache_clear()


def test_another_version_stands_in_for_an_interpreter_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: LayerStore
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = PythonRecipe(python="3.1", instead=(own,), commands=("true",))
    assert recipe.toolchain() == Toolchain(f"Python {find_interpreter(own).version}")
    assert recipe.installation(task(), store).key[0] == find_interpreter(own).version
    without = PythonRecipe(python="3.1", commands=("true",))
    assert without.toolchain().name == "Python 3.1" and "no Python 3.1 on this machine" in without.toolchain().problem
    if not any(shutil.which(name) for name in ("uv", "micromamba", "conda", "pyenv")):
        with pytest.raises(LayerError, match=r"no Python 3\.1 on this machine .*cannot be fetched: none of uv"):
            without.installation(task(), store)


@pytest.mark.parametrize("folder", ["", "lib/"])
def test_the_extensions_of_a_release_are_put_beside_the_sources(
    store: LayerStore, tmp_path: Path, public_directory: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The wheel is as those of scikit-learn and matplotlib: extensions, the libraries they load, generated files."""
    wheels = Path(tempfile.mkdtemp(dir=public_directory))
    wheels.chmod(0o755)
    with zipfile.ZipFile(wheels / "thing-1.0-py3-none-any.whl", "w") as wheel:
        for name in ("thing/__init__.py", "thing/_speed.so", "thing/inner/_fast.so", "thing/_version.py"):
            wheel.writestr(name, f"# the release's {name}\n")
        wheel.writestr("thing.libs/libmath-1.so", "x")
        wheel.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        wheel.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("thing-1.0.dist-info/RECORD", "")
    table = tmp_path / "table.yaml"
    table.write_text("some/thing: [{build_tools: [], extensions: thing==1.0, test_command: pytest}]\n")
    monkeypatch.setenv("SWEGYM_SETUP_COMMANDS", str(table))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    clone = tmp_path / "some+thing"
    sources = clone / folder / "thing"
    (sources / "inner").mkdir(parents=True)
    (sources / "__init__.py").write_text("VALUE = 2\n")
    git = ["git", "-C", str(clone), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    space = prepare_locally(task(base_commit=head), repos=tmp_path, store=store)
    see = (
        f"cd /; git -C /testbed status -s; ls /testbed/{folder}thing{{,/inner}}; ls $LD_LIBRARY_PATH; "
        "python -c 'import thing; print(thing.VALUE)'; python -m pip list 2> /dev/null | grep thing"
    )
    lines = run(space.spec, see).split()
    assert lines[-3:] == ["2", "thing", "1.0"]
    assert {"_speed.so", "_version.py", "_fast.so", "libmath-1.so", f"{folder}thing/_speed.so"} <= set(lines)


def test_the_shipped_table_has_the_harnesses_interpreter_for_every_version() -> None:
    """The harness's own table (swebench 4.1, a dependency of the tests) is the reference."""
    package = importlib.util.find_spec("swebench")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "harness/constants/python.py"
    spec = importlib.util.spec_from_file_location("harness_constants", path)
    assert spec is not None and spec.loader is not None
    harness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    not_compiled = ("scikit-learn/scikit-learn", "matplotlib/matplotlib")  # only where a release's extensions fit
    missing, other = [], []
    for repo, versions in harness.MAP_REPO_VERSION_TO_SPECS_PY.items():
        if repo not in read_table(SHIPPED_TABLE):
            missing.append(repo)
            continue
        for version, facts in versions.items():
            recipe = find_recipe(task(repo=repo, version=version))
            if recipe is None:
                assert repo in not_compiled, (repo, version)
            elif recipe.python != facts["python"]:
                other.append((repo, version, recipe.python))
    assert missing == ["dbt-labs/dbt-core", "swe-bench/humaneval"]  # of no split that is graded
    assert other == []
