/* Sends the values that hidden tests compare out of the sandbox (see languages/javascript/blind.py).
 *
 * It is code in the process of the code under test, and need not be trusted: it does not know the expected values. A
 * record is one line of JSON, as grading/comparisons.py reads it. SWEGYM stands for a name that is drawn anew. */
function SWEGYM(key, value, how) {
  if (how === 'truth') value = !!value;
  if (how === 'text' && typeof value !== 'object') value = String(value);
  if (how === 'number' && typeof value !== 'object') value = Number(value);
  const record = [key, null, SWEGYMpacked(value, how, 0), ['', '', '']];
  @FILES@.appendFileSync('@OUTPUT@', JSON.stringify(record) + '\n');
}

function SWEGYMpacked(value, how, depth) {
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
  if (Array.isArray(value)) return ['l', Array.from(value, (item) => SWEGYMpacked(item, how, depth + 1))];
  const above = Object.getPrototypeOf(value);
  const kind = value.constructor ? String(value.constructor.name) : 'Object';
  const isData = above === null || Object.getPrototypeOf(above) === null;
  if (!isData && (how !== 'loose' || typeof value[Symbol.iterator] === 'function')) return ['o', kind, null];
  const items = [];
  for (const [name, item] of Object.entries(value)) {
    if (how !== 'loose' || item !== undefined) items.push(['s', name], SWEGYMpacked(item, how, depth + 1));
  }
  return ['d', items];
}
