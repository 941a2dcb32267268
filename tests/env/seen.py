"""What a program can find out about itself and its surroundings, for tests that compare two ways of starting it."""

SEEN = r"""
import os, platform, random, re, resource, signal, stat, subprocess, sys, threading

def text(path):
    with open(path, errors="replace") as file:
        return file.read()

def seen():
    status = dict(line.split(":", 1) for line in text("/proc/self/status").splitlines() if ":" in line)
    fds = {}
    for name in sorted(os.listdir("/proc/self/fd")):
        try:
            kind = stat.S_IFMT(os.fstat(int(name)).st_mode)
            fds[name] = [kind, os.readlink("/proc/self/fd/" + name), text("/proc/self/fdinfo/" + name).split()[3]]
        except OSError:
            pass  # the one with which the directory is read
    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "environ": dict(os.environ), "path": sys.path,
        "executable": sys.executable, "prefix": sys.prefix, "flags": str(sys.flags), "hash": hash("seed"),
        "modules": sorted(sys.modules), "globals": sorted(globals()), "file": __file__,
        "spec": re.sub(" at 0x[0-9a-f]+", "", str(__spec__)),
        "main": sys.modules["__main__"].__dict__ is globals(), "threads": len(threading.enumerate()),
        "cwd": os.getcwd(), "listing": sorted(os.listdir(".")), "root": sorted(os.listdir("/")),
        "umask": os.umask(0o22),
        "ids": [os.getresuid(), os.getresgid(), os.getgroups()], "limits": text("/proc/self/limits"),
        "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in range(1, 32)],
        "status": {key: status[key].split() for key in ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt",
                   "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Threads", "TracerPid")},
        "name": text("/proc/self/comm"), "cmdline": text("/proc/self/cmdline"), "exe": os.readlink("/proc/self/exe"),
        "initial": sorted(text("/proc/self/environ").split("\0")), "fds": fds,
        "owner": os.stat("/proc/self/mem").st_uid, "host": platform.node(),
        "mounts": sorted(line.split()[4] + line.partition(" - ")[2].split()[0]
                         for line in text("/proc/self/mountinfo").splitlines()),
        "group": re.sub("[0-9-]+", "", text("/proc/self/cgroup")), "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)), "oom": text("/proc/self/oom_score_adj"),
        "home": os.path.expanduser("~"),
        "recursion": sys.getrecursionlimit(),
        "child": subprocess.run(["sh", "-c", "ulimit -a; id; pwd; ls /proc/self/fd"],
                                capture_output=True, text=True).stdout,
    }
"""
"""`seen()` returns everything that a program can look at, as JSON's types."""

ENTERED = r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def entered(pids):
    found = []
    for pid in pids:
        for kind in ("mnt", "pid", "user", "net"):
            try:
                space = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            except OSError:
                continue
            if libc.setns(space, 0) == 0:
                found.append([pid, kind])
            os.close(space)
    return found
"""
"""`entered(pids)` returns the namespaces of these processes that a program can enter; `libc` is the C library."""
