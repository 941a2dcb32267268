"""State that a Python patch newly keeps between calls: with it, code could return what an earlier call received.

A repair may also keep state (a cache, a registry), so this alone does not reject a patch; see `twins`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from swegym_env.languages.caching import cached_for_patches
from swegym_env.languages.changed import has_kinds_beyond_gold
from swegym_env.languages.python.means import Source, source_at_base, source_of
from swegym_env.languages.python.parsing import children
from swegym_env.repo.patches import FilePatch, apply_hunks, parse_patch

__all__ = ["keeps_state"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# Node types, looked up in a set: `isinstance` with a union that is created at each call takes as long as the rest.
_DEFINITIONS = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_SCOPED = _DEFINITIONS | {ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp}
_BINDING = _DEFINITIONS | {ast.Name, ast.arg, ast.alias, ast.ExceptHandler, ast.Global, ast.Nonlocal}
_KEEPING = frozenset(
    {ast.Global, ast.Nonlocal, ast.Attribute, ast.Subscript, ast.Call, ast.Name, ast.Raise, *_Function.__args__}
)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_TAKING_ITEMS = (ast.For, ast.AsyncFor, ast.comprehension, ast.Tuple, ast.List, ast.Starred)
_Kept = tuple[str, str]  # a kind, and the name of the object that keeps the value
_CHANGING = re.compile(
    r"_*(add|append|clear|discard|extend|insert|install|patch|pop|push|put|register|remove|send|set|sort|reverse|"
    r"store|throw|update|write|rotate|__setitem__|__delitem__|__setattr__|__delattr__|__setstate__|__next__|"
    r"__enter__|__i(add|and|floordiv|lshift|matmul|mod|mul|or|pow|rshift|sub|truediv|xor)__)"
)
_STORING = re.compile(r"_*(install|push|put|register|remember|set_|store)")  # functions that keep their arguments


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READING = _words(
    "get items keys values index count copy join format startswith endswith union intersection difference issubset "
    "issuperset isdisjoint match search sub fullmatch findall finditer split strip encode decode lower upper replace "
    "debug info warning error exception log"
)
_READERS = _words(
    "len sorted set list dict tuple any all sum min max isinstance zip issubclass enumerate frozenset str repr bool "
    "range int float reversed map"
)
# Their results are immutable, or do not keep the arguments.
_UNCHANGING = _words(
    "compile getLogger namedtuple NamedTuple TypeVar NewType ParamSpec frozenset tuple object str int float bytes bool "
    "complex range slice Decimal Fraction Path PurePath PurePosixPath date time datetime timedelta itemgetter "
    "attrgetter join methodcaller Struct property staticmethod classmethod MappingProxyType auto Enum len min max sum "
    "round abs ord chr repr format encode decode split gettext_lazy gettext _ getattr type isinstance cast field "
    "maketrans version"
)
_INERT = _UNCHANGING | {"list", "dict", "set", "sorted", "OrderedDict", "bytearray", "copy", "fromkeys", "union"}
_CACHES = frozenset({"lru_cache", "cache", "memoize", "memoized", "singledispatch"})
# Calls with effects outside of the objects of the process.
_LEAVING = _words(
    "symlink mkdir makedirs putenv link setxattr utime truncate mkstemp mkdtemp NamedTemporaryFile TemporaryFile "
    "TemporaryDirectory touch write_text write_bytes umask chdir nice seed alarm mkfifo mknod chmod symlink_to "
    "hardlink_to shm_open SharedMemory memfd_create"
)


# Modules of the standard library that do not keep their arguments; for other modules, the names that do not.
_FORGETTING_MODULES = _words(
    "__future__ abc argparse array ast base64 binascii bisect calendar cmath codecs collections colorsys configparser "
    "contextlib copy csv dataclasses datetime difflib email enum errno fnmatch fractions functools glob graphlib "
    "hashlib heapq hmac html inspect io itertools json keyword math ntpath numbers operator pathlib platform "
    "posixpath pprint queue re reprlib secrets shlex stat statistics string stringprep struct textwrap time tokenize "
    "traceback types typing unicodedata urllib uuid xml zlib zoneinfo"
)
_FORGETTING_NAMES = {
    "os": _words(
        "access altsep cpu_count curdir devnull environ error extsep F_OK fsdecode fsencode fspath get_terminal_size "
        "getcwd getenv getpid getuid isatty linesep listdir lstat name pardir path PathLike pathsep R_OK readlink "
        "scandir sep stat strerror uname urandom W_OK walk X_OK"
    ),
    "sys": _words(
        "_getframe argv base_prefix byteorder exc_info executable exit flags float_info getdefaultencoding "
        "getfilesystemencoding getrecursionlimit getsizeof hexversion implementation int_info intern maxsize "
        "maxunicode path platform prefix stderr stdin stdout version version_info"
    ),
    "threading": _words(
        "BoundedSemaphore Condition current_thread Event get_ident local Lock main_thread RLock Semaphore"
    ),
    "locale": _words(
        "atof atoi currency Error format_string getlocale getpreferredencoding LC_ALL LC_COLLATE LC_CTYPE LC_NUMERIC "
        "LC_TIME localeconv str strcoll strxfrm"
    ),
    "warnings": _words("catch_warnings warn WarningMessage"),
    "weakref": _words(
        "CallableProxyType proxy ProxyType ref ReferenceType WeakKeyDictionary WeakMethod WeakSet WeakValueDictionary"
    ),
    "logging": _words(
        "CRITICAL critical DEBUG debug ERROR error exception Filter Formatter getLevelName getLogger Handler INFO "
        "info log Logger LoggerAdapter LogRecord NOTSET NullHandler StreamHandler WARNING warning"
    ),
    "contextvars": frozenset[str](),
    "decimal": _words(
        "Clamped Context Decimal DecimalException DivisionByZero FloatOperation Inexact InvalidOperation localcontext "
        "Overflow ROUND_05UP ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN ROUND_HALF_EVEN ROUND_HALF_UP "
        "ROUND_UP Rounded Subnormal Underflow"
    ),
    "tempfile": _words("gettempdir gettempprefix tempdir"),
}
_KEEPING_NAMES = {
    "calendar": _words("setfirstweekday"),
    "codecs": _words("lookup_error register register_error"),
    "csv": _words("field_size_limit get_dialect list_dialects register_dialect"),
    "typing": _words("get_overloads"),
}
_FOR_A_BLOCK = frozenset({"catch_warnings", "localcontext"})  # what they change lasts as long as their `with`
_CHANGING_ARGUMENTS = _words("setitem delitem iadd iand iconcat ior isub ixor imul insort heappush update_wrapper")
# Attributes with containers of functions, classes and modules.
_HOLDING = _words("__annotations__ __kwdefaults__ __wrapped__ _value2member_map_ _member_map_")
_ONE_OF_THEM = _words("getattr max min next")  # builtin functions that may return an item of their argument
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_BUILTINS = frozenset(dir(builtins))
_OF_CLASSES = frozenset({"__new__", "__init_subclass__", "__class_getitem__", "__prepare__"})
_METACLASS = re.compile(r"type|\w*Meta(class)?|\w+Type")
_SPECIAL = re.compile(r"__\w+__")
_OF_OPERATORS = frozenset(name for kind in (int, float, set, dict) for name in dir(kind)) - frozenset(dir(object))
_OF_ITERATION = frozenset({"__iter__", "__next__", "__getitem__", "__aiter__", "__anext__", "__reversed__"})
_OF_BLOCKS = frozenset({"__enter__", "__aenter__"})
_OF_CONTAINERS = frozenset(name for kind in (dict, list, set, str, tuple) for name in dir(kind))
_AT_HAND = frozenset({"map", "filter", "sorted", "min", "max", "any", "all", "sum", "sort", "next", "list", "reduce"})


def keeps_state(patch: str, base: Path, gold: str) -> bool:
    """Whether a patch keeps something between calls that its files did not keep before, in a way that gold does not.

    Args:
        patch: what is graded of the agent's patch.
        base: the repository at the base commit.
        gold: the gold patch.
    """
    return has_kinds_beyond_gold(_newly_kept, patch, base, gold)


@cached_for_patches(lambda patch, _base: len(patch))
def _newly_kept(patch: str, base: Path) -> frozenset[_Kept]:
    found: set[_Kept] = set()
    for section in parse_patch(patch):
        if section.new_path is not None and section.new_path.endswith((".py", ".pyi")):
            found |= _kept_by_section(section, base)
    return frozenset(found)


def _kept_by_section(section: FilePatch, base: Path) -> set[_Kept]:
    olds = [base / path for path in sorted(section.paths) if (base / path).is_file()]
    before = olds[0].read_text(encoding="utf-8", errors="replace") if olds else ""
    changed = apply_hunks(before, section.body) if section.body.startswith("@@ ") else None
    if changed is None:
        return {("unknown", str(section.new_path))} if section.body else set()
    new = source_of(changed[0])
    if new.tree is None:
        return {("unknown", str(section.new_path))}
    try:
        kept = _kept_in(new) - _kept_before(before)
    except RecursionError:
        return {("unknown", str(section.new_path))}
    return set(kept)


def _kept_in(source: Source) -> Counter[_Kept]:
    return Counter(_File(source.tree).kept()) if source.tree is not None else Counter()


@lru_cache(maxsize=64)  # the same for all patches of a task
def _kept_before(text: str) -> Counter[_Kept]:
    return _kept_in(source_at_base(text))


class _File:
    """A syntax tree, the names that its scopes bind, and the objects that outlive a call."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents: dict[ast.AST, ast.AST] = {}
        self._scope_of: dict[ast.AST, ast.AST] = {tree: tree}
        self._bound: dict[ast.AST, dict[str, list[ast.AST]]] = {tree: {}}
        self._outer: dict[ast.AST, set[str]] = {}
        self._fixed: dict[str, bool] = {}  # names of the module → whether their values cannot change
        self._visited: set[tuple[ast.AST, str, bool]] = set()  # names of the expression that is being looked at
        self._nodes = [tree, *self._read()]
        # Names in the module and in classes whose values may change: those of the module are also read as names, those
        # of classes as attributes.
        self._lasting = {name for name in self._bound[tree] if self._may_change(tree, name)}
        # Those that even a read may change: iterators and a `defaultdict`, but not the containers of the language.
        self._reactive = {name for name in self._lasting if not all(map(self._is_inert, self._values(tree, name)))}
        classes = [node for node in self._nodes if isinstance(node, ast.ClassDef)]
        self._attributes = {name for each in classes for name in self._bound[each] if self._may_change(each, name)}
        self._own = {
            name
            for each in classes
            for name in self._bound[each]
            if any(self._is_container(value) for value in self._values(each, name))
        }
        # Attributes and methods that may be, or return, an object that outlives a call; and those that may hold one.
        self._shared: frozenset[str] = frozenset()
        self._holding: frozenset[str] = frozenset()
        found = [*self._find_shared()]
        self._shared = frozenset(name for name, is_item in found if not is_item)
        self._holding = frozenset(name for name, is_item in found if is_item)
        for node in tree.body:  # `Box.slot = Slot()`
            targets = node.targets if isinstance(node, ast.Assign) and not self._is_fixed(node.value) else []
            self._own |= {target.attr for target in targets if isinstance(target, ast.Attribute)}

    def _find_shared(self) -> Iterator[tuple[str, bool]]:
        """Attributes, and methods by their results, that may be a function, a class or an object that outlives a call.

        Results of functions do not count: most of them are new. Nor do names of the methods of containers, except those
        that an operator calls.

        Yields:
            The name, and whether an item of its value is meant.
        """
        for node in self._nodes:
            pairs, scope = list(self._stored(node)), self._scope_of[node]
            for target, value in pairs:  # grows during the iteration
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs += zip(target.elts, value.elts, strict=False)
                elif isinstance(value, ast.IfExp | ast.BoolOp):
                    pairs += [(target, part) for part in _parts(value, of_items=False)[0]]
                elif isinstance(target, str | ast.Attribute) or isinstance(scope, ast.ClassDef):
                    name = target if isinstance(target, str) else _last(target)
                    if not name or (name in _OF_CONTAINERS and not _SPECIAL.fullmatch(name)):
                        continue
                    if self._is_shared(value, scope):
                        yield name, False
                    if any(self._is_shared(item, scope) for item in _items(value)):
                        yield name, True

    def _stored(self, node: ast.AST) -> Iterator[tuple[ast.expr | str, ast.expr]]:
        """The values that a node keeps somewhere, with the place, and those that a method returns, with its name."""
        if isinstance(node, ast.Return | ast.Yield) and isinstance(function := self._function_of(node), _Function):
            if isinstance(self._scope_of[function], ast.ClassDef) and node.value is not None:
                yield getattr(function, "name", ""), node.value
        elif isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.For) and isinstance(node.iter, _DISPLAYS[:3]):
            yield from ((node.target, value) for value in node.iter.elts)
        elif isinstance(node, ast.Call) and _last(node.func) == "setattr" and len(node.args) == 3:
            yield str(getattr(node.args[1], "value", "")), node.args[2]
        elif isinstance(node, ast.Call):
            yield from self._kept_arguments(node)

    def _kept_arguments(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """The attributes in which methods of the called name, or a called class, keep their arguments."""
        for parameters, kept in self._keeping.get(_last(call.func), ()):
            given = [*zip(parameters, call.args, strict=False)]
            given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
            yield from ((attribute, value) for name, value in given for attribute in kept.get(name, ()))

    @functools.cached_property
    def _keeping(self) -> dict[str, list[tuple[list[str], dict[str, list[str]]]]]:
        """Name of a method or a class → its parameters, and the attributes in which it keeps each of them."""
        found: dict[str, list[tuple[list[str], dict[str, list[str]]]]] = {}
        classes = [node for node in self._nodes if isinstance(node, ast.ClassDef)]
        for each in classes:
            heirs = {each.name}
            for other in classes:  # those below come after those above
                heirs |= {other.name} if any(_last(base) in heirs for base in other.bases) else set()
            for method in each.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    parameters = [one.arg for one in (*method.args.posonlyargs, *method.args.args)][1:]
                    kept: dict[str, list[str]] = {}
                    for node in ast.walk(method):
                        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                            targets = [one.attr for one in node.targets if isinstance(one, ast.Attribute)]
                            kept.setdefault(node.value.id, []).extend(targets)
                    names = {method.name, *heirs} if method.name in ("__init__", "__new__") else {method.name}
                    for name in names:
                        found.setdefault(name, []).append((parameters, kept))
            fields = [_last(one.target) for one in each.body if isinstance(one, ast.AnnAssign)]
            for name in heirs if fields else ():  # of a dataclass
                found.setdefault(name, []).append((fields, {field: [field] for field in fields}))
        return found

    def _is_shared(self, value: ast.expr, scope: ast.AST) -> bool:
        """Whether a value that is kept or returned may be a function, a class or an object that outlives the call."""
        if isinstance(value, ast.Lambda):
            return self._is_shared(value.body, value)
        if isinstance(value, ast.Call) and _last(value.func) in ("staticmethod", "classmethod"):
            return bool(value.args) and self._is_shared(value.args[0], scope)
        if isinstance(value, ast.Call):
            return _last(value.func) == "type"
        self._visited.clear()
        return bool(self._lasting_root(value, scope, called=False))

    @functools.cached_property
    def _filling(self) -> set[str]:
        """The functions of the file that modify an argument, and the classes that modify what their objects hold."""
        found: set[str] = set()
        for node in self._nodes:
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed: ast.expr = node.value
            elif (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _CHANGING.match(node.func.attr)
            ):
                changed = node.func.value
            else:
                continue
            is_part = isinstance(changed, ast.Attribute | ast.Subscript | ast.Call)
            while isinstance(changed, ast.Attribute | ast.Subscript | ast.Starred | ast.NamedExpr | ast.Call):
                changed = changed.func if isinstance(changed, ast.Call) else changed.value
            function = self._scope_with(changed.id, self._scope_of[node]) if isinstance(changed, ast.Name) else None
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(changed, ast.Name):
                arguments = [each for each in self._bound[function][changed.id] if isinstance(each, ast.arg)]
                home = self._scope_of[function]
                if arguments and changed.id not in ("self", "cls"):
                    found.add(function.name)
                elif arguments and is_part and isinstance(home, ast.ClassDef):
                    found.add(home.name)  # it may have been given what it modifies
        return found

    def _read(self) -> list[ast.AST]:
        found: list[ast.AST] = []
        waiting: list[tuple[ast.AST, ast.AST]] = [(self._tree, self._tree)]
        for node, scope in waiting:  # grows during the iteration
            inner, kind = scope, type(node)
            if node is not self._tree:
                found.append(node)
                self._scope_of[node] = scope
                if kind in _SCOPED:
                    inner = node
                    self._bound[node] = {}
            if kind in _BINDING:
                self._bind(node, scope, inner)
            is_definition = kind in _DEFINITIONS
            for child in children(node):
                self._parents[child] = node
                waiting.append((child, scope if is_definition and self._is_outside(node, child) else inner))
        return found

    @staticmethod
    def _is_outside(node: ast.AST, child: ast.AST) -> bool:
        """Whether a part of a definition (a decorator, a base) is evaluated outside of the scope that it defines."""
        return child not in getattr(node, "body", ()) and not isinstance(child, ast.arguments)

    def _bind(self, node: ast.AST, scope: ast.AST, inner: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            while isinstance(scope, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp) and isinstance(
                self._parents.get(node), ast.NamedExpr
            ):
                scope = self._scope_of[scope]
            self._bound[scope].setdefault(node.id, []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bound[scope].setdefault(node.name, []).append(node)
        elif isinstance(node, ast.arg):
            self._bound[inner].setdefault(node.arg, []).append(node)
        elif isinstance(node, ast.alias):
            self._bound[scope].setdefault((node.asname or node.name).partition(".")[0], []).append(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._bound[scope].setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self._outer.setdefault(scope, set()).update(node.names)

    def _scope_with(self, name: str, scope: ast.AST) -> ast.AST | None:
        """The scope that binds a name as it is read in `scope`; None for builtins."""
        first = scope
        while True:
            visible = scope is first or not isinstance(scope, ast.ClassDef)
            if visible and name in self._bound[scope] and name not in self._outer.get(scope, ()):
                return scope
            if scope is self._tree:
                return None
            scope = self._scope_of[scope]

    def _values(self, scope: ast.AST, name: str) -> Iterator[ast.expr]:
        """The expressions that a scope assigns to a name, if they can be determined."""
        for node in self._bound[scope].get(name, ()):
            parent = self._parents.get(node)
            if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr) and parent.value is not None:
                yield parent.value
            elif isinstance(parent, ast.Tuple | ast.List | ast.Starred) and isinstance(node, ast.Name):
                top: ast.AST = parent
                while isinstance(top, ast.Tuple | ast.List | ast.Starred):
                    top = self._parents[top]
                value = getattr(top, "value", None) or getattr(top, "iter", None)
                if isinstance(value, ast.expr):
                    yield from value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            elif isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
                yield parent.iter
            elif isinstance(parent, ast.withitem):
                yield parent.context_expr

    # What may change

    def _may_change(self, scope: ast.AST, name: str) -> bool:
        return any(not self._is_fixed(value) for value in self._values(scope, name))

    def _is_fixed(self, node: ast.expr) -> bool:
        """Whether a value at module or class level cannot change, as far as its expression shows."""
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.Lambda | ast.Compare):
            return True
        if isinstance(node, ast.Tuple):
            return all(self._is_fixed(item) for item in node.elts)
        if isinstance(node, ast.UnaryOp):
            return self._is_fixed(node.operand)
        if isinstance(node, ast.BinOp):
            return self._is_fixed(node.left) and self._is_fixed(node.right)
        if isinstance(node, ast.BoolOp):
            return all(self._is_fixed(item) for item in node.values)
        if isinstance(node, ast.IfExp):
            return self._is_fixed(node.body) and self._is_fixed(node.orelse)
        if isinstance(node, ast.Subscript | ast.Starred):
            return self._is_fixed(node.value)
        if isinstance(node, ast.Attribute):
            return not _CHANGING.match(node.attr) or self._is_fixed(node.value)
        if isinstance(node, ast.Name):
            if node.id not in self._fixed:
                self._fixed[node.id] = False  # while its values are looked at: they may contain it
                self._fixed[node.id] = all(map(self._is_fixed, self._values(self._tree, node.id)))
            return self._fixed[node.id]
        return isinstance(node, ast.Call) and _last(node.func) in _UNCHANGING

    def _is_inert(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return _last(node.func) in _INERT
        return not isinstance(node, ast.GeneratorExp) and not isinstance(node, ast.Name)

    def _is_container(self, node: ast.expr) -> bool:
        """Whether a value at class level is a container, or an object made by a class or function of this file."""
        if isinstance(node, ast.Call):
            name = _last(node.func)
            return name in self._bound[self._tree] and any(
                isinstance(each, ast.ClassDef | ast.FunctionDef) for each in self._bound[self._tree][name]
            )
        return isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)

    def _holds_changing(self, name: str) -> bool:
        """Whether the elements of a module's variable may change too."""
        for value in self._values(self._tree, name):
            if isinstance(value, ast.List | ast.Set | ast.Tuple):
                inner: list[ast.expr] = list(value.elts)
            elif isinstance(value, ast.Dict):
                inner = [*value.values]
            else:
                inner = [value]
            if not all(self._is_fixed(item) for item in inner):
                return True
        return False

    # What is kept

    def kept(self) -> Iterator[_Kept]:
        """Each way in which the file keeps something between calls, repeated for each occurrence."""
        uses: list[tuple[str, bool]] = []
        for node in self._nodes:
            if type(node) not in _KEEPING:
                continue
            if isinstance(node, ast.Global | ast.Nonlocal):
                if isinstance(node, ast.Global) or self._escapes(self._scope_of[node]):
                    yield from (("scope", name) for name in node.names)
            elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                yield from self._changed("attribute", node.value, node)
            elif isinstance(node, ast.Call):
                yield from self._kept_by_call(node)
            elif isinstance(node, ast.Raise):
                yield from self._kept_by_raise(node)
            elif isinstance(node, ast.Name | ast.Attribute) and (name := self._lasting_use(node)):
                uses.append((name, self._only_reads(node)))
            elif isinstance(node, ast.Name | ast.Attribute) and self._is_of_a_library(node):
                yield "outside", _last(node)
            elif isinstance(node, ast.Name) and (name := self._kept_by_a_library(node)):
                yield f"outside, by {name}", name
            elif isinstance(node, ast.Name) and self._is_changing(node):
                yield "object", node.id
            elif isinstance(node, ast.Name) and isinstance(self._parents[node], ast.AugAssign):
                yield from self._changed("object", node, node, called=False)
            if isinstance(node, _Function):
                yield from self._kept_by_definition(node)
        # Code that only reads what the file already keeps gets nothing new.
        changed = {name for name, only_reads in uses if not only_reads or name in self._reactive}
        yield from (("object", name) for name, _ in uses if name in changed)

    def _kept_by_raise(self, node: ast.Raise) -> Iterator[_Kept]:
        """An error that outlives the call keeps its cause, its context and the frames that it is raised in."""
        known = self._lasting if isinstance(node.exc, ast.Name) else self._attributes
        if isinstance(node.exc, ast.Name | ast.Attribute) and _last(node.exc) in known:
            yield from self._changed("object", node.exc, node)

    def _is_changing(self, node: ast.Name) -> bool:
        """Whether a function that changes its argument is used as a value: it may be called under any name."""
        above = self._parents[node]
        if not isinstance(node.ctx, ast.Load) or (isinstance(above, ast.Call) and above.func is node):
            return False
        where = self._scope_with(node.id, self._scope_of[node])
        bound = self._bound[where][node.id] if where is not None else []
        return any(isinstance(each, ast.alias) and each.name in _CHANGING_ARGUMENTS for each in bound)

    def _lasting_use(self, node: ast.Name | ast.Attribute) -> str:
        """The name of a mutable object of a module or a class at a place that uses it; else empty."""
        if isinstance(node, ast.Attribute):
            return node.attr if node.attr in self._own else ""
        own = isinstance(node.ctx, ast.Load) and node.id in self._lasting
        return node.id if own and self._scope_with(node.id, self._scope_of[node]) is self._tree else ""

    def _kept_by_call(self, node: ast.Call) -> Iterator[_Kept]:
        name, changed = _last(node.func), list[ast.expr]()
        functions = [node.func, *self._aliases(node.func, self._scope_of[node])]
        for function in functions:
            if isinstance(function, ast.Attribute) and _CHANGING.match(function.attr):
                changed.append(function.value)
            elif isinstance(function, ast.Attribute) and function.attr == "__init__":
                changed.append(function.value)
                if node.args and _last(node.args[0]) in ("self", "cls"):
                    changed = []  # a class calls that of its base
        names = {_last(function) for function in functions}
        if names & _CHANGING_ARGUMENTS or (changed and _last(changed[0]) in _BUILTINS):
            changed += node.args[:1]  # `list.append(LAST, value)`
        if not isinstance(node.func, ast.Name | ast.Attribute):  # any function
            inner = node.func.args if isinstance(node.func, ast.Call) else []
            changed += [one for one in [*inner, *node.args] if not _is_plain(one)]
        if name in ("setattr", "delattr"):
            changed += node.args[:1]
        if name in self._filling:  # a function of this file that modifies its arguments
            changed += [one for one in [*node.args, *(each.value for each in node.keywords)] if not _is_plain(one)]
        for each in changed:
            yield from self._changed("object", each, node)
        if isinstance(node.func, ast.Name) and any(map(_STORING.match, names)) and name not in _BUILTINS:
            yield from self._changed("object", node.func, node)
        if name in _LEAVING:
            yield "outside", name
        if name == "lru_cache":
            yield "cache", name

    def _aliases(self, function: ast.expr, scope: ast.AST) -> list[ast.expr]:
        """What a name of a function stands for, if imports and assignments say so."""
        found: list[ast.expr] = []
        seen: set[tuple[ast.AST, str]] = set()
        waiting = [(function, scope)]
        for one, inside in waiting:  # grows during the iteration
            where = self._scope_with(one.id, inside) if isinstance(one, ast.Name) else None
            if where is None or not isinstance(one, ast.Name) or (where, one.id) in seen:
                continue
            seen.add((where, one.id))
            imported = [each for each in self._bound[where][one.id] if isinstance(each, ast.alias) and each.asname]
            found += [ast.Name(each.name.rpartition(".")[2], ast.Load()) for each in imported]
            values = list(self._values(where, one.id))
            found += values
            waiting += [(value, where) for value in values]
        return found

    def _kept_by_definition(self, function: _Function) -> Iterator[_Kept]:
        name, decorators = getattr(function, "name", ""), getattr(function, "decorator_list", [])
        defaults = [*function.args.defaults, *(value for value in function.args.kw_defaults if value is not None)]
        if not all(self._is_fixed(value) for value in defaults):
            yield "default", name
        if any(_last(each) in _CACHES - {"lru_cache"} for each in decorators):
            yield "cache", name
        if any(_last(each).lstrip("_")[:1].isupper() for each in decorators):
            yield "object", name  # the class may keep the decorated function or the arguments of its calls

    def _is_of_a_library(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether this is a private name in a module of the standard library, for example of a cache or a registry.

        A frame keeps nothing that its function does not keep, except through the names of its module and of builtins.
        """
        if _last(node) in ("loggerDict", "__warningregistry__", "f_globals", "f_builtins", "f_trace", "__globals__"):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _HOLDING and isinstance(node.ctx, ast.Load):
            return _last(node.value) != "self"
        if isinstance(node, ast.Name) or node.attr == "_getframe":
            return False
        if not node.attr.startswith("_") or not isinstance(node.value, ast.Name):
            return False
        scope = self._scope_with(node.value.id, self._scope_of[node])
        bound = self._bound[scope][node.value.id] if scope is not None else []
        return any(isinstance(each, ast.alias) and each.name in sys.stdlib_module_names for each in bound)

    def _kept_by_a_library(self, node: ast.Name) -> str:
        """The name in the standard library that may keep an argument, at a place that uses it; else empty.

        Examples: a thread keeps its name, a finalizer its arguments, a file its name. A library that keeps something
        through its own functions is not visible in any variable of the patch.
        """
        if not isinstance(node.ctx, ast.Load):
            return ""
        if node.id == "__import__":
            return node.id
        scope = self._scope_with(node.id, self._scope_of[node])
        for each in self._bound[scope][node.id] if scope is not None else ():
            if not isinstance(each, ast.alias):
                continue
            above = self._parents[each]
            if isinstance(above, ast.ImportFrom):
                found = "" if above.level or above.module is None else f"{above.module}.{each.name}"
            else:
                found = each.name if each.asname else node.id
            outer: ast.AST = node
            while isinstance(outer := self._parents[outer], ast.Attribute):
                found += f".{outer.attr}"
            module, _, rest = found.partition(".")
            is_block = isinstance(outer, ast.Call) and isinstance(self._parents[outer], ast.withitem)
            if found and (_may_keep(module, rest) or (rest in _FOR_A_BLOCK and not is_block)):
                return ".".join(found.split(".")[:2])
        return ""

    def _changed(self, kind: str, node: ast.expr, at: ast.AST, *, called: bool = True) -> Iterator[_Kept]:
        """The object that a function changes, if it outlives the call.

        Args:
            called: whether results of functions count, too; most of them are texts and numbers.
        """
        if self._function_of(at) is None:
            return  # code at import time has not received any value of a test
        self._visited.clear()
        root = self._lasting_root(node, self._scope_of[at], called=called)
        if root:
            yield kind, root

    def _lasting_root(self, node: ast.expr, scope: ast.AST, *, of_items: bool = False, called: bool = True) -> str:
        """The name of the object to which an expression belongs, if that outlives a call; else empty.

        Args:
            of_items: whether something in the expression's value is meant instead of the value itself.
            called: see `_changed`.
        """
        while not isinstance(node, ast.Name):
            if special := self._special_method(node):
                return special
            if isinstance(node, ast.Attribute):
                if node.attr in self._attributes or node.attr in self._shared or _SPECIAL.fullmatch(node.attr):
                    return node.attr
                if of_items and node.attr in self._holding:
                    return node.attr
                node, of_items = node.value, True
            elif isinstance(node, ast.Subscript | ast.Starred | ast.Await | ast.NamedExpr):
                of_items = of_items or isinstance(node, ast.Subscript | ast.Starred)
                node = node.value
            elif not called:
                return ""
            elif isinstance(node, ast.Call):
                return self._root_of_result(node, scope, of_items=of_items)
            elif isinstance(node, ast.Lambda):
                return self._lasting_root(node.body, node, of_items=of_items)
            else:
                parts, of_parts = _parts(node, of_items=of_items)
                inner = node if isinstance(node, _COMPREHENSIONS) else scope
                return self._first_root(parts, inner, of_items=of_parts)
        return self._lasting_name(node, scope, of_items=of_items, called=called)

    def _special_method(self, node: ast.expr) -> str:
        """The method by which an expression gets its value, if that may be an object that outlives the call."""
        names: tuple[str, ...] = ()
        if isinstance(node, ast.Subscript):
            names = ("__getitem__", "__class_getitem__", "__missing__")
        elif isinstance(node, ast.Attribute):
            names = ("__getattr__", "__getattribute__")
        elif isinstance(node, ast.Call):
            names = ("__call__",)
        elif isinstance(node, ast.Await):
            names = ("__await__",)
        elif isinstance(node, ast.BinOp | ast.UnaryOp):
            names = tuple(name for name in self._shared if name in _OF_OPERATORS)
        return next((name for name in names if name in self._shared), "")

    def _root_of_result(self, call: ast.Call, scope: ast.AST, *, of_items: bool) -> str:
        """See `_lasting_root`, for what a call returns."""
        given = [*call.args, *(each.value for each in call.keywords if each.arg != "key")]
        function = call.func
        if isinstance(function, ast.Attribute):
            if function.attr in self._shared:
                return function.attr
            root = self._lasting_root(function.value, scope, of_items=True)
            others = given[1:] if function.attr in ("get", "pop", "setdefault") else []
            return root or self._first_root(others, scope, of_items=of_items)
        if not isinstance(function, ast.Name):
            return self._lasting_root(function, scope) if isinstance(function, ast.Lambda) else "a call"
        name, own = function.id, self._scope_with(function.id, scope)
        if name == "type":
            return name
        if name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            return self._lasting_root(ast.Attribute(call.args[0], str(call.args[1].value)), scope, of_items=of_items)
        if name in ("next", "iter") and (special := (self._shared | self._holding) & _OF_ITERATION):
            return min(special)
        if own is None:  # `max([f])`, `list([f])[0]`
            lists = given if of_items or name in _ONE_OF_THEM else [one for one in given if isinstance(one, _DISPLAYS)]
            return self._first_root(lists, scope, of_items=True)
        # A function may return an object that outlives the call; most classes create a new one.
        if name.lstrip("_")[:1].isupper() and not self._may_return_others(name):
            return self._first_root(given, scope, of_items=False) if of_items else ""
        if own is self._tree or not all(isinstance(each, ast.arg | ast.Name) for each in self._bound[own][name]):
            return name
        # A parameter, or a variable: usually a class that an object has as its attribute, or its own class.
        values = [value for value in self._values(own, name) if not isinstance(value, ast.Attribute)]
        is_other = any(_last(value) != "type" for value in values)
        return name if is_other or self._has_lasting_default(name, own) else ""

    def _first_root(self, nodes: Iterable[ast.expr], scope: ast.AST, *, of_items: bool) -> str:
        roots = (self._lasting_root(node, scope, of_items=of_items) for node in nodes)
        return next(filter(None, roots), "")

    def _may_return_others(self, name: str) -> bool:
        """Whether a class of this file can return an existing object when it is called."""
        return any(
            isinstance(each, ast.ClassDef)
            and (
                any(keyword.arg == "metaclass" for keyword in each.keywords)
                or any(_last(base).endswith(("Enum", "Flag")) for base in each.bases)
                or any(isinstance(inner, _Function) and getattr(inner, "name", "") == "__new__" for inner in each.body)
            )
            for each in self._bound[self._tree].get(name, ())
        )

    def _lasting_name(self, node: ast.Name, scope: ast.AST, *, of_items: bool = False, called: bool = True) -> str:
        where = self._scope_with(node.id, scope)
        if where is None and node.id not in _BUILTINS:
            return node.id  # of a module imported by `*`
        if where is self._tree or (isinstance(where, ast.ClassDef) and where is not scope):
            values = [*self._values(where, node.id)]
            is_constant = len(values) == len(self._bound[where][node.id]) and all(map(_is_constant, values))
            return "" if is_constant else node.id
        if where is not None and any(isinstance(each, ast.alias) for each in self._bound[where][node.id]):
            return node.id
        if where is None or (where, node.id, of_items) in self._visited:
            return ""
        self._visited.add((where, node.id, of_items))
        if of_items and any(isinstance(each, ast.ExceptHandler) for each in self._bound[where][node.id]):
            return node.id  # an error may hold anything
        inner = self._function_below(where, scope)
        if (
            self._is_a_class(node.id, where)
            or self._has_lasting_default(node.id, where)
            or (inner is not None and self._escapes(inner))
        ):
            return node.id
        aliases = [value for value in self._values(where, node.id) if not isinstance(value, ast.Constant)]
        above = [self._parents.get(each) for each in self._bound[where][node.id]]
        is_item = any(isinstance(each, _TAKING_ITEMS) for each in above)
        methods = _OF_ITERATION if is_item else frozenset()
        methods |= _OF_BLOCKS if any(isinstance(each, ast.withitem) for each in above) else frozenset()
        if special := (self._shared | self._holding) & methods:
            return min(special)
        of_items = of_items or is_item
        roots = (self._lasting_root(one, where, of_items=of_items, called=called) for one in aliases)
        return next(filter(None, roots), "")

    def _has_lasting_default(self, name: str, function: ast.AST) -> bool:
        if not isinstance(function, _Function):
            return False
        given = function.args
        places = [*given.posonlyargs, *given.args]
        pairs = [*zip(places[::-1], given.defaults[::-1], strict=False)]
        pairs += [(each, value) for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
        return any(
            each.arg == name and (not self._is_fixed(value) or self._is_defined_here(value)) for each, value in pairs
        )

    def _is_defined_here(self, node: ast.expr) -> bool:
        """Whether this is the name of a function or a class of this file, or of an imported object."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias)
        return isinstance(node, ast.Name) and any(
            isinstance(each, kinds) for each in self._bound[self._tree].get(node.id, ())
        )

    def _is_a_class(self, name: str, function: ast.AST) -> bool:
        """Whether a name is the first parameter of a function that receives a class."""
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        first = [*function.args.posonlyargs, *function.args.args][:1]
        home = self._scope_of[function]
        if not first or first[0].arg != name or not isinstance(home, ast.ClassDef):
            return False
        decorated = any(_last(each) == "classmethod" for each in function.decorator_list)
        meta = any(_METACLASS.fullmatch(_last(each)) for each in home.bases)
        return decorated or meta or function.name in _OF_CLASSES

    def _function_of(self, node: ast.AST) -> ast.AST | None:
        """The innermost function that contains a node."""
        scope = self._scope_of[node]
        while not isinstance(scope, _Function):
            if scope is self._tree:
                return None
            scope = self._scope_of[scope]
        return scope

    def _function_below(self, outer: ast.AST, scope: ast.AST) -> ast.AST | None:
        """The function or class directly in `outer` that contains `scope`; None if that is `outer` itself."""
        found: ast.AST | None = None
        while scope is not outer:
            if isinstance(scope, (*_Function.__args__, ast.ClassDef)):
                found = scope
            scope = self._scope_of[scope]
        return found

    def _escapes(self, inner: ast.AST) -> bool:
        """Whether a nested function or class may still be used after the outer function has returned."""
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            above = self._parents[inner]
            return not (isinstance(above, ast.Call) and _last(above.func) in _AT_HAND)
        if inner.decorator_list:
            return True
        home = self._scope_of[inner]
        for node in self._nodes:
            if isinstance(node, ast.Name) and node.id == inner.name and isinstance(node.ctx, ast.Load):
                if self._scope_with(node.id, self._scope_of[node]) is not home:
                    continue
                above = self._parents[node]
                if not isinstance(above, ast.Call) or (above.func is not node and _last(above.func) not in _AT_HAND):
                    return True
        return False

    def _only_reads(self, node: ast.expr) -> bool:
        """Whether a use of a mutable object only reads it."""
        deep = self._holds_changing(node.id) if isinstance(node, ast.Name) else True
        scope = self._scope_of[node]
        while True:
            above = self._parents[node]
            if isinstance(above, ast.Subscript) and above.value is node:
                if not isinstance(above.ctx, ast.Load):
                    return self._function_of(above) is None
                if not deep:
                    return True
            elif isinstance(above, ast.Attribute):
                call = self._parents[above]
                if not isinstance(above.ctx, ast.Load):
                    return self._function_of(above) is None
                if not (isinstance(call, ast.Call) and call.func is above):
                    return False
                if above.attr not in _READING:
                    return self._function_of(call) is None and bool(_CHANGING.match(above.attr))
                if not deep or above.attr not in ("get", "values", "items", "copy"):
                    return True
                above = call
            elif not isinstance(above, ast.Starred | ast.IfExp):
                return self._is_read(node, above, scope)
            node = above

    def _is_read(self, node: ast.expr, above: ast.AST, scope: ast.AST) -> bool:
        if isinstance(above, ast.Call):
            return node is not above.func and _last(above.func) in _READERS
        if isinstance(above, ast.AugAssign):
            return scope is self._tree or above.value is node
        if isinstance(above, ast.Subscript):
            return True  # an index
        if isinstance(above, ast.Assign | ast.AnnAssign):
            return scope is self._tree  # another name at module level, whose uses are checked separately
        if isinstance(above, ast.For | ast.AsyncFor | ast.comprehension):
            return not (isinstance(node, ast.Name) and self._holds_changing(node.id))
        return isinstance(
            above,
            ast.Compare | ast.UnaryOp | ast.BinOp | ast.FormattedValue | ast.If | ast.While | ast.Assert | ast.Dict,
        )


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Call)


def _is_constant(node: ast.expr) -> bool:
    """Whether an expression consists of constants alone, without names, and cannot change."""
    if isinstance(node, ast.BinOp):
        return _is_constant(node.left) and _is_constant(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Tuple) and all(map(_is_constant, node.elts)))


def _parts(node: ast.expr, *, of_items: bool) -> tuple[list[ast.expr], bool]:
    """The expressions whose values an expression may have, or may hold; and whether something in these is meant."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse], of_items
    if isinstance(node, ast.BoolOp):
        return node.values, of_items
    if not of_items:
        return [], False
    if isinstance(node, ast.BinOp):
        return [node.left, node.right], True
    if isinstance(node, _COMPREHENSIONS):
        return [node.value if isinstance(node, ast.DictComp) else node.elt], False
    items = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return [
        *items,
        *(part for one in items if isinstance(one, _DISPLAYS) for part in _parts(one, of_items=True)[0]),
    ], False


def _items(node: ast.expr) -> list[ast.expr]:
    """The items of a container that an expression makes."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("dict", "list", "tuple", "iter")
    ):
        given = [part for one in node.args for part in (_items(one) or [one])]
        return [*given, *(keyword.value for keyword in node.keywords)]
    return _parts(node, of_items=True)[0] if isinstance(node, (*_DISPLAYS, *_COMPREHENSIONS)) else []


def _may_keep(module: str, names: str) -> bool:
    """Whether an object of a module of the standard library may keep its arguments; `names` is dotted."""
    if names.partition(".")[0] in _KEEPING_NAMES.get(module, ()):
        return True
    if module not in _FORGETTING_MODULES and module not in _FORGETTING_NAMES:
        return False  # a new import of such a module counts as a means of forgery
    first, _, rest = names.partition(".")
    if module in _FORGETTING_MODULES:
        other = first.strip("_")  # `logging.threading`, `random._os`
        return other in _FORGETTING_NAMES and _may_keep(other, rest)
    return first not in _FORGETTING_NAMES[module]


def _last(node: ast.expr) -> str:
    """The last name of an expression such as `functools.lru_cache(maxsize=None)`."""
    while isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))
