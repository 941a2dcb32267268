#!/usr/bin/env bash
# Install Apptainer and prove that it works: a directory image is executed as root and as an ordinary user.
#
#   scripts/install_apptainer.sh           install what is missing, then try it
#   scripts/install_apptainer.sh --check   try it only
#
# Exit code: 0 Apptainer works, 1 it does not, 2 wrong usage, 3 this machine needs another way (which is printed).
# Uninstall: apt-get purge apptainer   (every file below belongs to that package; the helpers are ordinary packages)
#
# Where it comes from:
#   Ubuntu  the machine's own sources where they have it, else the project's PPA (with DEBIAN_MIRROR=URL: as Debian).
#   Debian  sid's package, found on the mirror that the machine uses already (DEBIAN_MIRROR=URL names another).
#           It is fetched through a temporary apt state: the machine's lists, sources and pins never see sid.
# sid's package needs glibc >= 2.38. Where the machine's is older (Debian 12), replacing libc6 would take build tools with
# it; so the package is built again with sid's glibc in a private folder, used by Apptainer's two programs alone.
# Repacking, rather than unpacking over /, leaves the files known to dpkg: removed, verified and upgraded as any other.
set -euo pipefail
readonly script=$(realpath "$0")
cd /

readonly required=(squashfs-tools uidmap ca-certificates)
readonly welcome=(squashfuse fuse-overlayfs fuse2fs)
readonly user_id=61000 # an ordinary user without an account, as sandboxes use where their owner is root
readonly sid_glibc=2.38
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

work=$(mktemp -d) && chmod 755 "$work"
trap 'rm -rf "$work"' EXIT

say() { printf 'apptainer: %s\n' "$*"; }
die() { say "$1" >&2; exit "${2:-1}"; }
have() { command -v "$1" >/dev/null 2>&1; }
quietly() { # run a command, and show the end of its output only if it fails
    "$@" >"$work/log" 2>&1 || { tail -n 3 "$work/log" >&2; return 1; }
}

# Trying

make_image() { # the smallest directory image: a shell and the libraries that it loads
    [[ -d $work/image ]] && return
    mkdir -p "$work"/image/{bin,dev,etc,home,proc,root,sys,tmp,var/tmp} "$work/home" "$work/root"
    cp -L /bin/sh "$work/image/bin/sh"
    local library
    for library in $(ldd /bin/sh | grep -o '/[^ )]*'); do
        mkdir -p "$work/image${library%/*}" && cp -L "$library" "$work/image$library"
    done
    chown -R "$user_id:$user_id" "$work/home" 2>/dev/null || true
}

# Apptainer wants an account for its user id. The ordinary user gets one in a mount namespace of its own, which leaves the
# machine's /etc/passwd alone.
run_image() { # run_image root|user [option…] IMAGE: Apptainer's standard error is in $work/errors
    local who=() home=$work/root answer
    if [[ $1 == user ]] && ((EUID == 0)); then
        home=$work/home
        { cat /etc/passwd; echo "sandbox:x:$user_id:$user_id::$home:/bin/sh"; } >"$work/passwd"
        chmod 644 "$work/passwd"
        # shellcheck disable=SC2016
        who=(unshare --mount sh -c 'mount --bind "$0" /etc/passwd && exec "$@"' "$work/passwd"
            setpriv "--reuid=$user_id" "--regid=$user_id" --clear-groups)
    fi
    answer=$("${who[@]}" env -i "PATH=$PATH" "HOME=$home" LC_ALL=C.UTF-8 \
        apptainer -q exec --containall "${@:2}" /bin/sh -c 'echo works' 2>"$work/errors" </dev/null) || return 1
    [[ $answer == works ]]
}

works() {
    have apptainer || { echo 'not installed' >"$work/errors"; return 1; }
    make_image
    if ((EUID == 0)); then run_image root "$work/image" || return 1; fi
    run_image user "$work/image"
}

last_error() { tail -n 1 "$work/errors"; }

report_extras() { # what sandboxes may use beyond the plain case; informative, never a failure
    local answer
    run_image user --net --network none "$work/image" && answer=yes || answer="no ($(last_error))"
    say "ordinary user, network cut off: $answer"
    mkdir -p "$work/home/overlay" && chown "$user_id:$user_id" "$work/home/overlay" 2>/dev/null || true
    run_image user --overlay "$work/home/overlay" "$work/image" && answer=yes || answer="no ($(last_error))"
    say "ordinary user, writable overlay: $answer"
    if quietly env "APPTAINER_CACHEDIR=$work/cache" apptainer -q build "$work/image.sif" "$work/image"; then
        run_image user "$work/image.sif" && answer=yes || answer="no ($(last_error))"
    else
        answer="no (it could not be built: $(tail -n 1 "$work/log"))"
    fi
    say "ordinary user, SIF image: $answer"
}

