#!/usr/bin/env bash
# Test hosts on this machine: each has its own address, disk, processes and systemd, and is reached over SSH like any other.
#
#   hosts.sh up COUNT     boot COUNT hosts, named h1, h2, …, at 10.78.0.1, 10.78.0.2, …
#   hosts.sh down         end them all and leave nothing behind
#   hosts.sh kill N       power loss: every process of hN is gone, its disk stays
#   hosts.sh start N      boot hN again from its disk
#   hosts.sh cut N        pull its network cable; heal N plugs it in again
#   hosts.sh hide N       only its siblings can reach it, so that one of them must be the jump; show N undoes it
#
# SBCTL_LAB=I (0 to 99, default 0) names one of several labs on one machine: its hosts are at 10.78.I.1, 10.78.I.2, …
#
# A host's disk is an overlay over this machine's /, kept in memory below /run/sbctl-lab-I; SBCTL_LAB_DISK is its size (default 8g). It has
# the same system programs and Python, but no compiler, no pip, no uv, nothing in /opt, /root, /home or /usr/local, and no route to anywhere
# but its siblings. Log in as root or as the users "ops" (no rights), "deploy" (sudo without a password) and "pw" (sudo with the password
# "correct horse") with /run/sbctl-lab-I/operator_key, or with any key that /run/sbctl-lab-I/user_ca signed; a host's public key is
# /run/sbctl-lab-I/hN/host_key.pub.
#
# Needs root, overlayfs, cgroup2, and the commands ip, unshare, nsenter, setpriv, systemd, sshd, python3. The clock is the machine's own:
# a host could set it, so no test may try (the capability is dropped for everything that init starts).
set -euo pipefail

number_of_lab=${SBCTL_LAB:-0}
[[ $number_of_lab =~ ^[0-9]{1,2}$ ]] || { echo "SBCTL_LAB must be a number from 0 to 99" >&2; exit 64; }
lab=/run/sbctl-lab-$number_of_lab
network=10.78.$number_of_lab
bridge=sbctl-lab$number_of_lab
operator_key=$lab/operator_key
disk_size=${SBCTL_LAB_DISK:-8g}

# Units that would act on the one kernel and the one hardware all hosts share, or only cost time.
foreign_units="systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket
  systemd-modules-load.service systemd-sysctl.service systemd-timesyncd.service systemd-networkd.service systemd-resolved.service
  systemd-remount-fs.service systemd-sysusers.service systemd-hwdb-update.service systemd-update-done.service systemd-firstboot.service
  systemd-journal-catalog-update.service systemd-pcrphase.service ldconfig.service e2scrub_reap.service apt-daily.timer
  apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer man-db.timer tmp.mount dev-hugepages.mount dev-mqueue.mount
  sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount"

# --- a host's disk ----------------------------------------------------------------------------------------------------------------------

lay_out_disk() { # host-directory
  local upper=$1/upper name
  local hidden=(usr/local/bin usr/local/sbin usr/local/lib var/lib/sbctl var/cache/sbctl etc/sbctl var/tmp var/log/journal)
  install -d -m 755 "$upper/var" "$upper/var/lib" "$upper/var/cache" "$upper/var/log" "$upper/etc" "$upper/usr" "$upper/usr/local"
  for name in $(ls /); do
    case $name in
      bin | boot | dev | etc | lib* | proc | run | sbin | sys | tmp | usr | var) ;;
      *) [ ! -d "/$name" ] || [ -L "/$name" ] || hidden+=("$name") ;;
    esac
  done
  # Directories of this machine that a host does not have are made opaque, which hides what is below them at no cost.
  (
    cd "$upper"
    install -d -m 755 "${hidden[@]}"
    /usr/bin/python3 -I -c 'import os, sys; [os.setxattr(name, "trusted.overlay.opaque", b"y") for name in sys.argv[1:]]' "${hidden[@]}"
  )
  chmod 1777 "$upper/var/tmp"
}

# Whiteouts between this machine and every host: what somebody installs on the machine while hosts run does not show up in them.
lay_out_mask() {
  local name
  mkdir -p "$lab/mask/etc/systemd/system" "$lab/mask/var/lib" "$lab/mask/var/cache"
  for name in etc/sbctl var/lib/sbctl var/cache/sbctl etc/systemd/system/sbctl-{runtime,launcher}.{service,socket}; do
    mknod "$lab/mask/$name" c 0 0
  done
}

