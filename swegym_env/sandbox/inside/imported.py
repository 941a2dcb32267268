"""A Python program whose modules are imported once: runs in sandboxes, see `sandbox.imported` for the owner's side.

    python imported.py serve PROGRAM [MODULE…] [-- FILE…]
        imports, then forks a child for each sandbox; control is descriptor 3. If one of the files exists in a sandbox,
        the program is started normally there
    python imported.py serve -m NAME [MODULE…]     the same for the program of a module, `python -m NAME`
    python -I -S imported.py join PROGRAM ARG…     started instead of the program, in its sandbox

The shell of a sandbox starts `join` instead of the program. It sends the state that the program would find (arguments,
variables, descriptors, directory, limits) to the child that enters the sandbox, and then waits for the child's end. If
no child arrives, or the child finds that a normal start would differ, `join` executes the program itself.

For the program of a module, the owner knows the arguments, and its shell has the variables of this process, so no
`join` is needed. The child takes the shell's output and limits, and the shell reads the exit code from a named pipe.

The server has no access to any sandbox except through the descriptors of its namespaces. Only the owner sends these,
and only for a fork. The server never reads anything that comes from a sandbox. Its child does, after it has become a
process of that sandbox in every respect.
"""

import sys

_FIRST = set(sys.modules)  # modules that every start of this Python loads

import _signal  # type: ignore[import-not-found]  # noqa: E402
import _socket  # noqa: E402
import marshal  # noqa: E402
import os  # noqa: E402

TYPE_CHECKING = False  # `typing` is not imported: a program may not have it
if TYPE_CHECKING:
    from typing import Any

_MEETING = b"\0swegym-imported"  # in the abstract namespace of the sandbox's network
ENDED = "/.swegym/ended"  # the named pipe in which a shell reads how a module's program ended
_LOOK_MS = 1
_FEW_BYTES = 1 << 16
_JOIN_S, _MEET_S = 20.0, 20.0
_LENGTH_BYTES = 8
_MOST_DESCRIPTORS = 16  # of the program at its start
_HIGH = 48  # this descriptor and higher ones are free
_MOST_BYTES = 8 << 20  # of arguments and variables
_RLIMITS, _NOFILE = 16, 7  # number of limits, and index of the one on descriptors
_NOT_COMPARED = (b"_", b"SHLVL", b"OLDPWD")  # variables that a shell sets anew for each program
_COMPARED = (b"PYTHON", b"LC_", b"LANG", b"LD_", b"TZ", b"MALLOC_", b"GLIBC_")  # read before any import
_NAMESPACES = {"user": 0x10000000, "pid": 0x20000000, "time": 0x80, "cgroup": 0x02000000, "ipc": 0x08000000,
               "uts": 0x04000000, "net": 0x40000000, "mnt": 0x00020000}  # fmt: skip
_PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 4, 15, 35, 14
_SECCOMP = 317 if os.uname().machine in ("x86_64", "AMD64") else 277
_kept: "list[Any]" = [sys.modules["__main__"]]


def _join(command: "list[str]") -> None:
    """Let a child of the server become the program `command`; returns if it has to be started normally."""
    meeting = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        meeting.bind(_MEETING)
        meeting.listen(1)
        meeting.settimeout(_JOIN_S)
        descriptor, _ = meeting._accept()  # type: ignore[attr-defined]
    except OSError:  # no child arrives
        return
    finally:
        meeting.close()
    own = _socket.socket(fileno=descriptor)
    own.settimeout(None)
    started_as = getattr(sys, "orig_argv", [sys.executable])[0]
    if command[0] == started_as == "python3":
        command = command[1:]
    given = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number) and number != descriptor]
    given = sorted(given)[:_MOST_DESCRIPTORS]
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    variables = dict(os.environb)
    if b"_" in variables:  # set by the shell for the program that it starts
        variables[b"_"] = os.fsencode(command[0])
    state = marshal.dumps(
        {
            "command": [os.fsencode(word) for word in command],
            "executable": os.fsencode(sys.executable),
            "started_as": os.fsencode(started_as),
            "variables": variables,
            "descriptors": given,
            "limits": _limits(),
            "umask": _umask(),
            "ignored": _ignored(),
        }
    )
    try:
        rights = b"".join(number.to_bytes(4, sys.byteorder) for number in [here, *given])
        length = len(state).to_bytes(_LENGTH_BYTES, "little")
        own.sendmsg([length], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        own.sendall(state)
        message, ancillary, _, _ = own.recvmsg(64, _socket.CMSG_SPACE(4))
    except OSError:
        return
    finally:
        os.close(here)
    own.close()
    if not message.startswith(b"started"):
        return
    # Forward signals to the program, which would have received them.
    program = int(message.split()[1])
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT):
        _signal.signal(number, lambda received, _: os.kill(program, received))
    status = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
    for number in given:
        os.close(number)
    ended = int(os.read(status, 64) or b"-9")  # interrupted calls are repeated
    if ended < 0:
        if -ended not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(-ended, _signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)


