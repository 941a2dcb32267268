#!/usr/bin/env bash
# Make this machine a server of sandboxes: the package, Apptainer, a user, a token, a systemd unit, images ready. As root:
#
#   scripts/setup_node.sh --images images.txt -- --host 10.0.0.5 --tls-cert /etc/swegym/cert.pem --tls-key /etc/swegym/key.pem
#
#   --images FILE    pull these first, one name a line (swegym images prefetch --file)
#   --token FILE     take the token from here (the one of the pool); by default one is made at the first time
#   --destdir DIR    write the files below DIR, and install, pull and start nothing: for images of machines
#   --dry-run        say every step and do none
#   -- ARGUMENTS     of `swegym serve`
#
# Done again, it changes what was given anew and starts the server again; what is under way there ends first.
set -euo pipefail

say() { printf 'setup_node: %s\n' "$*"; }
die() { say "$*" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
images='' token='' destdir='' dry=''
while (($#)); do
    case $1 in
        --images | --token | --destdir)
            (($# > 1)) || die "$1: expected a value"
            declare "${1#--}=$2"
            shift 2
            ;;
        --dry-run) dry=1 && shift ;;
        --) shift && break ;;
        -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
        *) die "unknown argument $1. Try: $0 --help" ;;
    esac
done
for argument; do [[ $argument != *[[:space:]\"\'\\$]* ]] || die "$argument: an argument with blanks or quotes"; done
[[ -z $images || -r $images ]] || die "--images: $images cannot be read"
[[ -z $token || -r $token ]] || die "--token: $token cannot be read"
[[ -n $destdir$dry || $EUID == 0 ]] || die 'root is needed. Try: sudo, --dry-run, or --destdir DIR'

# Run one step, or only print it (--dry-run).
run() { if [[ -n $dry ]]; then printf '+ %s\n' "${*@Q}"; else "$@"; fi; }
as_server() { run runuser -u swegym -- env -C / SWEGYM_WORKDIR=/var/lib/swegym /opt/swegym/bin/swegym "$@"; }
new_token() { (umask 077 && { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' && echo; } >"$1"); }
say_arguments() { printf 'SWEGYM_SERVE=%s\n' "${*:2}" >"$1"; }

etc=$destdir/etc/swegym
run mkdir -p "$etc" "$destdir/etc/systemd/system"
if [[ -n $token ]]; then
    run install -m 600 "$token" "$etc/token"
elif [[ ! -s $etc/token ]]; then
    run new_token "$etc/token"
fi
run chmod 600 "$etc/token"
run say_arguments "$etc/serve.env" "$@"
run install -m 644 "$here/node/swegym-serve.service" "$destdir/etc/systemd/system/swegym-serve.service"
if [[ -n $destdir ]]; then
    [[ -n $dry ]] || say "files written below $destdir"
    exit 0
fi

run "$here/install_apptainer.sh" || say 'no Apptainer: sandboxes use user namespaces instead'
id swegym >/dev/null 2>&1 || run useradd --system --home-dir /var/lib/swegym --shell /usr/sbin/nologin swegym
run install -d -o swegym -g swegym -m 755 /var/lib/swegym
[[ -x /opt/swegym/bin/python ]] || run python3 -m venv /opt/swegym
run /opt/swegym/bin/python -m pip --no-input -q install -c "$here/../constraints.txt" "$here/..[serve]"
as_server doctor
if [[ -n $images ]]; then
    run install -o swegym -m 644 "$images" /var/lib/swegym/images.txt
    as_server images prefetch --file /var/lib/swegym/images.txt -j 4
fi
run systemctl daemon-reload
run systemctl enable swegym-serve
run systemctl restart swegym-serve
run systemctl --no-pager --lines 3 status swegym-serve
[[ -n $dry ]] || say "the token is in $etc/token: give it to the pool and to whoever trains"
