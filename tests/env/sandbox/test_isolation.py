"""What cannot be reached from inside a sandbox."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError
from swegym_env.sandbox import Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.identity import sandbox_user
from tests.env.sandbox.conftest import Opener


def test_the_user_inside_is_unprivileged(shared_sandbox: Sandbox) -> None:
    uid, gid = sandbox_user()
    assert uid != 0
    assert shared_sandbox.run("id -u; id -g; id -un; grep CapEff /proc/self/status").output == (
        f"{uid}\n{gid}\nagent\nCapEff:\t0000000000000000\n"
    )


@pytest.mark.parametrize(
    "path", ["/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/power/state"]
)
def test_the_kernel_cannot_be_written(shared_sandbox: Sandbox, path: str) -> None:
    assert shared_sandbox.run(f"echo 1 > {path}").exit_code != 0


@pytest.mark.parametrize(
    "command", ["unshare -Ur true", "mount -t tmpfs none /tmp", "mknod /tmp/n b 254 0", "su -c true", "chroot / true"]
)
def test_privileges_cannot_be_gained(shared_sandbox: Sandbox, command: str) -> None:
    assert shared_sandbox.run(command).exit_code != 0


def test_host_files_are_not_visible(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    os.chmod(tmp_path, 0o755)
    assert sandbox.run(f"cat {secret} /proc/1/root{secret}").exit_code != 0
    assert sandbox.run("ls -A /root /mnt /srv; cat /etc/shadow").output.count("hunter2") == 0
    assert set(sandbox.run("ls -A /home").output.split()) == {"agent"}
    assert sandbox.run("ls -A /tmp").output == ""
    assert sandbox.run("touch /usr/x").exit_code != 0


def test_the_only_network_is_loopback(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        assert sandbox.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}").exit_code != 0
        with pytest.raises(TimeoutError):
            listener.accept()
    interfaces = sandbox.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").output
    assert interfaces == "lo\n"
    served = "python3 -m http.server 8000 --bind 127.0.0.1 -d /tmp >/dev/null 2>&1 & "
    asked = "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done; echo up"
    assert sandbox.run(served + asked, timeout_s=30).output.endswith("up\n")


NOWHERE = """
import errno, socket
def attempt(address, kind):
    with socket.socket(socket.AF_INET, kind) as client:
        client.settimeout(0.3)
        try:
            client.connect(address)
            client.send(b"x")
            return client.recv(1)
        except TimeoutError:
            return "timed out"
        except OSError as error:
            return errno.errorcode[error.errno]
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    print(attempt(("10.255.255.1", 80), kind), attempt(("8.8.8.8", 53), kind), attempt(("127.0.0.1", 9), kind))
"""


def test_an_address_that_nobody_answers_times_out_and_a_name_fails_at_once(shared_sandbox: Sandbox) -> None:
    """As on the internet: the tests of HTTP clients connect to a private address and expect their own time-out."""
    result = shared_sandbox.run(f"python3 - <<'END'\n{NOWHERE}END\ntail -n +3 /proc/net/dev | wc -l")
    assert result.output == "timed out ENETUNREACH ECONNREFUSED\n" * 2 + "1\n"


def test_a_connection_to_nowhere_is_given_up_within_seconds(shared_sandbox: Sandbox) -> None:
    """The kernel's own time-out of two minutes would hold back a test that sets none."""
    assert shared_sandbox.run("cat /proc/sys/net/ipv4/tcp_syn_retries").output == "3\n"