def _start_as_usual(command: "list[str]") -> None:
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them
        _signal.signal(number, _signal.SIG_DFL)
    if "_" in os.environ:
        os.environ["_"] = command[0]
    os.execvp(command[0], command)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _limits() -> "list[tuple[int, int]]":
    import resource

    return [resource.getrlimit(number) for number in range(_RLIMITS)]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _ignored() -> int:
    """Signals that are ignored, as a mask; Python itself ignores SIGPIPE (13) and SIGXFSZ (25) in any program."""
    with open("/proc/self/status", "rb") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith(b"SigIgn:"))
    return mask & ~(1 << 12 | 1 << 24)


class _Watched(dict):  # type: ignore[type-arg]
    """The environment variables while modules are imported; it records which of them were read."""

    def __init__(self, variables: "Any") -> None:
        dict.__init__(self, variables)
        self.read: "set[Any]" = set()
        self.all_read = False

    def __getitem__(self, key: "Any") -> "Any":
        self.read.add(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key: "Any") -> bool:
        self.read.add(key)
        return dict.__contains__(self, key)

    def get(self, key: "Any", default: "Any" = None) -> "Any":
        self.read.add(key)
        return dict.get(self, key, default)

    def pop(self, key: "Any", *default: "Any") -> "Any":
        self.read.add(key)
        return dict.pop(self, key, *default)

    def setdefault(self, key: "Any", default: "Any" = None) -> "Any":
        self.read.add(key)
        return dict.setdefault(self, key, default)

    def _everything(self) -> None:
        self.all_read = True

    def __iter__(self) -> "Any":
        self._everything()
        return dict.__iter__(self)

    def keys(self) -> "Any":
        self._everything()
        return dict.keys(self)

    def items(self) -> "Any":
        self._everything()
        return dict.items(self)

    def values(self) -> "Any":
        self._everything()
        return dict.values(self)

    def copy(self) -> "Any":
        self._everything()
        return dict.copy(self)

    def __len__(self) -> int:
        self._everything()
        return dict.__len__(self)


