#!/usr/bin/env bash
# As root on Debian: the programs that the lab and the fault tests use, quietly, once. Elsewhere: says what will be skipped.
set -euo pipefail
packages="openssh-server openssh-client sudo iproute2 util-linux procps strace systemd dbus postgresql"
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
command -v promtool >/dev/null || missing="$missing promtool"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "left out, needs root on Debian:$missing (tests that use them are skipped)"
  exit 0
fi
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# No service starts by being installed.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.sbctl
if [ ! -e /usr/sbin/policy-rc.d ]; then install -m 755 /usr/sbin/policy-rc.d.sbctl /usr/sbin/policy-rc.d; made_policy=1; fi
rm -f /usr/sbin/policy-rc.d.sbctl
trap '[ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d; rm -f "$log"' EXIT
# Of Prometheus only the checker of rules: the server and its unit stay out.
fetch_promtool() {
  local place
  place=$(mktemp -d)
  chmod 755 "$place"
  (cd "$place" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && install -m 755 usr/bin/promtool /usr/local/bin/promtool)
  rm -rf "$place"
}
packaged=${missing% promtool}
# shellcheck disable=SC2086
if ! {
  apt-get update -qq && { [ -z "$packaged" ] || apt-get install -yqq --no-install-recommends $packaged; } &&
    { [ "$packaged" = "$missing" ] || fetch_promtool; }
} >"$log" 2>&1; then
  tail -20 "$log"
  echo "could not install:$missing"
  exit 1
fi
echo "installed:$missing"
