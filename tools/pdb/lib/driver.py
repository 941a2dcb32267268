"""Run a script or one test under pdb, stopped at its first line, and stopped again where it fails.

    driver.py TARGET [ARGUMENT…]    TARGET: script.py, path::Class::test, path::test or module.Class.test

Runs with the Python of the task, from its repository.
"""

import bdb
import dis
import importlib.util
import inspect
import os
import pdb  # noqa: T100 - the tool is one
import sys
import traceback
import unittest


class Debugger(pdb.Pdb):
    """pdb with its usual prompt and without configuration files, which can be moved to a position silently."""

    def __init__(self):
        pdb.Pdb.__init__(self, readrc=False)
        self.starting = self.silent = False
        self.skipped = 0

    def run_to(self, path, line):
        """Stop first at this line."""
        self.set_break(os.path.abspath(path), line, temporary=True)
        self.starting = True

    def after(self, trace, skipped):
        """Stop at the end of `trace`, without the `skipped` innermost frames."""
        self.reset()
        self.skipped = skipped
        self.interaction(None, trace)

    def user_line(self, frame):
        if self.starting:
            self.starting, self.silent = False, True
            self.set_continue()
        else:
            pdb.Pdb.user_line(self, frame)

    def message(self, msg):
        if not self.silent:
            pdb.Pdb.message(self, msg)

    def interaction(self, *place):
        self.silent = False
        pdb.Pdb.interaction(self, *place)

    def setup(self, *place):
        ended = pdb.Pdb.setup(self, *place)
        if self.skipped:
            self.curindex -= self.skipped
            self.curframe = self.stack[self.curindex][0]
            if "curframe_locals" in self.__dict__:
                self.curframe_locals = self.curframe.f_locals
            self.skipped = 0
        return ended

    def get_stack(self, f, t):
        """The line of a frame. Before 3.10, a traced frame has the line of its last stop; its instruction is exact."""
        stack, current = pdb.Pdb.get_stack(self, f, t)
        if sys.version_info < (3, 10) and f is None:
            places = []
            while t is not None:
                lines = [line for offset, line in dis.findlinestarts(t.tb_frame.f_code) if offset <= t.tb_lasti]
                places.append((t.tb_frame, lines[-1] if lines else t.tb_lineno))
                t = t.tb_next
            stack = places or stack
        return stack, current


def main():
    target, arguments = sys.argv[1], sys.argv[2:]
    sys.path[0] = os.getcwd()  # as with `python -m`, instead of the directory of this file
    path, _, within = target.partition("::")
    if within and has_pytest():
        return run_pytest(target, arguments)
    if within:
        return run_unittest(
            ".".join([os.path.relpath(path)[: -len(".py")].replace(os.sep, "."), within.replace("::", ".")])
        )
    if os.path.isfile(target):
        return run_script(target, arguments)
    return run_unittest(target)


def has_pytest():
    return importlib.util.find_spec("pytest") is not None


def run_pytest(target, arguments):
    import pytest

    return int(pytest.main([target, "--trace", "--pdb", "-q", "-s", "-p", "no:cacheprovider"] + arguments))


def run_script(path, arguments):
    sys.argv[:] = [path] + arguments
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    with open(path, "rb") as file:
        source = file.read()
    try:
        code = compile(source, os.path.abspath(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        print(f"pdb: {path} cannot be compiled:")
        print("".join(traceback.format_exception_only(type(error), error)).strip())
        return 1
    module = type(sys)("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    debugger = Debugger()
    debugger.run_to(path, min((line for _, line in dis.findlinestarts(code) if line), default=1))
    return run(debugger, lambda: exec(code, module.__dict__), lambda frame: False)


def run_unittest(name):
    tests = list(flat(unittest.defaultTestLoader.loadTestsFromName(name)))
    if not tests:
        print(f"pdb: {name} holds no test")
        return 2
    for test in tests:
        if type(test).__name__ == "_FailedTest":
            try:
                test.debug()
            except Exception as error:  # noqa: BLE001 - any failure of the import is reported
                print(f"pdb: {name} cannot be loaded: {error}")
            return 2
        debugger = Debugger()
        method = inspect.unwrap(getattr(type(test), test._testMethodName))  # noqa: SLF001 - unittest has no public attribute for it
        debugger.run_to(inspect.getsourcefile(method), first_line(method.__code__))
        code = run(debugger, test.debug, lambda frame: "__unittest" in frame.f_globals)
        if code:
            return code
    print("The test{} passed.".format("" if len(tests) == 1 else "s"))
    return 0


def first_line(code):
    """The first statement of a function's body, after decorators and docstring."""
    later = [line for _, line in dis.findlinestarts(code) if line and line > code.co_firstlineno]
    return later[0] if later else code.co_firstlineno


def flat(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from flat(each)
        else:
            yield each


def run(debugger, function, is_framework):
    """Run `function` under the debugger; if it raises, stop again at that place, outside of the framework's frames."""
    try:
        debugger.runcall(function)
    except bdb.BdbQuit:
        return 0
    except SystemExit as error:
        print(f"The program called exit: {error.code}")
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except unittest.SkipTest as reason:
        print(f"The test is skipped: {reason}")
        return 0
    except BaseException:  # noqa: BLE001 - the debugger handles everything that a program raises
        kind, value, trace = sys.exc_info()
        frames = []
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, bdb.__file__, pdb.__file__):
            trace = trace.tb_next
        walked = trace
        while walked is not None:
            frames.append(walked.tb_frame)
            walked = walked.tb_next
        print("".join(traceback.format_exception_only(kind, value)).strip())
        skipped = 0
        while skipped + 1 < len(frames) and is_framework(frames[-1 - skipped]):
            skipped += 1
        debugger.after(trace, skipped)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
