/* Sends the values that hidden tests compare out of the sandbox (see languages/javascript/blind.py).
 *
 * It runs in the process of the code under test, and need not be trusted: it does not know the expected values. A record
 * is one line of JSON, as grading/comparisons.py reads it. SWEGYM is replaced by a random name in each rewriting. */
function SWEGYM(key, value, how) {
  if (how === 'watched') return SWEGYMwatched(key, value);
  let sent = value;
  if (how === 'truth') sent = !!sent;
  if (how === 'text' && typeof sent !== 'object') sent = String(sent);
  if (how === 'number' && typeof sent !== 'object') sent = Number(sent);
  if (how === 'searched' && sent instanceof Set) sent = Array.from(sent);
  if (how === 'error' && sent) sent = String(sent[0]);
  if (how === 'message' && sent) sent = String(sent[0] && sent[0].message);
  if ((how === 'name' || how === 'code') && sent) sent = sent[0] && sent[0][how];
  if (how === 'class' && sent) sent = SWEGYMclass(sent[0]);
  if (how === 'classes' && sent) sent = SWEGYMclasses(Object.getPrototypeOf(Object(sent[0])));
  if (how === 'calls') sent = SWEGYMcalls(sent);
  if (how === 'count') sent = (SWEGYMcalls(sent) || { length: null }).length;
  if (how === 'last call') sent = (SWEGYMcalls(sent) || []).slice(-1)[0];
  if (how === 'bases') sent = typeof sent === 'function' ? SWEGYMclasses(sent.prototype) : null;
  const own = Array.of();
  const record = [key, null, SWEGYMpacked(sent, how, 0, own), ['', '', ''], own.slice(0, 200)];
  @FILES@.appendFileSync('@OUTPUT@', JSON.stringify(record) + '\n');
  return value;
}

/* The error that a function throws, in a list; null if it throws none. */
function SWEGYMthrown(call) {
  try {
    call();
  } catch (error) {
    return [error];
  }
  return null;
}

/* Sends the error with which a promise, or the promise of a function, is rejected. */
function SWEGYMrejected(key, call, how) {
  const made = Promise.resolve().then(() => (typeof call === 'function' ? call() : call));
  return made.then(() => SWEGYM(key, null, how), (error) => SWEGYM(key, [error], how));
}

/* Returns the same function or promise, and sends the classes of the error with which it ends. */
function SWEGYMwatched(key, call) {
  if (call instanceof Promise) {
    SWEGYMrejected(key, call, 'classes');
    return call;
  }
  if (typeof call !== 'function') return call;
  return () => {
    const [made, error] = SWEGYMcalled(call);
    if (made instanceof Promise) return SWEGYMwatched(key, made);
    SWEGYM(key, error, 'classes');
    if (error) throw error[0];
    return made;
  };
}

/* The result of a function, and the error that it throws in a list, or null. */
function SWEGYMcalled(call) {
  try {
    return [call(), null];
  } catch (error) {
    return [null, [error]];
  }
}

/* The arguments of each call of a spy of Jest, Vitest, Node.js, Sinon or Jasmine; null for anything else. */
function SWEGYMcalls(spy) {
  const { mock, args, calls } = Object(spy);
  if (mock && Array.isArray(mock.calls)) {
    return Array.from(mock.calls, SWEGYMgiven);
  }
  if (Array.isArray(args)) return args;
  return calls && typeof calls.allArgs === 'function' ? calls.allArgs() : null;
}

function SWEGYMgiven(call) {
  return Array.isArray(call) ? call : Array.from(call.arguments);
}

/* The names of the classes of an object with this prototype. */
function SWEGYMclasses(prototype) {
  const found = [];
  for (let here = prototype; here && found.length < 20; here = Object.getPrototypeOf(here)) {
    const own = Object.getOwnPropertyDescriptor(here, 'constructor');
    found.push(String(own && typeof own.value === 'function' && own.value.name));
  }
  return found;
}

/* The builtin class of an error, by its chain of prototypes; null if it has none. */
function SWEGYMclass(error) {
  const kinds = [TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError, Error];
  for (let here = Object(error), depth = 0; here && depth < 100; depth += 1) {
    const found = kinds.find((kind) => here === kind.prototype);
    if (found) return found.name;
    here = Object.getPrototypeOf(here);
  }
  return null;
}

/* The methods that an object has and others of its kind do not: they may decide what is compared. */
function SWEGYMmethods(value, own) {
  const kinds = [Object, Array, String, Number, Boolean, Error, Map, Set, Date, RegExp, Promise, Function];
  for (let here = value, depth = 0; here && depth < 8 && own.length < 200; depth += 1) {
    if (kinds.some((kind) => here === kind.prototype)) return;
    const kind = here === value ? '' : String(here.constructor && here.constructor.name);
    const shown = Object(Object.getOwnPropertyDescriptors(here));
    for (const name of Reflect.ownKeys(shown)) {
      if (name !== 'constructor' && (shown[name].get || typeof shown[name].value === 'function')) {
        own.push(`${kind}.${String(name)}`);
      }
    }
    here = Object.getPrototypeOf(here);
  }
}

function SWEGYMpacked(value, how, depth, own) {
  if (value === null) return ['n'];
  if (typeof value === 'string') return ['s', value];
  if (typeof value === 'boolean') return ['b', value ? 1 : 0];
  if (typeof value === 'bigint') return ['i', value.toString(16)];
  if (typeof value === 'number') {
    if (Number.isInteger(value)) return ['i', BigInt(value).toString(16)];
    if (!Number.isFinite(value)) return ['f', String(value).replace('Infinity', 'inf')];
    let power = 0;
    while (!Number.isInteger(value)) {
      value *= 2;
      power -= 1;
    }
    const sign = value < 0 ? '-' : '';
    return ['f', `${sign}0x${BigInt(Math.abs(value)).toString(16)}p${power}`];
  }
  if (depth > 40 || typeof value !== 'object') return ['o', typeof value, null];
  SWEGYMmethods(value, own);
  if (Array.isArray(value)) return ['l', Array.from(value, (item) => SWEGYMpacked(item, how, depth + 1, own))];
  const above = Object.getPrototypeOf(value);
  const kind = value.constructor ? String(value.constructor.name) : 'Object';
  const isData = above === null || Object.getPrototypeOf(above) === null;
  const others = [Date, RegExp, Error, Promise, Map, Set, WeakMap, WeakSet, String, Number, Boolean];
  const isOther = others.some((one) => value instanceof one) || ArrayBuffer.isView(value);
  if (isOther || (!isData && (how !== 'loose' || typeof value[Symbol.iterator] === 'function'))) {
    return ['o', kind, null];
  }
  const items = [];
  for (const [name, item] of Object.entries(value)) {
    if (how !== 'loose' || item !== undefined) items.push(['s', name], SWEGYMpacked(item, how, depth + 1, own));
  }
  return ['d', items];
}
