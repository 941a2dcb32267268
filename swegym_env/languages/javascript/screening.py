"""Screening for JavaScript: how closely a patch is examined, decided by what its added lines can do.

The code under test runs in the process of its tests and can replace everything that they call, so no list of dangerous
names is complete. Instead, there is a list of ordinary things: names of the language and of the files of the
repository, properties with these names, modules of the repository. Means of forgery are all other properties,
properties with a computed name, objects with methods that tests call (`includes`), and changes of objects that all code
shares; nearly all of them can read what the tests expect. The changed file is parsed, so layout, escapes and
concatenated texts hide nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.languages.changed import ChangedFile, MovedLines, kept_lines, read_source, unreadable
from swegym_env.languages.javascript.source import parsed, source_text, string_value, walk
from swegym_env.repo.patches import parse_patch

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["added_means", "script_of"]

_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_VARIABLE = re.compile(r"(?<![.\w$#'\"`])[A-Za-z_$][\w$]*(?!\s*:|[\w$'\"`])")  # neither a property nor a complete text
# Names that give access to the tests, their runner, files, or objects that all code shares; dangerous in any
# repository.
_DANGEROUS = frozenset(
    _NAME.findall("""
        globalThis global eval Function Reflect Proxy Module Worker WebAssembly SharedArrayBuffer Atomics
        FinalizationRegistry MessageChannel BroadcastChannel XMLHttpRequest fetch importScripts currentScript expect
        should chai sinon jest vi vitest mocha Mocha QUnit karma __karma__ jasmine __coverage__ constructor
        __proto__ prototype getPrototypeOf setPrototypeOf defineProperty defineProperties getOwnPropertyNames
        getOwnPropertyDescriptor getOwnPropertyDescriptors getOwnPropertySymbols __defineGetter__ __defineSetter__
        __lookupGetter__ __lookupSetter__ callee caller asymmetricMatch prepareStackTrace captureStackTrace
        stackTraceLimit stack getCallSite getCallSites getBuiltinModule binding _linkedBinding mainModule dlopen
        _load _resolveFilename _extensions _cache _compile createRequire registerHooks syncBuiltinESMExports
        documentElement uncaughtException unhandledRejection __filename __dirname readFile readFileSync readSync
        readlink readlinkSync readdir readdirSync createReadStream openSync
        open opendir opendirSync exec execSync execFile
        execFileSync spawn spawnSync fork runInThisContext runInNewContext runInContext Script fromCharCode
        fromCodePoint atob unescape process require scripts
        """)
)
_ORDINARY = frozenset(
    _NAME.findall("""
        apply bind call caption
        BYTES_PER_ELEMENT Collator DateTimeFormat DisplayNames EOL EPSILON EventEmitter LN10 LN2 LOG10E LOG2E
        ListFormat Locale MAX_SAFE_INTEGER MAX_VALUE MIMEParams MIMEType MIN_SAFE_INTEGER MIN_VALUE
        NEGATIVE_INFINITY NONE NaN NumberFormat PI POSITIVE_INFINITY PluralRules RelativeTimeFormat SQRT1_2 SQRT2
        Segmenter TextDecoder TextEncoder URL URLSearchParams UTC Url abort abs acos acosh activeElement add
        addAbortListener addEventListener addListener all allSettled anchor any append appendChild arch arrayBuffer
        asIntN asUintN asin asinh assign at atan atan2 atanh attribute attributes basename big blink blob blur body
        bodyUsed bold bottom bubbles buffer button byteLength byteOffset bytes cache canParse cancelBubble
        cancelable catch cbrt ceil charAt charCodeAt checked childNodes children classList className clear click
        clientHeight clientWidth clientX clientY clone cloneNode clz32 code codePointAt compare composed
        composedPath concat contains copy copyBytesFrom copyWithin cos cosh create createDocumentFragment
        createElement createElementNS createObjectURL createTextNode credentials currentTarget data dataset decode
        defaultMaxListeners defaultPrevented defaultProps defaultValue delete delimiter deprecate destination
        dirname disabled dispatchEvent domainToASCII domainToUnicode done dotAll duplex emit encode
        encodeInto encoding endianness endsWith entries equals error escape eventNames eventPhase every exec exp
        expm1 extname fatal fileURLToPath fill filter finally find findIndex findLast findLastIndex firstChild fixed
        flags flat flatMap floor focus fontcolor fontsize forEach formData format formatRange formatRangeToParts
        formatToParts formatWithOptions freeze from fromEntries fround get getAll getAttribute getBigInt64
        getBigUint64 getBoundingClientRect getCanonicalLocales getDate getDay getElementById getEventListeners
        getFloat32 getFloat64 getFullYear getHours getInt16 getInt32 getInt8 getMaxListeners getMilliseconds
        getMinutes getMonth getSeconds getSetCookie getTime getTimezoneOffset getUTCDate getUTCDay getUTCFullYear
        getUTCHours getUTCMilliseconds getUTCMinutes getUTCMonth getUTCSeconds getUint16 getUint32 getUint8 getYear
        has hasAttribute hasIndices hasOwn hasOwnProperty hash head headers height host href hypot id ignoreBOM
        ignoreCase imul includes indexOf inherits initEvent innerHTML input insertBefore inspect integrity is
        isAbsolute isArray isBoolean isBuffer isDate isDeepStrictEqual isEncoding isError isExtensible isFinite
        isFrozen isFunction isInteger isNaN isNull isNullOrUndefined isNumber isObject isPrimitive isPrototypeOf
        isRegExp isReloadNavigation isSafeInteger isSealed isString isSymbol isTrusted isUndefined isView
        isWellFormed italics join json keepalive key keyCode keys lastChild lastIndexOf left length listenerCount
        listeners localeCompare log log10 log1p log2 map match matchAll matchesGlob max maxByteLength message method
        min mode multiline name next nextSibling nodeName nodeType nodeValue normalize now of off offset
        offsetHeight offsetWidth ok on onabort once options origin outerHTML padEnd padStart pageX pageY parent
        parentElement parentNode parse parseFloat parseInt password pathToFileURL pathname platform pop port posix
        pow prependListener prependOnceListener preventDefault preventExtensions previousSibling promisify
        propertyIsEnumerable props protocol push querySelector querySelectorAll race random raw rawListeners reason
        redirect redirected reduce reduceRight ref referrer referrerPolicy reject relative release remove
        removeAllListeners removeAttribute removeChild removeEventListener removeListener render repeat replace
        replaceAll replaceChild resizable resize resolve resolveObject resolvedOptions return returnValue reverse
        revokeObjectURL right round scrollLeft scrollTop seal search searchParams select selectRange selected
        selectedIndex sep set setAttribute setBigInt64 setBigUint64 setDate setFloat32 setFloat64 setFullYear
        setHours setInt16 setInt32 setInt8 setMaxListeners setMilliseconds setMinutes setMonth setSeconds setTime
        setUTCDate setUTCFullYear setUTCHours setUTCMilliseconds setUTCMinutes setUTCMonth setUTCSeconds setUint16
        setUint32 setUint8 setYear shift sign signal sin sinh size slice small some sort source splice split sqrt
        srcElement startsWith state status statusText sticky stopImmediatePropagation stopPropagation stream strike
        stringify stripVTControlCharacters style sub subarray substr substring sup supportedLocalesOf
        supportedValuesOf tagName tan tanh target test text textContent then throw throwIfAborted timeStamp timeout
        title toDateString toExponential toFixed toGMTString toISOString toJSON toLocaleDateString toLocaleLowerCase
        toLocaleString toLocaleTimeString toLocaleUpperCase toLowerCase toNamespacedPath toPrecision toReversed
        toSorted toSpliced toString toTimeString toUSVString toUTCString toUpperCase toWellFormed top trim trimEnd
        trimLeft trimRight trimStart trunc type types unicode unicodeSets unshift url urlToHttpOptions username
        value valueOf values version which width win32 with write x y
        """)
)
_GLOBALS = frozenset(
    _NAME.findall("""
        AbortController AbortSignal AggregateError Array ArrayBuffer BigInt BigInt64Array BigUint64Array Blob
        Boolean Buffer CustomEvent DOMException DataView Date Error EvalError Event EventTarget File Float32Array
        Float64Array FormData Headers Infinity Int16Array Int32Array Int8Array Intl JSON Map Math NaN Number Object
        Promise RangeError ReadableStream ReferenceError RegExp Request Response Set String SyntaxError TextDecoder
        TextEncoder TypeError URIError URL URLSearchParams Uint16Array Uint32Array Uint8Array Uint8ClampedArray
        WeakMap WeakRef WeakSet btoa clearImmediate clearInterval clearTimeout console crypto decodeURI
        decodeURIComponent encodeURI encodeURIComponent escape isFinite isNaN parseFloat parseInt performance
        queueMicrotask setImmediate setInterval setTimeout structuredClone undefined arguments document window
        navigator location requestAnimationFrame Node Element HTMLElement Symbol exports
        """)
)
_BUILTINS = frozenset(
    _NAME.findall("""
        Object Array String Number Boolean JSON Math Promise Error RegExp Map Set Date Symbol Node Element
        HTMLElement Document EventTarget Buffer Intl Int8Array Uint8Array console document window
        """)
)
_MODULES = frozenset(
    _NAME.findall("""
        path util url querystring events buffer punycode string_decoder os stream timers crypto
        """)
)
# Members of `process` that end it or print: they cannot read what the tests expect.
_PROCESS = frozenset(
    _NAME.findall("""
        env argv exit exitCode on once off addListener removeListener removeAllListeners listeners stdout stderr
        stdin nextTick cwd platform version versions pid hrtime emitWarning arch uptime memoryUsage abort kill
        reallyExit execArgv execPath title
        """)
)
# Dangerous as members of other objects, but ordinary as keys of an object.
_KEYS = frozenset(_NAME.findall("process require scripts global open exec fork stack Script Module"))
# Methods that tests call: an object with its own method of this name decides the result.
_ANSWERING = frozenset(
    _NAME.findall("""
        includes indexOf lastIndexOf startsWith endsWith match matchAll test search exec has hasOwnProperty contains
        equals isEqual deepEqual some every
        """)
)
_TAKING_CALLBACKS = frozenset(
    _NAME.findall("""
        forEach map filter reduce reduceRight some every find findIndex findLast findLastIndex flatMap sort from
        """)
)
_WINDOWS = frozenset(_NAME.findall("self top frames parent opener gc root"))
_TEST_CALLS = frozenset(
    _NAME.findall("""
        it test specify describe before after beforeEach afterEach beforeAll afterAll suite
        """)
)
_DATA = (
    ".md",
    ".json",
    ".css",
    ".scss",
    ".less",
    ".txt",
    ".html",
    ".svg",
    ".yml",
    ".yaml",
    ".snap",
    ".rst",
    ".map",
    ".lock",
)
_SOURCES = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte")
_PLACES = re.compile(r"/proc\b|/dev/|/sys/|\.\./(?:tests?|__tests__|spec)\b|(?:\A|/)(?:tests?|__tests__|spec)/")
_CODE = re.compile(r"\breturn\s+(this|process|globalThis)\b|\brequire\s*\(|\bimport\s*\(")
_PLAIN_WORDS = frozenset(
    _NAME.findall("open exec process stack scripts should global fork binding require fetch expect Script")
)
_ARITHMETIC = frozenset(("-", "*", "/", "%", "**", "<<", ">>", ">>>", "&", "|", "^"))
_OWN_MODULE = re.compile(
    r"(\.\.?/?|/[\w@-]+(\.(js|jsx|mjs|cjs|ts|tsx|mts|cts|json|vue|css|scss|[a-z]+\.[jt]s))?|/[\w-]+\.[\w-]+)\Z"
)
_TEST_MODULE = re.compile(r"(^|/)(tests?|__tests__|spec)(/|$)|\.(test|spec)\b|\.(txt|md|html|node|wasm)\Z")
# Packages that read files, or run programs or tests.
_READING_MODULE = re.compile(
    r"fs|fs-extra|graceful-fs|glob|globby|fast-glob|child_process|module|vm|v8|process|worker_threads|inspector|repl|test"
    r"|async_hooks|cluster|perf_hooks|diagnostics_channel|trace_events|wasi|readline|jest[-\w]*|@jest/.*|mocha|chai[-\w]*"
    r"|vitest|@vitest/.*|expect|sinon|should|qunit|karma|ava|tap|jasmine[-\w]*|execa|cross-spawn|shelljs|proxyquire|rewire"
)
_KEYED = ("method_definition", "pair", "public_field_definition", "property_signature", "method_signature")
_FUNCTIONS = ("function_expression", "function_declaration", "generator_function", "generator_function_declaration")
_NOT_OF_PRODUCT = ("node_modules", "test", "tests", "__tests__", "spec", "dist")
_LONG_LINE, _REPOSITORY = 2000, 1 << 25


def added_means(patch: str, base: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The means of forgery that a patch adds: those that cannot read what the tests expect, and those that may."""
    forging: set[str] = set()
    reading: set[str] = set()
    files: list[_File] = []
    for section in parse_patch(patch):
        if "GIT binary" in section.text or "\nnew mode" in section.header or "mode 120000" in section.header:
            reading.add(unreadable("binary, link or mode", section.text))
        if section.new_path is None or section.new_path.endswith(_DATA):
            continue
        text = ChangedFile.of(section, base)
        if text is None:
            reading.add(unreadable("a hunk that does not fit", section.text))
            continue
        lines = text.after.split("\n")
        if any(number in text.added and len(line) > _LONG_LINE for number, line in enumerate(lines, 1)):
            reading.add(unreadable("a long line", section.text))
            continue
        files.append(_File(text, base))
    # A file of the patch may use what another one defines.
    names = frozenset().union(*(file.declared | file.keys for file in files))
    for file in files:
        found = file.means(names)
        forging |= found[0]
        reading |= found[1]
    return frozenset(forging), frozenset(reading)


