"""Tasks in Harbor's format, from the folder to the reward, in real sandboxes on a base of this machine's programs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import gymnasium
import pytest

from swegym_env.errors import (
    ConfigurationError,
    GradingError,
    ImageError,
    SandboxError,
    TaskFormatError,
    UnknownTaskError,
)
from swegym_env.harbor.bases import find_base, image_variables
from swegym_env.harbor.env import HarborEnv
from swegym_env.harbor.image import _PATH, build_image
from swegym_env.harbor.state import StateVerdict, grade_state, solve, start_task
from swegym_env.harbor.tasks import HarborTask, load_harbor_tasks
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.identity import SANDBOX_ID
from swegym_env.sandbox.images.store import settle
from swegym_env.sandbox.layers import LayerStore
from tests.env.harbor.conftest import NO_NETWORK, Make


def load(folder: Path) -> HarborTask:
    return load_harbor_tasks(folder)[0]


def graded(folder: Path, commands: str, *, protect: str = "system") -> StateVerdict:
    """The verdict after an agent's commands."""
    task = load(folder)
    sandbox = start_task(task)
    try:
        sandbox.run(commands)
        return grade_state(task, sandbox, protect=protect)  # type: ignore[arg-type]
    finally:
        sandbox.close()


def test_the_solution_earns_one_and_an_empty_answer_nothing(make_task: Make) -> None:
    task = load(make_task())
    sandbox = start_task(task)
    try:
        empty = grade_state(task, sandbox)
        assert solve(task, sandbox) == 0
        solved = grade_state(task, sandbox)
    finally:
        sandbox.close()
    assert (empty.reward, empty.resolved, solved.reward, solved.resolved) == (0.0, False, 1.0, True)


def test_an_episode_is_graded_on_the_state_that_the_agent_leaves(make_task: Make) -> None:
    env = gymnasium.make("Harbor-v0", dataset=str(make_task().parent), action_format="raw").unwrapped
    assert isinstance(env, HarborEnv)
    try:
        observation, info = env.reset(seed=0)
        assert "Write 42" in observation and "repository" not in info["system_prompt"]
        env.step("echo 42 > answer")
        _, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated, info["resolved"], info["rewards"]) == (1.0, True, True, {"reward": 1.0})
        env.reset(seed=0)
        assert env.step("submit")[1] == 0.0
    finally:
        env.close()


def test_a_fraction_of_several_rewards_is_the_reward(make_task: Make) -> None:
    verdict = graded(make_task(test="""echo '{"speed": 0.5, "size": 1}' > /logs/verifier/reward.json\n"""), "true")
    assert verdict.rewards == {"speed": 0.5, "size": 1.0} and verdict.reward == 0.75 and not verdict.resolved


DOCKERFILE = """\
# syntax=docker/dockerfile:1
ARG TAG=12
FROM debian:${TAG} AS only
ARG WHO=world
ENV GREETING="hello ${WHO}" OTHER=x\\
y
WORKDIR /app
WORKDIR sub
COPY --chown=app:app one.txt folder/ data/
COPY *.txt /srv/
RUN <<EOF
echo "$GREETING $WHO" > greeting
mkdir empty
EOF
RUN ["bash", "-c", "echo $OTHER > other"]
RUN rm /srv/two.txt \\
    # a comment between
    && echo $PWD > where
SHELL ["/bin/bash", "-c"]
RUN [[ -f greeting ]] && echo bash > shell
USER app
EXPOSE 80
CMD ["nothing"]
"""


def test_a_dockerfile_becomes_layers_as_docker_makes_them(make_task: Make) -> None:
    files = {f"environment/{name}": name for name in ("one.txt", "two.txt", "folder/inner", "kept.log")}
    files["environment/.dockerignore"] = "*.log\n"
    folder = make_task(dockerfile=DOCKERFILE, files=files)
    sandbox = start_task(load(folder))
    try:
        shown = sandbox.run(
            "pwd; cat greeting other where shell; ls -A . data /srv; echo $GREETING; [ -d empty ] && echo kept"
        )
    finally:
        sandbox.close()
    assert shown.output.split("\n") == [
        "/app/sub", "hello world world", "xy", "/app/sub", "bash", ".:", "data", "empty", "greeting", "other", "shell",
        "where", "", "/srv:", "one.txt", "", "data:", "inner", "one.txt", "hello world", "kept", "",
    ]  # fmt: skip


