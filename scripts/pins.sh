#!/usr/bin/env bash
# Choose the exact versions of everything once for every Python that is supported: uv.lock, and constraints.txt for pip.
#
#   scripts/pins.sh              keep what is pinned, and add or remove what pyproject.toml now asks for
#   scripts/pins.sh --upgrade    raise everything; --upgrade-package NAME raises one
set -euo pipefail
cd "$(dirname "$0")/.."

uv=${UV:-uv}
command -v "$uv" >/dev/null || { echo 'pins: no uv. Try: pip install uv, or UV=/path/to/uv' >&2; exit 2; }

trap 'rm -f constraints.partial' EXIT
"$uv" lock "$@"
{
    echo '# Exact versions of everything that `make setup` installs, for every Python that the project supports. After a change of'
    echo '# pyproject.toml, or to raise them: make pins (ARGS=--upgrade), which writes uv.lock and from it this file.'
    # pip takes pins on every platform: what the lock says of platforms is left out, what it says of Pythons stays.
    "$uv" export -q --frozen --all-extras --all-groups --no-hashes --no-annotate --no-header --no-emit-project |
        sed -E "s/ (and|;) \(\(platform_machine == '\w+'\) or \(platform_machine == '\w+'\)\)//;
            s/\(\(platform_machine == '\w+' and ([^()]*)\) or \(platform_machine == '\w+' and [^()]*\)\)/\1/;
            s/ ; \((.*)\) or \(.*/ ; \1/; s/ and (sys_platform|platform_machine) == '[a-z0-9_]+'//g;
            s/(;|and) python_full_version < '3.15'( and|$)/\1/; s/ (;|and)$//; s/; +/; /"
} >constraints.partial
mv constraints.partial constraints.txt