class _Server:
    """The process that has imported the modules, and its state before that."""

    def __init__(self, program: str, modules: "list[str]", unless: "list[str]") -> None:
        self.runs_module = program == "-m"
        if self.runs_module:
            program, modules = modules[0], ["runpy", *modules]
        self.program, self.unless = program, unless
        self.before = dict(os.environb)
        self.reason = ""
        self.missing_places = _missing_places() if self.runs_module else []
        modules = modules or _imports_of(program)
        main = _new_main("" if self.runs_module else program)
        for name in set(sys.modules) - _FIRST:  # imported again by the program if it needs them, as its own
            del sys.modules[name]
        watched = os.environ._data = os.environb._data = _Watched(os.environ._data)  # type: ignore[attr-defined]
        sys.argv[:] = [program]
        if self.runs_module:
            del sys.path[0]  # replaced later by the directory in which the program is started
        else:
            sys.path[0] = os.path.dirname(program)
        sys.modules["__main__"] = main
        descriptors = _descriptors()
        self.kinds = [os.fstat(number).st_mode >> 12 for number in range(3)]
        self.executable = os.readlink("/proc/self/exe")
        found = os.stat("/proc/self/exe")
        self.executable_version = found.st_size, found.st_mtime_ns
        for name in modules:
            __import__(name)
        self.imported = set(sys.modules)
        self.read, self.all_read = set(watched.read), watched.all_read
        plain = dict(dict.items(watched))
        os.environ._data = os.environb._data = plain  # type: ignore[attr-defined]
        self.written = {name: value for name, value in plain.items() if self.before.get(name) != value}
        self.removed = [name for name in self.before if name not in plain]
        if len(os.listdir("/proc/self/task")) > 1:
            self.reason = "an import starts a thread"
        elif _descriptors() != descriptors:
            self.reason = "an import keeps a file open"
        elif _shares_memory():
            self.reason = "an import shares memory with its children"
        elif self.before.get(b"PYTHONHASHSEED", b"random") == b"random":
            self.reason = "PYTHONHASHSEED is random: each start has another"
        elif self.runs_module and sys.version_info < (3, 8):  # older versions look for modules in ""
            self.reason = "Python is older than 3.8"
        elif self.runs_module and (b"PYTHONPATH" in self.before or getattr(sys.flags, "safe_path", False)):
            self.reason = "modules are not looked for in the usual places"
        elif not self.runs_module and os.path.realpath(self.program) != self.program:
            self.reason = "the program is a link"
        elif any(not os.path.isabs(place) for place in sys.path):
            self.reason = "modules are looked for in the directory that the program is started in"

    def serve(self, control: int) -> None:
        """Fork for each request; returns only in a child that has become the program of a sandbox."""
        import array
        import gc

        own = _socket.socket(fileno=control)
        own.send(b"ready " + self.reason.encode())
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # imported objects are permanent: no collection copies their memory pages in a child
        system = _System()
        # The kernel discards ended children. A handler would be called for each, and Python counts calls, so the memory
        # of a child would tell how many children there were before it.
        as_imported = _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN) or _signal.SIG_DFL
        while True:
            message, ancillary, _, _ = own.recvmsg(_FEW_BYTES, _socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS))
            if not message:
                os._exit(0)
            descriptors = array.array("i")
            for _, _, data in ancillary:
                descriptors.frombytes(data)
            try:
                child = os.fork()
            except OSError:  # the machine has no process left, but running episodes need this one
                child = -1
            if child == 0:
                _signal.signal(_signal.SIGCHLD, as_imported)
                own.close()
                self._become(marshal.loads(message), list(descriptors), system)
                return
            for descriptor in descriptors:
                os.close(descriptor)

    def _become(self, request: "dict[str, Any]", descriptors: "list[int]", system: "_System") -> None:
        """Enter a sandbox and become the program there; the parent of that process stays and waits for it."""
        report = _socket.socket(fileno=descriptors.pop())
        output = descriptors.pop() if self.runs_module else -1
        try:
            threads = descriptors[len(descriptors) - request["groups"] :]
            report.send(b"here" if _enter_groups(threads) else b"outside")  # the kernel adds the sender's id
            if report.recv(16) != b"go":
                os._exit(1)
            if self.runs_module:  # only this process receives it: other children have a copy of the server's memory
                request["module"] = marshal.loads(report.recv(_FEW_BYTES))
            spaces = dict(zip(request["namespaces"], descriptors))
            handed: "Any" = None
            hands: "Any" = None
            if self.runs_module:
                handed, hands = _socket.socketpair()
            status, ended = os.pipe()
            for name in ("user", "pid"):
                space = spaces.pop(name)
                system.enter(space, _NAMESPACES[name])
                os.close(space)
            program = os.fork()
            if program:
                if handed is not None and hands is not None:
                    hands.close()
                    _tell_shell(program, _receive_pipe(handed), report, system)
                _wait(program, ended)
            os.close(ended)
            os.setsid()  # out of the server's process group, to which a signal can be sent
            for name, space in spaces.items():
                system.enter(space, _NAMESPACES[name])
                os.close(space)
            problem = self._enter_executable(system)
            # The programs of the sandbox may trace this process once it has their user and is as dumpable as they are.
            # At that point it contains nothing that they may not have, and all limits hold.
            for number in range(3):
                os.dup2(status, number, False)
            system.limit_processes(request["processes"])
            os.setresgid(*[request["gid"]] * 3)
            os.setresuid(*[request["uid"]] * 3)
            system.drop_capabilities()
            system.install_filter(request["filter"])
            system.allow_tracing()
        except BaseException as error:  # noqa: BLE001 - reported; nothing of the server may go on here
            report.send(b"failed " + repr(error).encode()[:400])
            os._exit(1)
        if self.runs_module:
            self._run_module(report, hands, output, request, system, problem)
        else:
            self._take_place(report, status, system, problem)

    def _enter_executable(self, system: "_System") -> str:
        """Let `/proc/self/exe` be the sandbox's own file; returns "", or why a start there would run another one."""
        try:
            file = os.open(self.executable, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            return "the sandbox has no such Python: %s" % error
        try:
            found = os.fstat(file)
            if (found.st_size, found.st_mtime_ns) != self.executable_version:
                return "the sandbox has another Python"
            system.be_executed_from(file)
        except OSError:  # Linux before 6.6 does not allow this for a file of an overlay
            if self.runs_module:
                raise
        finally:
            os.close(file)
        return ""

    def _run_module(
        self, report: "Any", hands: "Any", output: int, request: "dict[str, Any]", system: "_System", problem: str
    ) -> None:
        """Become what a sandbox's shell would start as `python -m NAME ARG…`; only with the rights of its programs."""
        try:
            words, directory, shell = (request["module"][name] for name in ("command", "directory", "shell"))
            variables = {**self.before, b"PWD": os.fsencode(directory), b"_": os.fsencode(sys.executable)}
            os.chdir(directory)
            why = problem or self._is_shadowed()
            if why:
                report.send(b"usual " + why.encode()[:400])
                os._exit(0)
            ended = os.open(ENDED, os.O_RDWR | os.O_NOFOLLOW)
            null = os.open(os.devnull, os.O_RDONLY)
            for number in range(_RLIMITS):
                system.copy_limit(number, shell)
            hands.sendmsg([b"e"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, ended.to_bytes(4, sys.byteorder))])
            report.send(b"started")
        except BaseException as error:  # noqa: BLE001 - reported; the program is started as usual
            report.send(b"usual " + ("%s: %s" % (type(error).__name__, error)).encode()[:400])
            os._exit(1)
        for socket in (report, hands):
            socket.detach()
        null, output = _duplicate(null, _HIGH), _duplicate(output, _HIGH)
        os.closerange(0, _HIGH)
        for number, descriptor in enumerate((null, output, output)):
            os.dup2(descriptor, number, True)
        os.closerange(_HIGH, _HIGH + 2 * _MOST_DESCRIPTORS)
        self._restore_variables(variables)
        sys.argv[:] = ["-m", *map(os.fsdecode, words[3:])]
        sys.path.insert(0, directory)
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = map(os.fsdecode, words)
        system.show_as(words, variables)
        self._forget()

    def _is_shadowed(self) -> str:
        """Why a start in this directory would find modules other than the imported ones; empty if it would not."""
        for place in self.missing_places:
            if os.path.exists(place):
                return "modules are looked for in " + place
        known = {name.partition(".")[0] for name in self.imported}
        for name in os.listdir("."):
            if name.partition(".")[0] in known:
                return "the working directory has a file named like a module: " + name
        return ""

    def _take_place(self, report: "Any", status: int, system: "_System", problem: str) -> None:
        """From here on this process has the rights of the sandbox's programs and no others."""
        import time

        deadline = time.monotonic() + _MEET_S
        other = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        while True:
            try:
                other.connect(_MEETING)
                break
            except OSError:
                if time.monotonic() > deadline:
                    report.send(b"usual the program was not started")
                    os._exit(1)
                time.sleep(0.001)
        state, given = _receive_state(other)
        why = problem or self._differs(state, given)
        if why:
            report.send(b"usual " + why.encode()[:400])
            other.send(b"usual")
            os._exit(0)
        os.umask(state["umask"])
        here, *given = given
        os.fchdir(here)
        for number in range(1, 32):
            if state["ignored"] >> (number - 1) & 1:
                _signal.signal(number, _signal.SIG_IGN)
        self._restore_variables(state["variables"])
        other.sendmsg(
            [b"started %d" % os.getpid()],
            [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, status.to_bytes(4, sys.byteorder))],
        )
        report.send(b"started")
        # Everything else is closed. The passed descriptors get their numbers, after a move out of each other's way.
        high = [_duplicate(descriptor, _HIGH) for descriptor in given]
        os.closerange(0, _HIGH)
        for descriptor, number in zip(high, state["descriptors"]):
            os.dup2(descriptor, number, True)
        os.closerange(_HIGH, _HIGH + 2 * _MOST_DESCRIPTORS)
        for socket in (report, other):
            socket.detach()
        import resource

        for number, limit in enumerate(state["limits"]):
            resource.setrlimit(number, limit)
        words = [state["started_as"], *state["command"]]
        sys.argv[:] = [os.fsdecode(word) for word in state["command"]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [os.fsdecode(word) for word in words]
        system.show_as(words, state["variables"])
        self._forget()

    def _differs(self, state: "dict[str, Any]", given: "list[int]") -> str:
        """Why the program would find a different state if it were started normally; empty if it would not."""
        variables = state["variables"]
        if os.fsdecode(state["command"][0]) != self.program:
            return "another program is started"
        if os.fsdecode(state["executable"]) != sys.executable:
            return "another Python is started"
        names = {name for name in (*variables, *self.before) if self.all_read or name.startswith(_COMPARED)}
        for name in sorted((names | self.read) - {*_NOT_COMPARED}):
            if variables.get(name) != self.before.get(name):
                return f"the variable {os.fsdecode(name)}, which an import reads, is another"
        if max(state["descriptors"]) >= _HIGH or 0 <= state["limits"][_NOFILE][0] < _HIGH + 2 * _MOST_DESCRIPTORS:
            return "it has many files open, or may open few"
        if state["descriptors"][:3] != [0, 1, 2]:
            return "standard input, output and error are not all there"
        for number in range(3):
            if os.fstat(given[1 + number]).st_mode >> 12 != self.kinds[number]:
                return "standard input, output and error are of other kinds"
        if any(os.isatty(descriptor) for descriptor in given[1:4]):
            return "it has a terminal"
        for name in self.unless:
            place = variables.get(b"HOME", b"") + name[1:].encode() if name.startswith("~/") else name.encode()
            try:
                os.stat(place, dir_fd=given[0])
            except OSError:
                continue
            return f"there is the file {name}, which the program reads before some of its imports"
        return ""

    def _restore_variables(self, variables: "dict[bytes, bytes]") -> None:
        """The program's own variables, with the changes that the imports made."""
        for name in [name for name in os.environb if name not in variables]:
            del os.environb[name]
        for name, value in variables.items():
            if os.environb.get(name) != value:
                os.environb[name] = value
        native = sys.modules["posix"].environ
        native.clear()
        native.update(variables)
        for name in self.removed:
            os.environb.pop(name, None)
        os.environb.update(self.written)

    def _forget(self) -> None:
        """Remove the traces of this program, and seed random generators again."""
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            numpy.seed()
        logging: "Any" = sys.modules.get("logging")
        if logging is not None:  # the start time of the program
            import time

            logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        for name in set(sys.modules) - self.imported:
            del sys.modules[name]


class _System:
    """System calls that Python does not offer; everything that they need is loaded before the first fork."""

    def __init__(self) -> None:
        import ctypes
        import fcntl
        import resource
        import select
        import termios

        self._ctypes, self._resource = ctypes, resource
        self._fcntl, self._select, self._termios = fcntl, select, termios
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._sizes, self._shown = self._memory()

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    def enter(self, namespace: int, kind: int) -> None:
        self._check(self._libc.setns(namespace, kind), f"setns {kind:x}")

    def limit_processes(self, most: int) -> None:
        """Limit the number of the user's processes, as in each process of the sandbox; the server has no such limit."""
        _, allowed = self._resource.getrlimit(self._resource.RLIMIT_NPROC)
        hard = most if allowed == self._resource.RLIM_INFINITY else min(most, allowed)
        self._resource.setrlimit(self._resource.RLIMIT_NPROC, (hard, hard))

    def waiting_bytes(self, pipe: int) -> int:
        """The number of bytes in a pipe."""
        answer = self._fcntl.ioctl(pipe, self._termios.FIONREAD, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def is_closed(self, socket: "Any", wait_ms: int) -> bool:
        """Whether the other end of a socket is closed, or is closed within this time."""
        poll = self._select.poll()
        poll.register(socket, 0)  # only the end of the connection
        return bool(poll.poll(wait_ms))

    def copy_limit(self, number: int, process: int) -> None:
        """Copy a limit of another process."""
        self._resource.setrlimit(number, self._resource.prlimit(process, number))

    def drop_capabilities(self) -> None:
        header = self._ctypes.create_string_buffer((0x20080522).to_bytes(4, sys.byteorder) + bytes(4), 8)
        self._check(self._libc.capset(header, self._ctypes.create_string_buffer(24)), "capset")

    def allow_tracing(self) -> None:
        """Allow other processes of the user to trace this one."""
        self._check(self._libc.prctl(_PR_SET_DUMPABLE, self._ctypes.c_ulong(1), 0, 0, 0), "prctl")

    def install_filter(self, program: bytes) -> None:
        ctypes = self._ctypes
        if not program:
            return

        class Described(ctypes.Structure):  # type: ignore[misc, name-defined]
            _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))

        code = ctypes.create_string_buffer(program, len(program))
        described = Described(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
        number, mode, flags = ctypes.c_long(_SECCOMP), ctypes.c_uint(1), ctypes.c_uint(0)
        self._check(self._libc.syscall(number, mode, flags, ctypes.byref(described)), "seccomp")

    def _memory(self) -> "tuple[tuple[int, ...], tuple[int, ...]]":
        """The addresses of this program's code, data, heap and stack, and of its arguments and variables."""
        with open("/proc/self/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        parts, shown = (26, 27, 45, 46, 47, 28), (48, 49, 50, 51)
        return tuple(int(words[number - 3]) for number in parts), tuple(int(words[number - 3]) for number in shown)

    def show_as(self, words: "list[bytes]", variables: "dict[bytes, bytes]") -> None:
        """Let `/proc` show these arguments and variables, and the program's name; no effect if this is impossible."""
        ctypes = self._ctypes
        shown = words[1] if words[0].startswith(b"/") else words[0]  # the script, for which the kernel starts Python
        name = ctypes.create_string_buffer(os.path.basename(shown)[:15])
        self._libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
        arguments = b"".join(word + b"\0" for word in words)
        environment = b"".join(name + b"=" + value + b"\0" for name, value in variables.items())
        text = ctypes.create_string_buffer(arguments + environment, len(arguments) + len(environment))
        start = ctypes.addressof(text)
        middle = start + len(arguments)
        if self._set_memory((start, middle, middle, start + len(text)), 0xFFFFFFFF) == 0:
            _kept.append(text)  # the kernel reads it while this process runs

    def be_executed_from(self, file: int) -> None:
        """Let `/proc/self/exe` be this file, which contains the running program.

        The server's own file is the same for all sandboxes: locks on it, and opening it, would be visible in all of
        them.
        """
        self._check(self._set_memory(self._shown, file), "prctl")

    def _set_memory(self, shown: "tuple[int, ...]", executable: int) -> int:
        """Set the addresses of arguments and variables, and the file of the program, unless all its bits are 1."""
        ctypes = self._ctypes
        code_start, code_end, data_start, data_end, heap, stack = self._sizes
        self._libc.sbrk.restype = ctypes.c_void_p
        top = self._libc.sbrk(ctypes.c_long(0)) or 0
        fields = (code_start, code_end, data_start, data_end, heap, top, stack, *shown, 0)
        form = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
        form += (0).to_bytes(4, sys.byteorder) + executable.to_bytes(4, sys.byteorder)
        place = ctypes.create_string_buffer(form, len(form))
        return int(self._libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), place, ctypes.c_ulong(len(form)), 0))