conclude() { # the only way to exit code 0
    works || {
        [[ $(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null) != 1 ]] ||
            say 'Ubuntu forbids user namespaces here; allow them: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0' >&2
        die "apptainer exec fails: $(last_error)"
    }
    have singularity || die 'the name "singularity", which spython looks for, is not on PATH'
    say "$(apptainer --version | sed 's/^apptainer version //') works$( ((EUID == 0)) && echo " as root and as user $user_id")"
    if ((EUID == 0)); then report_extras; fi
    exit 0
}

# Installing

advise() {
    say "$1; nothing was installed. Without root, the Apptainer project's own installer puts it under your home:" >&2
    say '  curl -sL https://raw.githubusercontent.com/apptainer/apptainer/main/tools/install-unprivileged.sh | bash -s - ~/apptainer' >&2
    say '  ln -s apptainer ~/apptainer/bin/singularity && export PATH=~/apptainer/bin:$PATH   (it needs curl, rpm2cpio, cpio)' >&2
    say 'Fedora and EPEL have a package: dnf install apptainer. Without Apptainer, sandboxes use user namespaces.' >&2
    exit 3
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

updated=
install_packages() { # install_packages PACKAGE|FILE…, from the machine's own sources
    if [[ -z $updated ]]; then
        say "reading the machine's package lists"
        quietly apt-get -q update || say 'some package lists could not be read; going on with those that are there'
        updated=yes
    fi
    quietly apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

install_helpers() {
    local package missing=()
    for package in "${required[@]}"; do is_installed "$package" || missing+=("$package"); done
    have git || missing+=(git)
    if ((${#missing[@]})); then
        say "installing ${missing[*]}"
        install_packages "${missing[@]}" || die "apt-get could not install ${missing[*]}"
    fi
    for package in "${welcome[@]}"; do
        is_installed "$package" && continue
        say "installing $package"
        install_packages "$package" || say "$package is not available here; SIF images may not mount for ordinary users"
    done
}

debian_mirror() { # the address from which the machine takes its main packages, whatever the form of its sources
    if [[ -n ${DEBIAN_MIRROR:-} ]]; then echo "${DEBIAN_MIRROR%/}/"; return; fi
    apt-get update --print-uris | sed -nE "s#^'(.*/)dists/($VERSION_CODENAME|stable|testing|unstable|sid)/(In)?Release'.*#\1#p" |
        head -n 1
}

fetch_from_sid() { # apptainer's package and, where asked for, libc6's into $work
    local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || die 'no Debian mirror among the sources of apt; name one: DEBIAN_MIRROR=URL'
    [[ -r $keyring ]] || install_packages debian-archive-keyring || die "$keyring is missing"
    mkdir -p "$work"/apt/{lists,cache}/partial "$work/apt/cache/archives/partial"
    printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: %s\n' "$mirror" "$keyring" \
        >"$work/apt/sid.sources"
    local options=(-q -o "Dir::Etc::SourceList=$work/apt/sid.sources" -o Dir::Etc::SourceParts=-
        -o Dir::Etc::Preferences=- -o Dir::Etc::PreferencesParts=- -o "Dir::State::Lists=$work/apt/lists"
        -o "Dir::Cache=$work/apt/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
    say "reading sid's package list on ${mirror#*://} into a temporary folder"
    quietly apt-get "${options[@]}" update || die "sid's package list could not be read from $mirror"
    say "fetching $* from sid"
    (cd "$work" && quietly apt-get "${options[@]}" download "$@") || die "sid's $* could not be fetched from $mirror"
}

repack_with_private_glibc() { # $work/apptainer_*.deb and $work/libc6_*.deb → $work/private.deb
    local root=$work/package program interpreter folder
    dpkg-deb -R "$work"/apptainer_*.deb "$root"
    dpkg-deb -x "$work"/libc6_*.deb "$work/libc6"
    interpreter=$(basename "$(patchelf --print-interpreter "$root/usr/bin/apptainer")")
    folder=$(cd "$root" && echo usr/lib/*/apptainer)/glibc
    mkdir "$root/$folder"
    find "$work/libc6" -type f \( -name "$interpreter" -o -name 'lib*.so.[0-9]*' \) -exec cp -t "$root/$folder" {} +
    [[ -x $root/$folder/$interpreter ]] || die "sid's libc6 has no $interpreter"
    for program in "$root/usr/bin/apptainer" "$root/${folder%/glibc}/bin/starter"; do
        # DT_RPATH, not DT_RUNPATH: libraries loaded by libraries must come from the same glibc
        patchelf --set-interpreter "/$folder/$interpreter" --force-rpath --set-rpath "/$folder" "$program"
    done
    sed -i -E -e 's/^(Version: .*)/\1+ownglibc/' -e '/^Depends:/s/ libc6 \([^)]*\),?//' "$root/DEBIAN/control"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
    quietly dpkg-deb --root-owner-group -Zgzip -z1 -b "$root" "$work/private.deb"
}

install_on_debian() {
    local glibc
    glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
    if dpkg --compare-versions "$glibc" ge "$sid_glibc"; then
        fetch_from_sid apptainer
        say "installing sid's package as it is (glibc $glibc)"
        install_packages "$work"/apptainer_*.deb
        return
    fi
    is_installed patchelf || { say 'installing patchelf'; install_packages patchelf || die 'apt-get could not install patchelf'; }
    fetch_from_sid apptainer libc6
    say "giving the package a private glibc (this machine has $glibc, it needs $sid_glibc)"
    repack_with_private_glibc
    say 'installing it'
    install_packages "$work/private.deb"
}

install_on_ubuntu() {
    say 'looking for the package in the machine'\''s own sources'
    install_packages apptainer 2>/dev/null && return
    say "adding the project's PPA"
    have add-apt-repository || install_packages software-properties-common || die 'apt-get could not install software-properties-common'
    quietly add-apt-repository -y ppa:apptainer/ppa || die 'ppa:apptainer/ppa could not be added; where it cannot be reached, try DEBIAN_MIRROR=URL'
    updated=
    say 'installing apptainer'
    install_packages apptainer
}

# Settings that only trying can tell

adapt_settings() {
    if [[ ! -d /run/systemd/system && $(apptainer config global --get 'systemd cgroups') != no ]]; then
        say 'systemd does not run here: systemd cgroups = no'
        apptainer config global --set 'systemd cgroups' no
    fi
    if [[ -c /dev/fuse && $(stat -c %a /dev/fuse) != 666 ]]; then
        say "/dev/fuse had mode $(stat -c %a /dev/fuse): now 666, so that ordinary users can mount SIF images"
        chmod 666 /dev/fuse || say '/dev/fuse could not be changed'
    fi
    make_image
    if ! run_image root "$work/image" && grep -q 'Requesting capability set' "$work/errors"; then
        say 'root lacks a capability here: root default capabilities = no'
        apptainer config global --set 'root default capabilities' no
    fi
}

main() {
    case ${1:-} in
        '') ;;
        --check) conclude ;;
        -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$script"; exit 0 ;;
        *) die "unknown option $1; there is --check and --help" 2 ;;
    esac
    local os_id='' family=''
    # shellcheck disable=SC1091
    if [[ -r /etc/os-release ]]; then . /etc/os-release; os_id=${ID:-} family=${ID_LIKE:-}; fi
    if ((EUID != 0)); then
        if works && have singularity; then conclude; fi
        advise 'not run by root'
    fi
    have apt-get && [[ $os_id == debian || $os_id == ubuntu || $family == *debian* ]] || {
        if works && have singularity; then conclude; fi
        advise "${PRETTY_NAME:-this system} is neither Debian nor Ubuntu"
    }
    install_helpers
    if have apptainer; then
        say "$(command -v apptainer) is there"
    elif [[ ($os_id == ubuntu || $family == *ubuntu*) && -z ${DEBIAN_MIRROR:-} ]]; then
        install_on_ubuntu || die 'apt-get could not install apptainer'
    else
        install_on_debian || die 'apt-get could not install apptainer'
    fi
    have apptainer || die 'the package is installed, yet "apptainer" is not on PATH'
    adapt_settings
    have singularity || { ln -s "$(command -v apptainer)" /usr/local/bin/singularity && say 'linked /usr/local/bin/singularity'; }
    conclude
}

main "$@"