add_user() { # root name number password-field
  local root=$1 name=$2 number=$3
  if ! grep -q "^$name:" "$root/etc/passwd"; then
    echo "$name:x:$number:$number:a user of the test lab:/home/$name:/bin/bash" >>"$root/etc/passwd"
    echo "$name:x:$number:" >>"$root/etc/group"
    echo "$name:$4:19000:0:99999:7:::" >>"$root/etc/shadow"
  fi
  install -d -o "$number" -g "$number" -m 700 "$root/home/$name" "$root/home/$name/.ssh"
  install -o "$number" -g "$number" -m 600 "$operator_key.pub" "$root/home/$name/.ssh/authorized_keys"
}

# Once per host, on its mounted disk: names, keys, accounts; whatever builds or fetches software is taken away.
personalise() { # number root
  local number=$1 root=$2 unit
  echo "h$number" >"$root/etc/hostname"
  cp "$lab/hosts" "$root/etc/hosts"
  echo "sbctl-lab-$number_of_lab-$number" | md5sum | cut -c1-32 >"$root/etc/machine-id"
  rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/sbctl* "$root"/etc/pip.conf "$root"/etc/xdg/pip
  rm -f "$root"/usr/bin/{gcc,g++,cc,c++,cpp,make,cmake,pip,uv,uvx}* "$root"/etc/ssh/ssh_host_*
  install -m 600 "$lab/h$number/host_key" "$root/etc/ssh/ssh_host_ed25519_key"
  install -m 644 "$lab/h$number/host_key.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
  cat >"$root/etc/ssh/sshd_config.d/sbctl-lab.conf" <<-'SSHD'
	UsePAM no
	UseDNS no
	PasswordAuthentication no
	PermitRootLogin prohibit-password
	TrustedUserCAKeys /etc/ssh/user_ca.pub
	MaxStartups 100
	MaxSessions 100
	SSHD
  add_user "$root" ops 1990 '*'
  add_user "$root" deploy 1991 '*'
  add_user "$root" pw 1992 '$6$sbctllab$WMYcj4TpvvlybWSw59hNhj7Zvb8MndGR0eTMq5ahxr4iD2LyKPJKq7sjUq7031Pww82bj43M0EvhTeQYM/Vz0/'
  printf '%s\n' 'deploy ALL=(root) NOPASSWD: ALL' 'pw ALL=(root) ALL' >"$root/etc/sudoers.d/sbctl-lab"
  chmod 440 "$root/etc/sudoers.d/sbctl-lab"
  install -m 644 "$lab/user_ca.pub" "$root/etc/ssh/user_ca.pub"
  install -d -m 700 "$root/root/.ssh"
  install -m 600 "$operator_key.pub" "$root/root/.ssh/authorized_keys"
  for unit in $foreign_units; do ln -sfn /dev/null "$root/etc/systemd/system/$unit"; done
  cat >"$root/etc/systemd/system/sbctl-lab.target" <<-'TARGET'
	[Unit]
	Description=A host of the test lab
	Requires=basic.target ssh.service
	Wants=multi-user.target dbus.socket systemd-journald.service
	After=basic.target ssh.service
	AllowIsolate=yes
	TARGET
}

# --- inside a host's namespaces, as its first process -----------------------------------------------------------------------------------

mount_system_views() { # root
  local root=$1 name
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 run "$root/run"
  mount -t tmpfs -o mode=1777 tmp "$root/tmp"
  mount -t tmpfs -o mode=755 dev "$root/dev"
  mkdir "$root/dev/pts" "$root/dev/shm" "$root/run/sshd" "$root/run/lock"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
  for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
  done
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for name in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${name#*:}" "$root/dev/${name%:*}"; done
}

become_host() { # number
  local number=$1 home=$lab/h$1 root=$lab/h$1/root
  hostname "h$number"
  mount -t overlay overlay -o "lowerdir=$lab/mask:/,upperdir=$home/upper,workdir=$home/work" "$root"
  if [ ! -e "$home/personal" ]; then
    personalise "$number" "$root"
    touch "$home/personal"
  fi
  mount_system_views "$root"
  mkdir -p "$root/.machine"
  cd "$root"
  pivot_root . .machine
  umount -l /.machine
  rmdir /.machine
  # As a container manager leaves it: what systemd mounts for a service (credentials) must reach the service.
  mount --make-rshared /
  exec setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-sys_boot --inh-caps=-all \
    env -i container=sbctl-lab HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=sbctl-lab.target --show-status=no
}

# --- from outside -----------------------------------------------------------------------------------------------------------------------

power_on() { # number
  local number=$1 namespace=sbctl-$number_of_lab-h$1 cable=sbctl-c$number_of_lab-$1 group=$lab/cgroup/sbctl-lab-$number_of_lab-h$1
  ip netns add "$namespace"
  # A card keeps its hardware address over a reboot; with a new one the neighbours would talk to the old one for a minute.
  ip link add "$cable" type veth peer name eth0 address "$(printf '02:78:00:00:%02x:%02x' "$number_of_lab" "$number")" netns "$namespace"
  ip link set "$cable" master "$bridge" up
  ip -n "$namespace" link set lo up
  ip -n "$namespace" addr add "$network.$number/24" dev eth0
  ip -n "$namespace" link set eth0 up
  mkdir -p "$group"
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec setsid nsenter --net="/run/netns/$namespace" \
      unshare --mount --propagation private --pid --uts --ipc --cgroup --fork --kill-child \
      "$script" become-host "$number" </dev/null >"$lab/h$number/console" 2>&1
  ) &
  echo $! >"$lab/h$number/pid"
}