def script_of(path: str, source: str) -> str:
    """The code of a file; for a component, the content of its script tags, with the same line numbers."""
    if not path.endswith((".vue", ".svelte")):
        return source
    gaps = r"(?s)(\A|</script>).*?(<script[^>]*>|\Z)"
    return re.sub(gaps, lambda gap: re.sub(r"[^\n]", " ", gap[0]), source)


class _File:
    """The means in one changed file."""

    def __init__(self, text: ChangedFile, base: Path) -> None:
        self.text = text
        self.base = base
        self.forging: set[str] = set()
        self.reading: set[str] = set()
        self.before = frozenset(_NAME.findall(text.before))
        self.root = root = parsed(text.path, script_of(text.path, text.after))
        self.declared = frozenset(_declared(root))
        self.keys = frozenset(_keys(root))
        self.classes = frozenset(
            source_text(node.child_by_field_name("name"))
            for node in walk(root)
            if node.type in ("class_declaration", "function_declaration")
        )
        self.loops = frozenset(_loop_names(root))
        self.constants = frozenset(_constant_names(root))
        self.of_patch = frozenset[str]()
        self.fresh = self._fresh(text.after.split("\n"))

    def means(self, names: frozenset[str]) -> tuple[set[str], set[str]]:
        """The means, if the files of the patch define `names`."""
        self.of_patch = names
        was_broken = parsed(self.text.path, self.text.before).has_error
        for node in walk(self.root):
            if node.type == "ERROR" and not was_broken and any(self._is_fresh(one) for one in (node, *node.children)):
                self.reading.add(unreadable("code that cannot be parsed", self.text.after))
            if self._is_fresh(node):
                self._look(node)
        return self.forging, self.reading

    def _fresh(self, lines: list[str]) -> set[int]:
        """The numbers of added lines, without those that stay in their function or that only move in the file."""
        kept = self._renamed() if self.text.before else set()
        moved = MovedLines(map(str.strip, self.text.removed), (lines[number - 1].strip() for number in kept))
        return {number for number in sorted(self.text.added - kept) if not moved.take(lines[number - 1].strip())}

    def _renamed(self) -> set[int]:
        """The numbers of added lines that their function already had as often, ignoring the names of its variables."""
        before = _named_lines(parsed(self.text.path, self.text.before), self.text.before)
        return kept_lines(before, _named_lines(self.root, self.text.after), self.text.added)

    def _is_fresh(self, node: Node) -> bool:
        return node.start_point[0] + 1 in self.fresh

    def _look(self, node: Node) -> None:
        kind = node.type
        if kind in ("identifier", "shorthand_property_identifier"):
            self._identifier(node, source_text(node))
        elif kind in ("property_identifier", "shorthand_property_identifier_pattern", "private_property_identifier"):
            self._property(node, _unescaped(source_text(node)).removeprefix("#"))
        elif kind in ("subscript_expression", "computed_property_name"):
            self._computed(node)
        elif kind in ("string", "template_string", "binary_expression"):
            joined = _joined(node)
            if joined is not None:
                self._text(node, joined)
        elif kind == "call_expression":
            self._call(node)
        elif kind == "this":
            self._this(node)
        elif kind in ("meta_property", "with_statement", "debugger_statement", "hash_bang_line"):
            self.reading.add(f"{kind} {source_text(node)[:20]}")
        elif kind in ("assignment_expression", "augmented_assignment_expression"):
            self._assignment(node)

    def _identifier(self, node: Node, raw: str) -> None:
        name = _unescaped(raw)
        if name != raw:
            self.reading.add(f"the escaped name {name}")
        above = node.parent
        member: Node | None = None
        if above is not None and above.type == "member_expression" and _is(above, "object", node):
            member = above
        called = member if member is not None else node
        is_called = called.parent is not None and _is(called.parent, "function", called)
        if name == "require":
            self._require(node)
        elif name in ("process", "console", "module", "assert", "Symbol"):
            self._known(
                name, source_text(member.child_by_field_name("property")) if member is not None else "", node, is_called
            )
        elif name in _TEST_CALLS:
            if is_called and name not in self.declared and member is None:
                self.forging.add(f"{name}()")
        elif name in _DANGEROUS or (name in _WINDOWS and name not in self.declared):
            self.reading.add(name)

    def _known(self, name: str, attribute: str, node: Node, is_called: bool) -> None:
        """A name that is dangerous depending on which member is used."""
        if name == "process":
            is_mode = re.match(
                r"process\.env\.NODE_ENV\b", self.text.after.encode()[node.start_byte :][:40].decode("utf-8", "replace")
            )
            if not is_mode:
                (self.forging if attribute in _PROCESS else self.reading).add(f"process.{attribute}")
        elif name == "console":
            (self.forging if attribute and is_called else self.reading).add(f"console.{attribute}")
        elif name == "module":
            if attribute != "exports" and name not in self.declared:
                self.reading.add(f"module.{attribute}")
        elif name == "Symbol":
            if attribute not in ("", "iterator", "asyncIterator", "for"):
                self.reading.add(f"Symbol.{attribute}")
        else:
            kinds = ("variable_declarator", "import_clause", "namespace_import")
            is_declared = node.parent is not None and node.parent.type in kinds
            (self.forging if is_called or is_declared else self.reading).add(
                f"{name}{'' if is_called else ' as a value'}"
            )

    def _require(self, node: Node) -> None:
        call = node.parent
        is_called = call is not None and call.type == "call_expression" and _is(call, "function", node)
        argument = _arguments(call)[:1] if is_called else []
        module = string_value(argument[0]) if argument else None
        if module is None:
            self.reading.add("require without a name")
        else:
            self._module(module)

    def _property(self, node: Node, name: str) -> None:
        above = node.parent
        if name == "prototype":
            self._prototype(node)
            return
        owner = above.child_by_field_name("object") if above is not None else None
        if re.match(r"(process|console)\b", source_text(owner)):
            return  # checked together with its object
        is_key = above is not None and (_is(above, "key", node) or _is(above, "name", node))
        is_defined = is_key and above is not None and above.type in _KEYED
        if above is not None and above.type == "jsx_attribute":
            return
        if is_defined and name in _ANSWERING and name not in self.before:
            self.reading.add(f"a {name} of its own")
        if is_defined and name in (*_KEYS, "constructor"):
            return
        if name == "exec" and above is not None:
            self._exec(above)
        elif name in _DANGEROUS:
            self.reading.add(f".{name}")
        elif not (is_defined or self._is_ordinary(name)):
            self.reading.add(f"the property {name}")

    def _is_ordinary(self, name: str) -> bool:
        known = name in _ORDINARY or name in self.declared or name in self.of_patch or name in self.before
        return known or name in _words_of(str(self.base))

    def _exec(self, member: Node) -> None:
        """`pattern.exec(text)` is ordinary, unless the object is a module or unknown."""
        owner = member.child_by_field_name("object")
        if owner is None or not (
            owner.type == "regex" or re.search(r"(?i)re\Z|regexp?|pattern|rx", source_text(owner))
        ):
            self.reading.add(".exec")

    def _prototype(self, node: Node) -> None:
        """`Array.prototype.slice.call(…)` is ordinary, as is `Thing.prototype.method = …` for a class of the file."""
        member = node.parent
        if member is None or member.type != "member_expression":
            self.reading.add(".prototype as a name")
            return
        owner, method = member.child_by_field_name("object"), member.parent
        name = source_text(owner)
        is_own = name not in _BUILTINS and (name in self.classes or f"{name}.prototype" in self.text.before)
        if method is None or method.type != "member_expression" or not _is(method, "object", member):
            if not is_own:
                self.reading.add(f"{source_text(member)[:60]} as a value")
            return
        attribute = source_text(method.child_by_field_name("property"))
        outer = method.parent
        if outer is not None and outer.type == "assignment_expression" and _is(outer, "left", method):
            if not is_own:
                self.reading.add(f"{source_text(method)[:60]} =")
            elif attribute in _ANSWERING and attribute not in self.before:
                self.reading.add(f"a {attribute} of its own")
            return
        is_taken = outer is not None and outer.type == "member_expression" and _is(outer, "object", method)
        called = source_text(outer.child_by_field_name("property")) if is_taken and outer is not None else ""
        if not is_own and called not in ("call", "apply", "bind"):
            self.reading.add(f"{source_text(method)[:60]} as a value")

    def _assignment(self, node: Node) -> None:
        left = node.child_by_field_name("left")
        owner = left.child_by_field_name("object") if left is not None else None
        if left is None or owner is None:
            return
        name, attribute = source_text(owner), source_text(left.child_by_field_name("property"))
        if name in _BUILTINS and name not in self.declared:
            self.reading.add(f"{name}.… =")
        if attribute in _ANSWERING and attribute not in self.before:
            self.reading.add(f"a {attribute} of its own")

    def _call(self, node: Node) -> None:
        """A text that a call joins, and changes of shared objects: `Object.assign(Array, …)`."""
        function = node.child_by_field_name("function")
        given = _arguments(node)
        joined = _joined(node)
        if joined is not None:
            self._text(node, joined)
        if function is None:
            return
        if function.type == "import":
            module = string_value(given[0]) if given else None
            if module is None:
                self.reading.add("import without a name")
            else:
                self._module(module)
        elif source_text(function) == "Object.assign" and given and given[0].type not in ("object", "this"):
            name = source_text(given[0])
            if name in _BUILTINS or not (_NAME.fullmatch(name) or re.fullmatch(r"(module\.)?exports|this\.\w+", name)):
                self.reading.add(f"Object.assign of {name[:40]}")

    def _this(self, node: Node) -> None:
        """`this` in a plain function may be the global object: `(function () { return this; })()`."""
        above = node.parent
        if above is not None and above.type in ("member_expression", "subscript_expression"):
            return
        here: Node | None = node
        while here is not None and here.type not in (*_FUNCTIONS, "method_definition", "class_body"):
            here = here.parent
        if here is None or here.type in ("method_definition", "class_body"):
            return
        outer = here.parent.type if here.parent is not None else ""
        known = "this" in self.before
        if here.type.endswith("declaration"):
            is_plain = not (known or source_text(here.child_by_field_name("name"))[:1].isupper())
        else:
            is_plain = outer not in ("assignment_expression", "pair") and not (outer == "arguments" and known)
        if is_plain:
            self.reading.add("this of a function")

    def _computed(self, node: Node) -> None:
        """A computed property name; harmless are numbers, loop variables, constants, and names already in the file."""
        is_key = node.type == "computed_property_name"
        index = node.named_children[0] if is_key else node.child_by_field_name("index")
        if index is None or self._is_plain_index(index):
            return
        text = source_text(index)[:60]
        if _NAME.fullmatch(text):
            value = node.parent.child_by_field_name("value") if is_key and node.parent is not None else None
            if f"[{text}]" in self.text.before or (value is not None and "function" not in value.type):
                return
        self.reading.add(f"[{text}]")

    def _is_plain_index(self, node: Node) -> bool:
        kind, inner = node.type, node.named_children
        found = kind in (
            "number",
            "string",
            "true",
            "false",
            "null",
            "update_expression",
        )  # texts are checked separately
        if kind == "template_string":
            found = string_value(node) is not None
        elif kind == "identifier":
            found = source_text(node) in self.loops or source_text(node) in self.constants
        elif kind in ("parenthesized_expression", "ternary_expression"):
            found = all(self._is_plain_index(child) for child in (inner[1:] if kind[0] == "t" else inner))
        elif kind == "member_expression":
            found = bool(re.search(r"\.(length|size)\Z|\ASymbol\.(async)?[iI]terator\Z", source_text(node)))
        elif kind == "unary_expression":
            found = node.children[0].type in ("-", "+", "~")
        elif kind == "binary_expression" and len(node.children) == 3:
            is_sum = node.children[1].type == "+"
            found = any(child.type == "number" for child in inner) if is_sum else node.children[1].type in _ARITHMETIC
        return found

    def _text(self, node: Node, text: str) -> None:
        """A text that contains a dangerous name, or names tests."""
        above = node.parent
        if above is not None and above.type in ("import_statement", "export_statement"):
            self._module(text)
            return
        if above is not None and above.type == "arguments" and _is_required(above):
            return
        is_name = above is not None and above.type in ("subscript_expression", "array", "variable_declarator")
        is_dangerous = text in _DANGEROUS and (text not in _PLAIN_WORDS or is_name)
        if is_dangerous or _PLACES.search(text) or _CODE.search(text):
            self.reading.add(f"the text {text[:60]}")
        elif is_name and text in _ANSWERING and text not in self.before:
            self.reading.add(f"the text {text}")

    def _module(self, module: str) -> None:
        if module.startswith("."):
            if not _OWN_MODULE.search(module) or _TEST_MODULE.search(module):
                self.reading.add(f"the module {module}")
            return
        name = module.removeprefix("node:").split("/")
        package = "/".join(name[:2]) if module.startswith("@") else name[0]
        if package == "assert":
            self.forging.add("the module assert")
        elif package not in _MODULES and (
            package not in _packages_of(str(self.base)) or _READING_MODULE.fullmatch(package)
        ):
            self.reading.add(f"the module {module}")


