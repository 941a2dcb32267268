#!/usr/bin/env bash
# What the tests need besides Python packages: a Chromium for the page of `swegym view`, libfaketime for the clock of
# deterministic episodes, a zsh to complete our commands in, gcc and make for the tasks in C, Node.js for attacks in
# JavaScript. Root on Debian or Ubuntu only; elsewhere it says what is missing, and the tests say it too.
set -euo pipefail

say() { printf 'test tools: %s\n' "$*"; }

has_browser() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        # Ubuntu's package is a stub that asks for snap, which containers do not have: only one that starts counts.
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then return 0; fi
    done
    return 1
}
has_clock() { compgen -G '/usr/lib*/*/faketime/libfaketime.so.1' >/dev/null || [[ -e /usr/lib64/faketime/libfaketime.so.1 ]]; }

packages=()
# shellcheck disable=SC1091 # the file is the system's
if ! has_browser; then
    if [[ $(. /etc/os-release 2>/dev/null && echo "${ID:-}") == debian ]]; then
        packages+=(chromium fonts-dejavu-core)
    else
        say 'no Chromium: install google-chrome or chromium to test `swegym view`'
    fi
fi
has_clock || packages+=(libfaketime)
command -v zsh >/dev/null || packages+=(zsh)
command -v cc >/dev/null || packages+=(gcc)
command -v make >/dev/null || packages+=(make)
[[ -x /usr/bin/node ]] || packages+=(nodejs)
[[ -e /usr/include/stdio.h ]] || packages+=(libc6-dev)
if ((${#packages[@]} == 0)); then exit 0; fi
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
    say "missing: ${packages[*]} (as root on Debian or Ubuntu: scripts/install_test_tools.sh)"
    exit 0
fi
say "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
