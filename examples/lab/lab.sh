#!/usr/bin/env bash
# `make lab`, `make lab-down`: four machines on this one, to try a fleet on: a jump and three hosts behind it (`make lab HOSTS=9`: eight).
# They are hosts of tests/lab/hosts.sh, which says what they are. SBCTL_LAB=I is another lab beside the first, at 10.78.I.x.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
hosts=$here/../../tests/lab/hosts.sh
number=${SBCTL_LAB:-0}
lab=/run/sbctl-lab-$number

refuse() { echo "the lab cannot run here: $1" >&2; exit 4; }

need_all() {
  [ "$(uname -s)" = Linux ] || refuse "its hosts are namespaces of Linux"
  [ "$(id -u)" = 0 ] || refuse "it boots hosts in namespaces, which needs root: sudo make ${1/up/lab}"
  local name missing=""
  for name in ip unshare nsenter setpriv ssh-keygen sshd mountpoint python3; do
    PATH=$PATH:/usr/sbin command -v "$name" >/dev/null || missing="$missing $name"
  done
  [ -z "$missing" ] || refuse "missing:$missing (on Debian, as root: tests/lab/install_packages.sh)"
  grep -qw overlay /proc/filesystems || refuse "this kernel has no overlayfs"
  [ -e /lib/systemd/systemd ] || refuse "there is no systemd to boot in the hosts"
}

# What somebody who walked to each console would have written down.
write_known_hosts() {
  local home
  for home in "$lab"/h[0-9]*; do
    echo "10.78.$number.${home##*/h} $(cut -d' ' -f1,2 "$home/host_key.pub")"
  done >"$lab/known_hosts"
}

# Somebody's sb.yml on stdout, with the hosts of this lab behind the jump in place of its own, in their order.
onto() { # file
  awk -v network="10.78.$number" -v key="$lab/operator_key" '
    /address: [0-9]/ && !/^ *bind_address/ { sub(/address: [0-9.]+/, "address: " network "." ++count + 1) }
    /^ +host_key:/ { next }
    { sub(/, host_key: "[^"]*"/, ""); sub(/identity_file: [^},]+/, "identity_file: " key); print }' "$1"
}

case "${1:-}" in
  up)
    need_all up
    count=${2:-4}
    [[ $count =~ ^[0-9]{1,2}$ ]] && [ "$count" -ge 2 ] || refuse "HOSTS is the number of machines, the jump is one of them: 2 to 99"
    [ ! -d "$lab/h1" ] || refuse "it runs already; make lab-down ends it"
    "$hosts" up "$count"
    write_known_hosts
    # Whoever used sudo logs in to the hosts as himself.
    [ -z "${SUDO_UID:-}" ] || chown "$SUDO_UID" "$lab/operator_key"
    behind=$(seq -s ', ' -f 'h%g' 2 "$count")
    echo "$count hosts run: a jump at 10.78.$number.1 and $behind behind it. Next: cd examples/lab, then as its README says"
    ;;
  pins) write_known_hosts ;;
  onto) onto "${2:?the sb.yml to write anew}" ;;
  down)
    need_all down
    "$hosts" down
    # What was pinned and recorded is of hosts that are gone.
    rm -rf "$here/.sbctl" "$here/sb.hosts.lock"
    ;;
  *)
    echo "usage: lab.sh up [HOSTS]|down|onto FILE" >&2
    exit 64
    ;;
esac