def _enter_groups(threads: "list[int]") -> bool:
    """Move this process, with its only thread, to control groups that the owner has opened."""
    try:
        for descriptor in threads:
            os.write(descriptor, b"0")
    except OSError:
        return False
    finally:
        for descriptor in threads:
            os.close(descriptor)
    return bool(threads)


def _wait(program: int, ended: int) -> None:
    """Wait for the program, and write its exit code, or the negative number of the signal that ended it."""
    os.closerange(0, ended)
    os.closerange(ended + 1, 1024)
    _, status = os.waitpid(program, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    try:
        os.write(ended, b"%d" % code)
    except OSError:  # no process waits for it
        pass
    os._exit(0)


def _tell_shell(program: int, ended: int, report: "Any", system: "_System") -> None:
    """Wait for a module's program, and write its exit code as a shell would report it, until that is read.

    It is not read if the shell has ended: then the owner closes the other end of `report`.
    """
    first, second = sorted((ended, report.fileno()))
    os.closerange(0, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, 1024)
    _, status = os.waitpid(program, 0)
    stopped = os.WIFSTOPPED(status)  # a program that is traced stops; a shell takes this for its end, too
    signal = os.WSTOPSIG(status) if stopped else os.WTERMSIG(status)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + signal
    os.set_blocking(ended, False)
    while not _has_written(ended, b"%d\n" % code) and not system.is_closed(report, _LOOK_MS):
        pass
    while system.waiting_bytes(ended) and not system.is_closed(report, _LOOK_MS):
        pass
    os._exit(0)


def _has_written(pipe: int, words: bytes) -> bool:
    """Write to a non-blocking pipe; False if it is full, which a program of the sandbox may have caused."""
    try:
        os.write(pipe, words)
    except BlockingIOError:
        return False
    return True


def _receive_pipe(handed: "Any") -> int:
    """The named pipe that a module's program has opened in its sandbox; ends this process if none arrives."""
    _, ancillary, _, _ = handed.recvmsg(1, _socket.CMSG_SPACE(4))
    for _, _, data in ancillary:
        return int.from_bytes(data[:4], sys.byteorder)
    os._exit(1)


def _missing_places() -> "list[str]":
    """Missing directories in which Python would look for modules if they existed: lines of the files `*.pth`."""
    site = sys.modules["site"]
    found = []
    for place in [*site.getsitepackages(), site.getusersitepackages()]:
        for name in os.listdir(place) if os.path.isdir(place) else []:
            if name.endswith(".pth"):
                with open(os.path.join(place, name), encoding="utf-8", errors="surrogateescape") as file:
                    lines = [line.strip() for line in file if line.strip() and not line.startswith(("#", "import"))]
                found += [path for path in (os.path.join(place, line) for line in lines) if not os.path.exists(path)]
    return found


def _receive_state(other: "Any") -> "tuple[dict[str, Any], list[int]]":
    import array

    length, ancillary, _, _ = other.recvmsg(_LENGTH_BYTES, _socket.CMSG_SPACE(4 * (_MOST_DESCRIPTORS + 1)))
    given = array.array("i")
    for _, _, data in ancillary:
        given.frombytes(data)
    wanted = int.from_bytes(length, "little")
    if wanted > _MOST_BYTES:
        raise ValueError("too many arguments and variables")
    state = b""
    while len(state) < wanted:
        piece = other.recv(wanted - len(state))
        if not piece:
            raise EOFError
        state += piece
    return marshal.loads(state), list(given)


def _duplicate(descriptor: int, least: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, least)


def _shares_memory() -> bool:
    with open("/proc/self/maps") as file:
        return any(line.split()[1][1:] in ("w-s", "wxs") for line in file)


def _descriptors() -> "list[str]":
    return sorted(name for name in os.listdir("/proc/self/fd") if _is_open(int(name)))


def _imports_of(program: str) -> "list[str]":
    """The modules that the first statements of a program import."""
    import ast

    with open(program, "rb") as file:
        tree = ast.parse(file.read())
    found = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            found += [name.name for name in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module != "__future__":
            found.append(str(statement.module))
    return found


def _new_main(program: str) -> "Any":
    """`__main__` as it is when Python starts a program; with an empty `program`, before a module's program is found."""
    from importlib.machinery import BuiltinImporter, SourceFileLoader

    main = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    main.__spec__ = None
    main.__annotations__ = {}
    main.__loader__ = BuiltinImporter
    if program:
        main.__file__ = program
        main.__cached__ = None  # type: ignore[attr-defined]
        main.__loader__ = SourceFileLoader("__main__", program)
    return main


def _main() -> "tuple[Any, Any]":
    """The code of the program and its module, in the process that has become it; None and the name for a module's."""
    if sys.argv[1] == "join":
        _join(sys.argv[2:])
        _start_as_usual(sys.argv[2:])
    program, given = sys.argv[2], sys.argv[3:]
    end = given.index("--") if "--" in given else len(given)
    server = _Server(program, given[:end], given[end + 1 :])
    server.serve(3)
    main = sys.modules["__main__"]
    if server.runs_module:
        return None, server.program
    with open(program, "rb") as file:
        return compile(file.read(), program, "exec"), main


if __name__ == "__main__":
    _code, _module = _main()
    try:
        if _code is None:
            sys.modules["runpy"]._run_module_as_main(_module)  # as Python itself does
        else:
            exec(_code, _module.__dict__)
    except BaseException:
        _show = sys.excepthook

        def _show_without_this_file(kind: "Any", error: "Any", trace: "Any") -> None:
            trace = trace and trace.tb_next
            _show(kind, error.with_traceback(trace), trace)

        sys.excepthook = _show_without_this_file
        raise  # Python ends as after any program