def test_layers_are_cached_by_what_they_are_made_of(make_task: Make) -> None:
    text = "FROM debian:12\nWORKDIR /app\nCOPY one.txt .\nRUN echo a > a\nRUN echo b > b\n"
    first = build_image(load(make_task("first", dockerfile=text, files={"environment/one.txt": "1"}))).layers
    same = build_image(load(make_task("same", dockerfile=text, files={"environment/one.txt": "1"}))).layers
    other = build_image(load(make_task("other", dockerfile=text, files={"environment/one.txt": "2"}))).layers
    assert same == first and other[0] == first[0] and not set(other[1:]) & set(first)


MMDEBSTRAP = """\
#!/bin/bash
echo "$@" >> {log}
cp -a {base} "${{@: -2:1}}" && mkdir -p "${{@: -2:1}}"/{{etc/apt/apt.conf.d,usr/local/bin}}
"""


def test_a_base_is_a_debian_of_the_suite_that_the_name_stands_for(
    tmp_path: Path, store: LayerStore, bases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mmdebstrap"  # in its place: it needs a mirror of Debian
    program.write_text(MMDEBSTRAP.format(log=tmp_path / "log", base=bases / "debian:12"))
    program.chmod(0o755)
    monkeypatch.delenv("SWEGYM_BASE_IMAGES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    names = ("debian:12-slim", "ubuntu:24.04", "python:3.11-slim", "docker.io/library/debian:bullseye")
    roots = [find_base(name, store, "Dockerfile:1") for name in names]
    suites = [line.split()[-3] for line in (tmp_path / "log").read_text().splitlines()]
    assert suites == ["bookworm", "trixie", "bookworm", "bullseye"]
    assert all((root / "root").is_dir() and (root / "bin/bash").exists() for root in roots)
    assert (roots[2] / "usr/local/bin/python").readlink() == Path("/usr/bin/python3")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_base_that_belongs_to_nobody_in_a_sandbox_is_refused(
    tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/bash", "dev/null", "proc/none", "etc/passwd"):
        (tmp_path / "mine:1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine:1" / name).touch()
    monkeypatch.setenv("SWEGYM_BASE_IMAGES", str(tmp_path))
    with pytest.raises(ImageError, match=rf"mine:1 belongs to user 0, .* Try: chown -RhP {SANDBOX_ID}:{SANDBOX_ID} "):
        find_base("mine:1", store, "Dockerfile:1")
    settle(tmp_path / "mine:1")
    assert find_base("mine:1", store, "Dockerfile:1") == tmp_path / "mine:1"
    os.chown(tmp_path / "mine:1/etc", 0, 0)
    with pytest.raises(ImageError, match=r"mine:1/etc belongs to user 0"):
        find_base("mine:1", store, "Dockerfile:1")


def test_a_base_can_be_a_dockerfile_too_and_variables_of_its_image_are_known(
    make_task: Make, bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases/debian:12").symlink_to(bases / "debian:12")
    (tmp_path / "bases/debian_12.Dockerfile").write_text("FROM debian:12\nRUN echo ours > /base\nENV PATH=/own:$PATH\n")
    (tmp_path / "bases/ghcr.io_acme_tools_1.Dockerfile").write_text(
        "ARG N=12\nFROM debian:$N\nRUN echo tools > /tools\n"
    )
    folder = make_task(dockerfile="FROM ghcr.io/acme/tools:1\nRUN cat /base /tools > /all\n")
    monkeypatch.setenv("SWEGYM_BASE_IMAGES", str(tmp_path / "bases"))
    sandbox = start_task(load(folder))
    try:
        assert sandbox.run("cat /all; echo $PATH").output == f"ours\ntools\n/own:{_PATH}\n"
    finally:
        sandbox.close()


STAGES = """\
ARG ANSWER=42
FROM debian:12 AS first
ARG ANSWER
ARG OTHER=7
WORKDIR /made/here
RUN mkdir bin && echo $ANSWER > answer && echo $OTHER > bin/other && ln -s bin/other link && echo '*' > 'a b'
FROM flat:1 AS second
RUN echo ".$ANSWER$OTHER." > /none
FROM first
COPY --from=second /none /copied/
COPY --from=0 /made/here/answer /made/here/link /copied/
COPY --from=first /made/here /copied/all
COPY --from=flat:1 --chmod=755 /bin/ech? /copied/say
RUN rm -r /made
WORKDIR /
"""


def test_stages_and_other_images_are_copied_from(make_task: Make) -> None:
    sandbox = start_task(load(make_task(dockerfile=STAGES)))
    try:
        shown = sandbox.run(
            "cd /copied; cat none answer link all/answer all/link all/'a b'; ls -A all; /copied/say x; pwd"
        )
    finally:
        sandbox.close()
    assert shown.output.split("\n") == [
        "..", "42", "7", "42", "7", "*", "a b", "answer", "bin", "link", "x", "/copied", "",
    ]  # fmt: skip


def test_variables_of_a_pulled_image_are_those_of_its_env_lines(tmp_path: Path) -> None:
    file = tmp_path / ".singularity.d/env/10-docker2singularity.sh"
    file.parent.mkdir(parents=True)
    lines = ['export PATH="/go/bin:/bin"', 'export SAID="${SAID:-"a \\"b\\" \\$c"}"', 'export EMPTY="${EMPTY:-""}"']
    file.write_text("#!/bin/sh\n" + "\n".join(lines))
    assert image_variables(tmp_path) == {"PATH": "/go/bin:/bin", "SAID": 'a "b" $c', "EMPTY": ""}


COMPOSE = """\
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: [sh, -c, sleep infinity]
    working_dir: /srv
    environment: ["WHO=${HOST_NAME:-world}", "NONE=${NOT_SET}"]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
    deploy: {resources: {limits: {cpus: '2', memory: 1G}}}
"""


def test_a_compose_file_of_one_container_is_read(make_task: Make) -> None:
    composed = {"environment/docker-compose.yaml": COMPOSE}
    test = 'echo "{\\"$WHO $NONE $PWD\\": 1}" > /logs/verifier/reward.json\n'
    task = load(make_task(test=test, files=composed))
    assert (task.cpus, task.memory_bytes) == (2.0, 1 << 30)
    assert graded(task.folder, "true").rewards == {"world  /srv": 1.0}
    own = NO_NETWORK + "\ncpus = 1\nworkdir = '/app'\n[environment.env]\nWHO = 'me'\n"
    task = load(make_task("own", toml=own, files=composed))
    assert (task.cpus, task.workdir, task.env["WHO"]) == (1.0, "/app", "me")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("  main:", "  other: {image: postgres}\n  main:", "expected one service that waits"),
        ("    working_dir: /srv", "    ports: ['80:80']", "main: needs ports"),
        ("sleep infinity", "redis-server", "needs command"),
        ("${HOST_VERIFIER_LOGS_PATH}:", "/etc:", "needs /etc:"),
        ('"${CONTEXT_DIR}"', "../other", "needs build"),
        ("services:", "services: [", "expected one service that waits"),
    ],
)
def test_a_compose_file_with_more_is_refused(make_task: Make, old: str, new: str, reason: str) -> None:
    folder = make_task(files={"environment/docker-compose.yaml": COMPOSE.replace(old, new)})
    with pytest.raises(TaskFormatError, match=reason):
        load(folder)


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM 127.0.0.1:9/node:20\n", "Dockerfile:1: FROM 127.0.0.1:9/node:20: not made of Debian's packages here"),
        ("FROM debian:12\nRUN echo before; echo why; exit 3\n", "Dockerfile:2: exited with 3: why"),
        ("FROM debian:12\nCOPY missing .\n", "Dockerfile:2: missing: no such file in environment/"),
        ("FROM debian:12\nCOPY ../tests .\n", "outside of the context"),
        ("FROM debian:12\nCOPY --from=debian:12 /a /b\n", "--from=debian:12: cp: cannot stat 'a'"),
        ("FROM debian:12 AS\n", "FROM: expected IMAGE or IMAGE AS NAME"),
        ("FROM debian:12\nONBUILD RUN ls\n", "ONBUILD: there is no such instruction"),
        ("RUN ls\n", "RUN: expected FROM first"),
    ],
)
def test_what_cannot_be_built_is_one_clear_line(
    make_task: Make, monkeypatch: pytest.MonkeyPatch, dockerfile: str, reason: str
) -> None:
    monkeypatch.setenv("SWEGYM_PULL_RETRIES", "0")
    with pytest.raises(ImageError) as error:
        build_image(load(make_task(dockerfile=dockerfile)))
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("[[steps]]\nname = 'a'", "needs several steps"),
        ("[environment]\ngpus = 1", "needs GPUs"),
        ("[environment]\nnetwork_mode = 'allowlist'", "a list of allowed hosts"),
        ("[verifier]\nenvironment_mode = 'separate'", "a container of the verifier's own"),
        ("[environment]\ncpus = 'two'", "cpus: expected a positive number, got 'two'"),
        ("[environment", "task.toml"),
    ],
)
def test_what_no_sandbox_has_is_refused(make_task: Make, toml: str, reason: str) -> None:
    with pytest.raises(TaskFormatError, match=reason):
        load(make_task(toml=toml))