def _named_lines(root: Node, source: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Number of each line in a named function → the function and the line, without the names of its variables."""
    lines = source.split("\n")
    for node in walk(root):
        name = _name_of(node)
        if not name:
            continue
        known = frozenset(_declared(node)) - {name} - _DANGEROUS - _ANSWERING - _GLOBALS
        for number in range(node.start_point[0], node.end_point[0] + 1):
            yield number + 1, (name, _without_names(lines[number].strip(), known))


def _without_names(line: str, names: frozenset[str]) -> str:
    return _VARIABLE.sub(lambda word: "_" if word[0] in names else word[0], line)


def _name_of(node: Node) -> str:
    """The name of a function, or of the variable to which it is assigned."""
    if node.type in ("function_declaration", "method_definition", "generator_function_declaration"):
        return source_text(node.child_by_field_name("name"))
    if node.type in ("arrow_function", "function_expression") and node.parent is not None:
        field = {"variable_declarator": "name", "pair": "key", "assignment_expression": "left"}.get(
            node.parent.type, ""
        )
        return source_text(node.parent.child_by_field_name(field)) if field else ""
    return ""


def _is_required(arguments: Node) -> bool:
    return arguments.parent is not None and source_text(arguments.parent.child_by_field_name("function")) == "require"


@lru_cache(maxsize=16)
def _packages_of(base: str) -> frozenset[str]:
    """The packages that the repository depends on, and those that it contains, in a workspace."""
    found: set[str] = set()
    for directory, folders, names in os.walk(base):
        folders[:] = sorted(name for name in folders if name[:1] != "." and name not in _NOT_OF_PRODUCT)
        if "package.json" in names:
            text = read_source(Path(directory, "package.json")) or ""
            found.update(re.findall(r'"((?:@[\w.-]+/)?[\w.-]+)"\s*:', text))
            found.update(re.findall(r'"name"\s*:\s*"([^"]+)"', text))
    return frozenset(found)


@lru_cache(maxsize=16)
def _words_of(base: str) -> frozenset[str]:
    """The names in the sources of a repository, without its tests and packages."""
    found: set[str] = set()
    total = 0
    for directory, folders, names in os.walk(base):
        folders[:] = sorted(name for name in folders if name[:1] != "." and name not in _NOT_OF_PRODUCT)
        for name in sorted(names):
            if total > _REPOSITORY or not name.endswith(_SOURCES):
                continue
            text = read_source(Path(directory, name)) or ""
            total += len(text)
            found.update(_NAME.findall(text))
    return frozenset(found)


def _unescaped(name: str) -> str:
    return re.sub(r"\\u\{?([0-9a-fA-F]+)\}?", lambda match: chr(min(int(match[1], 16), 0x10FFFF)), name)


def _is(above: Node, field: str, node: Node | None) -> bool:
    return node is not None and above.child_by_field_name(field) == node


def _arguments(call: Node | None) -> list[Node]:
    arguments = call.child_by_field_name("arguments") if call is not None else None
    return list(arguments.named_children) if arguments is not None else []


def _joined(node: Node) -> str | None:
    """The text that results from joined constants (`+`, `join`, `concat`); None if other values are involved."""
    if node.type == "parenthesized_expression":
        return _joined(node.named_children[0])
    if node.type in ("string", "template_string"):
        return string_value(node)
    if node.type == "binary_expression" and len(node.children) == 3 and node.children[1].type == "+":
        parts = [_joined(child) for child in node.named_children]
        return None if None in parts else "".join(part or "" for part in parts)
    function = node.child_by_field_name("function") if node.type == "call_expression" else None
    if function is None or function.type != "member_expression":
        return None
    owner, name = function.child_by_field_name("object"), source_text(function.child_by_field_name("property"))
    if owner is None or name not in ("join", "concat"):
        return None
    pieces = [*owner.named_children] if owner.type == "array" else [owner]
    pieces += _arguments(node) if name == "concat" else []
    parts = [_joined(piece) for piece in pieces]
    separators = [string_value(piece) or "" for piece in _arguments(node)] if name == "join" else [""]
    return None if None in parts else (separators or [","])[0].join(part or "" for part in parts)


def _declared(root: Node) -> Iterator[str]:
    """The names that a file declares: variables, parameters, functions, classes, imports."""
    for node in walk(root):
        if node.type in ("identifier", "shorthand_property_identifier_pattern"):
            above = node.parent
            while above is not None and above.type in (
                *("object_pattern", "array_pattern", "pair_pattern", "rest_pattern", "assignment_pattern"),
                *("object_assignment_pattern", "import_specifier", "named_imports", "namespace_import"),
            ):
                node, above = above, above.parent
            if above is None:
                continue
            if above.type in (
                "required_parameter",
                "optional_parameter",
                "formal_parameters",
                "import_clause",
                "catch_clause",
            ):
                is_declared = above.type not in ("required_parameter", "optional_parameter") or _is(
                    above, "pattern", node
                )
            elif above.type in (
                "variable_declarator",
                *_FUNCTIONS,
                "class_declaration",
                "enum_declaration",
                "labeled_statement",
            ):
                is_declared = _is(above, "name", node) or _is(above, "label", node)
            elif above.type == "arrow_function":
                is_declared = _is(above, "parameter", node)
            else:
                is_declared = above.type == "for_in_statement" and _is(above, "left", node)
            if is_declared:
                yield from _names_in(node)
        elif node.type == "type_identifier" and node.parent is not None and _is(node.parent, "name", node):
            yield source_text(node)


def _keys(root: Node) -> Iterator[str]:
    """The names of properties that a file gives to its own objects."""
    for node in walk(root):
        above = node.parent
        if node.type in ("property_identifier", "private_property_identifier") and above is not None:
            is_set = above.type == "member_expression" and above.parent is not None and _is(above.parent, "left", above)
            is_set = is_set and above.parent is not None and above.parent.type == "assignment_expression"
            if is_set or (above.type in _KEYED and (_is(above, "key", node) or _is(above, "name", node))):
                yield source_text(node).removeprefix("#")


def _names_in(pattern: Node) -> Iterator[str]:
    for node in walk(pattern):
        if node.type in ("identifier", "shorthand_property_identifier_pattern"):
            yield source_text(node)


def _loop_names(root: Node) -> Iterator[str]:
    """The variables of loops, and the parameters of functions passed to methods of arrays (`map`)."""
    for node in walk(root):
        if node.type == "for_in_statement":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if left is not None and _is_known_list(right):
                yield from _names_in(left)
        elif node.type == "for_statement" and (initial := node.child_by_field_name("initializer")) is not None:
            for child in initial.named_children:
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None and (value is None or value.type in _COUNTS):
                    yield source_text(name)
        elif node.type == "call_expression":
            yield from _callback_names(node)


def _callback_names(call: Node) -> Iterator[str]:
    function = call.child_by_field_name("function")
    if function is None or source_text(function.child_by_field_name("property")) not in _TAKING_CALLBACKS:
        return
    if not _is_known_list(function.child_by_field_name("object")):
        return
    for callback in _arguments(call):
        if callback.type in ("arrow_function", "function_expression"):
            for field in ("parameters", "parameter"):
                if (inner := callback.child_by_field_name(field)) is not None:
                    yield from _names_in(inner)


_COUNTS = ("number", "binary_expression", "member_expression")


def _is_known_list(node: Node | None) -> bool:
    """Whether a list is not a literal that contains computed names."""
    return (
        node is None or node.type != "array" or all(child.type in ("string", "number") for child in node.named_children)
    )


def _constant_names(root: Node) -> Iterator[str]:
    """The constants whose value is a number or a text."""
    for node in walk(root):
        if node.type == "lexical_declaration" and node.children[0].type == "const":
            for child in node.named_children:
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if (
                    name is not None
                    and value is not None
                    and value.type in ("string", "number")
                    and name.type == "identifier"
                ):
                    yield source_text(name)
