#!/usr/bin/env bash
# Test an adapter against the real package of its peer, where that asks for other versions of packages than ours.
#
#   scripts/test_adapter.sh ADAPTER [ARGS]    run its tests, tests/env/adapters/in_ADAPTER.py for most; ARGS are pytest's
#   scripts/test_adapter.sh ADAPTER --make    install the peer only
#   scripts/test_adapter.sh --make            install every peer that the Python of .venv is new enough for, and Harbor if
#                                             another Python is
#
# Adapters: games (MiniGrid, TextWorld and textarena), harbor, inspect, nemo_gym (its sandbox API alone), openenv, tinker,
# verifiers, and atif, which is Harbor's schema alone, for any Python. A peer is installed once, into
# .venv/adapters/ADAPTER: an environment on top of .venv, with what the peer needs besides or in other versions. If the
# peer needs a newer Python than .venv has, it is an environment by itself.
# `peers --make` installs those of the benchmarks `adapters` and `tampering`, which have no tests, into one environment.
set -euo pipefail
cd "$(dirname "$0")/.."

is_enough() { "$1" -c "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, $oldest))" 2>/dev/null; }

find_python() { # the first interpreter that is new enough and can make virtual environments
    local candidate
    for candidate in python3.1{2,3,4} ~/.pyenv/versions/3.1[2-4]*/bin/python python3; do
        if is_enough "$candidate"; then echo "$candidate"; return; fi
    done
    echo "test_adapter: $adapter needs Python >= 3.$oldest" >&2
    return 1
}

adapters='atif, games, harbor, inspect, nemo_gym, openenv, tinker and verifiers'
adapter=${1:?there are the adapters $adapters, and peers}
shift
if [[ $adapter == peers && ${1:-} != --make ]]; then echo "test_adapter: peers have no tests: --make installs them" >&2; exit 2; fi
if [[ $adapter == --make ]]; then
    if [[ -L .venv ]]; then exit 0; fi # it belongs to somebody else, and is used as it is
    minor=$(.venv/bin/python -c 'import sys; print(sys.version_info.minor)')
    possible=(atif games openenv)
    if ((minor >= 11)); then possible+=(inspect nemo_gym tinker verifiers); fi
    if ((minor >= 12)) || oldest=12 find_python >/dev/null 2>&1; then possible+=(harbor); fi
    trap 'exit 130' INT # else an interrupted installation is taken for one that failed
    for adapter in "${possible[@]}"; do
        scripts/test_adapter.sh "$adapter" --make || echo "test_adapter: $adapter could not be installed: its tests will be skipped"
    done
    exit 0
fi
options=() settings=() tests=tests/env/adapters oldest=10 # of Python 3
case $adapter in
    atif) packages=(harbor==0.25.0) options=(--no-deps --ignore-requires-python) ;;
    games) packages=('minigrid>=3.1,<3.3' textworld==1.7.0 textarena==0.7.4) tests=tests/trainers/rollout ;;
    harbor) packages=(harbor==0.24.0) oldest=12 ;; # 0.25.0 asks for a certifi that is not everywhere yet
    inspect) packages=(inspect-ai==0.3.285 pytest-asyncio) oldest=11 settings=(-o asyncio_mode=auto) ;;
    # All that it asks for is 1.4 GB, of which its sandbox API uses what .venv has; it asks for Python 3.13.14 and runs on older.
    nemo_gym) packages=(nemo-gym==0.7.0) options=(--no-deps --ignore-requires-python) oldest=11 ;;
    tinker) packages=(tinker==0.38.0) tests=tests/trainers/tinker oldest=11 ;;
    openenv) packages=(openenv==0.10.0) settings=(-o markers=campaign) ;;
    peers) packages=(harbor==0.24.0 verifiers==0.4.0 swebench==4.1.0) oldest=12 ;;
    verifiers) packages=(verifiers==0.4.0) oldest=11 ;;
    *) echo "test_adapter: no adapter $adapter; there are $adapters" >&2; exit 2 ;;
esac

place=.venv/adapters/$adapter stamp=.venv/adapters/$adapter/.made
if [[ $(cat "$stamp" 2>/dev/null) != "${packages[*]}" ]]; then
    echo "test_adapter: installing the packages of $adapter into $place"
    pip=(-m pip --no-input --disable-pip-version-check install -qq)
    if is_enough .venv/bin/python; then
        below=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        .venv/bin/python -m venv --clear --without-pip "$place"
        # A `site` directory of its own, and not a line of a path: the .pth files of .venv count too, ours among them.
        echo "import site; site.addsitedir('$below')" >"$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
    else
        python=$(find_python)
        "$python" -m venv --clear "$place"
        "$place/bin/python" "${pip[@]}" -e . pytest pytest-timeout
    fi
    # pip complains of packages in .venv whose wishes are not met here; these are not used with this peer.
    "$place/bin/python" "${pip[@]}" "${options[@]}" "${packages[@]}" 2>"$place/pip.log" || { cat "$place/pip.log" >&2; exit 1; }
    echo "${packages[*]}" >"$stamp"
fi
if [[ ${1:-} == --make ]]; then exit 0; fi
# Without this project's settings of pytest: its plugins are not everywhere, and the warnings of a peer are no errors.
PATH=$PWD/$place/bin:$PATH PYTHONPATH=$PWD exec "$place/bin/python" -m pytest -c /dev/null --rootdir="$PWD" --noconftest \
    -p no:cacheprovider -q --timeout 300 "${settings[@]}" "$tests/in_$adapter.py" "$@"