def test_network_true_shares_the_network_of_the_host(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(network=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert sandbox.run(f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]}").exit_code == 0


def test_other_processes_cannot_be_seen_or_signalled(shared_sandbox: Sandbox) -> None:
    seen = shared_sandbox.run("ls -d /proc/[0-9]* | wc -l").output
    assert int(seen) < 10
    assert shared_sandbox.run(f"kill -0 {os.getpid()}").exit_code != 0


def test_a_bind_source_may_be_closed_to_the_sandbox_user(opened: Opener, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "tools").mkdir(parents=True)
    (closed / "tools" / "hello").write_text("#!/bin/sh\necho hello\n")
    (closed / "tools" / "hello").chmod(0o755)
    (closed / "note").write_text("a file\n")
    (closed / "tools").chmod(0o777)
    (closed / "note").chmod(0o666)
    closed.chmod(0o700)
    sandbox = opened(SandboxSpec(binds={str(closed / "tools"): "/opt/tools", str(closed / "note"): "/opt/note"}))
    assert sandbox.run("/opt/tools/hello; cat /opt/note").output == "hello\na file\n"
    assert sandbox.run("touch /opt/tools/x || echo x > /opt/note").exit_code != 0


def test_a_fork_bomb_stays_inside_its_limit(opened: Opener) -> None:
    from swegym_env.sandbox import Limits

    sandbox = opened(SandboxSpec(limits=Limits(processes=60)))
    result = sandbox.run("f() { f | f & }; f; sleep 5", timeout_s=1)
    assert result.exit_code != 0
    assert sandbox.run("echo alive").output.endswith("alive\n")
    assert int(sandbox.run("ls -d /proc/[0-9]* | wc -l").output.split()[-1]) < 10


def test_memory_and_file_size_are_limited(opened: Opener) -> None:
    from swegym_env.sandbox import Limits

    sandbox = opened(SandboxSpec(limits=Limits(memory_bytes=256 << 20, file_size_bytes=1 << 20)))
    assert "MemoryError" in sandbox.run("python3 -c 'bytearray(1 << 29)'").output
    sandbox.run("head -c 2000000 /dev/zero > /tmp/big")
    assert sandbox.run("stat -c %s /tmp/big").output == f"{1 << 20}\n"


IN_THE_WAY = "mkdir -p /.singularity.d/env; echo 'ulimit() { :; }' >/.singularity.d/env/10-docker2singularity.sh; exit"


def test_limits_hold_in_a_shell_whose_start_the_agent_has_changed(opened: Opener) -> None:
    from swegym_env.sandbox import Limits

    sandbox = opened(SandboxSpec(limits=Limits(processes=60, file_size_bytes=1 << 20)))
    sandbox.run(IN_THE_WAY)
    assert sandbox.run("type ulimit | head -1").output == "ulimit is a function\n"
    sandbox.run("builtin ulimit -f unlimited -u 200 -c unlimited; truncate -s 2M /tmp/big")
    assert sandbox.run("stat -c %s /tmp/big").output == "0\n"
    assert sandbox.run("builtin ulimit -H -u; builtin ulimit -H -c").output == "60\n0\n"


def test_a_command_has_no_terminal_and_may_open_one(sandbox: Sandbox) -> None:
    assert sandbox.run("tty; [ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none").output == "not a tty\nnone\n"
    sandbox.run(
        "cat > t.py <<'END'\nimport os, pty\nour, theirs = pty.openpty()\nos.write(theirs, b'through\\n')\n"
        "print(os.ttyname(theirs).startswith('/dev/pts/'), os.read(our, 99))\nEND"
    )
    assert sandbox.run("python3 t.py").output == "True b'through\\r\\n'\n"
    assert sandbox.run("script -qec 'tty; stty size' /dev/null | head -1").output.startswith("/dev/pts/")
    debugged = "def f(x):\n    y = x * 7\n    return y\nf(6)\n"
    sandbox.write("d.py", debugged.encode())
    spawn = 'import pty; pty.spawn(["python3", "-m", "pdb", "d.py"])'
    assert "42" in sandbox.run(f"printf 'b 3\\nc\\np y\\nq\\n' | python3 -c '{spawn}'", timeout_s=20).output


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_bind_that_nobody_inside_could_read_is_refused_before_the_start_in_one_line(
    backend: str, public_path: Path, kind: str
) -> None:
    source = public_path / "bound"
    if kind == "file":
        source.write_text("text\n")
    else:
        source.mkdir()
        (source / "file").write_text("text\n")
    if os.geteuid() == 0:
        os.chown(source, 12345, 12345)
    spec = SandboxSpec(binds={str(source): "/opt/bound"})
    for mode in (0o600, 0o640, 0o000) if os.geteuid() == 0 else (0o000,):
        source.chmod(mode | (0o110 if kind == "directory" and mode else 0))
        with pytest.raises(
            ConfigurationError, match=f"binds: {source}: no program in the sandbox could read it"
        ) as error:
            open_sandbox(spec, backend=backend).start()
        assert "\n" not in str(error.value)
    source.chmod(0o604 if kind == "file" else 0o705)
    sandbox = open_sandbox(spec, backend=backend)
    sandbox.start()
    assert sandbox.run("cat /opt/bound /opt/bound/file 2>/dev/null").output == "text\n"
    sandbox.close()
    with pytest.raises(ConfigurationError, match="binds: /not/there: No such file"):
        open_sandbox(SandboxSpec(binds={"/not/there": "/opt/x"}), backend=backend).start()