power_off() { # number
  local number=$1 pid group=$lab/cgroup/sbctl-lab-$number_of_lab-h$1 tries
  pid=$(cat "$lab/h$number/pid" 2>/dev/null || true)
  # The recorded process is the one that created the host's namespaces; ending it ends everything in them.
  if [ -n "$pid" ] && grep -qz '^unshare$' "/proc/$pid/cmdline" 2>/dev/null; then kill -KILL "$pid"; fi
  rm -f "$lab/h$number/pid"
  for tries in $(seq 100); do
    [ -d "$group" ] || break
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.02
  done
  ip netns del "sbctl-$number_of_lab-h$number" 2>/dev/null || true
  ip link del "sbctl-c$number_of_lab-$number" 2>/dev/null || true
}

wait_for_sshd() { # number
  local tries
  for tries in $(seq 1000); do
    if timeout 1 bash -c "exec 3<>/dev/tcp/$network.$1/22" 2>/dev/null; then return 0; fi
    sleep 0.02
  done
  echo "h$1 does not answer; its console:" >&2
  tail -20 "$lab/h$1/console" >&2
  return 1
}

up() { # count
  local count=$1 number
  mkdir -p "$lab"
  mount -t tmpfs -o "size=64m,mode=711" "sbctl-lab-$number_of_lab" "$lab"
  mkdir "$lab/cgroup"
  mount -t cgroup2 cgroup2 "$lab/cgroup"
  lay_out_mask
  ssh-keygen -q -t ed25519 -N '' -C operator -f "$operator_key"
  ssh-keygen -q -t ed25519 -N '' -C user-ca -f "$lab/user_ca"
  ip link add "$bridge" type bridge
  ip addr add "$network.254/24" dev "$bridge"
  ip link set "$bridge" up
  # Without it a packet for a host that is gone would leave by the machine's default route.
  ip route replace unreachable "$network.0/24" metric 4000
  {
    echo '127.0.0.1 localhost'
    for number in $(seq "$count"); do echo "$network.$number h$number"; done
  } >"$lab/hosts"
  for number in $(seq "$count"); do
    mkdir "$lab/h$number"
    mount -t tmpfs -o "size=$disk_size,mode=755" "sbctl-lab-$number_of_lab-h$number" "$lab/h$number"
    mkdir "$lab/h$number/upper" "$lab/h$number/work" "$lab/h$number/root"
    lay_out_disk "$lab/h$number"
    ssh-keygen -q -t ed25519 -N '' -C "h$number" -f "$lab/h$number/host_key"
    power_on "$number"
  done
  for number in $(seq "$count"); do wait_for_sshd "$number"; done
}

down() {
  local home
  for home in "$lab"/h[0-9]*; do
    [ ! -d "$home" ] || power_off "${home##*/h}"
  done
  ip link del "$bridge" 2>/dev/null || true
  ip route del unreachable "$network.0/24" metric 4000 2>/dev/null || true
  if mountpoint -q "$lab"; then
    umount -l "$lab/cgroup" 2>/dev/null || true
    umount -l "$lab"
  fi
  rmdir "$lab" 2>/dev/null || true
}

script=$(realpath "$0")
case "${1:-}" in
  up) up "$2" ;;
  down) down ;;
  kill) power_off "$2" ;;
  start)
    power_on "$2"
    wait_for_sshd "$2"
    ;;
  cut) ip link set "sbctl-c$number_of_lab-$2" down ;;
  heal) ip link set "sbctl-c$number_of_lab-$2" up ;;
  hide) ip -n "sbctl-$number_of_lab-h$2" route replace blackhole "$network.254/32" ;;
  show) ip -n "sbctl-$number_of_lab-h$2" route del blackhole "$network.254/32" ;;
  become-host) become_host "$2" ;;
  *)
    sed -n '2,10p' "$0" >&2
    exit 64
    ;;
esac