def test_a_task_that_cannot_be_played_is_named_and_those_beside_it_are_loaded(make_task: Make) -> None:
    folder = make_task("sound").parent
    make_task("gpu", toml="[environment]\ngpus = 1")
    with pytest.warns(UserWarning, match=r"skipped 1 of 2 tasks, the first: .*gpu.*needs GPUs"):
        tasks = load_harbor_tasks(folder)
    assert [task.folder.name for task in tasks] == ["sound"] and len(tasks.skipped) == 1


def test_values_of_task_toml_are_used(make_task: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_HOST", "here")
    toml = (
        "[environment]\nallow_internet = false\nmemory = '1G'\nworkdir = '/srv'\n"
        "[environment.env]\nA = '${OF_THE_HOST}'\n"
        "B = '${NOT_THERE:-other}'\n[verifier]\ntimeout_sec = 7\n[verifier.env]\nC = 'c'\n"
    )
    test = 'echo "{\\"$A $B $C $PWD\\": 1}" > /logs/verifier/reward.json\n'
    task = load(make_task(toml=toml, test=test))
    assert (task.network, task.memory_bytes, task.verifier_timeout_s) == (False, 1 << 30, 7.0)
    assert graded(task.folder, "true").rewards == {"here other c /srv": 1.0}
    with pytest.raises(ConfigurationError, match="the variable NOT_SET is not set"):
        load(make_task("unset", toml="[environment.env]\nA = '${NOT_SET}'"))
    (task.folder / "tests/task.yaml").write_text("instruction: x\n")
    with pytest.raises(UnknownTaskError, match=r"Terminal-Bench 1.* Try: harbor tasks migrate"):
        load_harbor_tasks(task.folder / "tests")
    (task.folder / "tests/task.yaml").unlink()
    with pytest.raises(UnknownTaskError, match="no Harbor task"):
        load_harbor_tasks(task.folder / "tests")


ATTACKS = {
    "a reward written ahead": "mkdir -p /logs/verifier; cd /logs/verifier; echo 1 > reward.json; echo 1 > reward.txt",
    "tests written ahead": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "a link in the place of the tests": "ln -s /app /tests; ln -s /app /logs",
    "a process that goes on": "cd /logs; mkdir verifier; (while :; do echo 1 > verifier/reward.txt; done) & sleep 0.2",
    "a shell function": "grep() { true; }; export -f grep",
    "variables of the shell": "echo 'grep() { true; }' > /app/x; export BASH_ENV=/app/x ENV=/app/x",
    "a replaced program": "cp /bin/true /bin/new; mv /bin/new /bin/grep",
    "a program that hides another": "mkdir -p /usr/local/bin; cp /bin/true /usr/local/bin/grep",
    "a file that every program loads": "echo /app/x.so > /etc/ld.so.preload",
    "a file that a shell loads": "echo 'grep() { true; }' > /root/.bashrc; cp /root/.bashrc /etc/bash.bashrc",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_forgery_from_outside_of_the_tests_pays(make_task: Make, attack: str) -> None:
    verdict = graded(make_task(), ATTACKS[attack])
    assert verdict.valid and verdict.rewards == {"reward": 0.0}, verdict


@pytest.mark.parametrize("attack", ["a replaced program", "a program that hides another"])
def test_no_forgery_pays_where_the_image_has_an_unusual_layout(make_task: Make, attack: str) -> None:
    verdict = graded(make_task(dockerfile="FROM flat:1\nWORKDIR /app\n"), ATTACKS[attack])
    assert verdict.valid and verdict.rewards == {"reward": 0.0}, verdict


def test_without_protection_a_replaced_program_pays_as_it_does_in_harbor(make_task: Make) -> None:
    folder, attack = make_task(), ATTACKS["a replaced program"]
    assert graded(folder, attack, protect="none").reward == 1.0
    assert graded(folder, attack).set_aside == ("usr/bin/grep",)


@pytest.mark.parametrize("network", [False, True])
def test_network_is_on_only_if_the_caller_asks_for_it_and_the_task_allows_it(make_task: Make, network: bool) -> None:
    silent, refusing = make_task("silent", toml=""), make_task("refusing", toml=NO_NETWORK)
    assert [load_harbor_tasks(folder, network=network)[0].network for folder in (silent, refusing)] == [network, False]
    env = HarborEnv(str(silent), network=network, action_format="raw")
    try:
        env.reset(seed=0)
        seen = interfaces(env.step("cat /proc/net/dev")[0])
    finally:
        env.close()
    assert seen == (interfaces(Path("/proc/net/dev").read_text()) if network else {"lo"})


def interfaces(text: str) -> set[str]:
    """The names in `/proc/net/dev`."""
    return {line.partition(":")[0].strip() for line in text.splitlines() if ":" in line}


def test_what_the_agent_breaks_is_a_failure_and_what_the_machine_breaks_is_none(make_task: Make) -> None:
    broken = graded(make_task(), "rm /bin/bash", protect="none")
    assert broken.valid and not broken.resolved and "no sandbox starts on the final state" in broken.failure_reason
    with pytest.raises(GradingError, match="writes no reward on the untouched image either"):
        graded(make_task("silent", test="exit 1\n"), "true")
    given = make_task(
        "removed",
        test="cat /app/given > /logs/verifier/reward.txt\n",
        dockerfile="FROM debian:12\nWORKDIR /app\nRUN echo 1 > given\n",
    )
    silenced = graded(given, "rm /app/given")
    assert silenced.valid and silenced.reward == 0.0 and "not a reward" in silenced.failure_reason
    slow = make_task(
        "slow",
        test="[ -f /app/slow ] && sleep 60\necho 0 > /logs/verifier/reward.txt\n",
        toml="[verifier]\ntimeout_sec = 1\n[environment]\nnetwork_mode = 'no-network'",
    )
    verdict = graded(slow, "touch /app/slow")
    assert verdict.valid and "did not end within 1 s" in verdict.failure_reason


def test_the_state_is_graded_with_shared_layers_too_and_goes_on_unharmed(make_task: Make) -> None:
    task = load(make_task())
    started = start_task(task)
    try:
        started.run("for i in {1..300}; do echo > /app/$i; done; cp /bin/echo /app/e; mv /app/e /bin/grep; X=7")
        started.snapshot()  # a layer with many files is shared from here on
        started.run("echo 42 > answer")
        verdict = grade_state(task, started)
        assert verdict.reward == 1.0 and verdict.set_aside == ("usr/bin/grep",)
        assert started.run("echo $X; grep a").output == "7\na\n"
    finally:
        started.close()


def test_a_dead_supervisor_gives_no_reward(make_task: Make) -> None:
    env = HarborEnv(str(make_task()), action_format="raw", pool=0)
    try:
        env.reset(seed=0)
        os.kill(supervisor().pid, signal.SIGKILL)
        _, reward, terminated, truncated, info = env.step("submit")
        assert (reward, terminated, truncated, info["valid"]) == (0.0, False, True, False)
        assert info["failure_reason"].startswith(SandboxError.__name__)
    finally:
        env.close()
