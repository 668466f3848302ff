# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Functions that the scripts share: messages, waiting for conditions, and checks
# of the machine.  Sourced, never run.
#
# Every check reads its input through an XKV_REQ_* variable, so that tests can
# provoke each message on any machine.

XKV_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Locks against a second run; containers and fresh systems may lack the directory.
[[ -d /run/lock || $EUID != 0 ]] || mkdir -p /run/lock
XKV_BUILD=${XKV_BUILD:-$XKV_ROOT/build}
[[ $XKV_BUILD = /* ]] || XKV_BUILD=$XKV_ROOT/$XKV_BUILD
# A sudo or cron PATH may lack the directories where ip, ethtool and bpftool live.
PATH=$PATH:/usr/sbin:/sbin

# shellcheck disable=SC2034 # read by the scripts that source this file
XKV_MIN_KERNEL=6.1

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

warn() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# wait_until SECONDS COMMAND...: runs COMMAND until it succeeds; false when the time is up.
wait_until() {
	local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
	shift
	until "$@" >/dev/null 2>&1; do
		((${EPOCHREALTIME/[.,]/} < end)) || return 1
		sleep 0.02
	done
}

# version_at_least HAVE WANT: compares the first two numbers, so "6.8.0-31-generic" will do.
version_at_least() {
	local major minor pattern='^([0-9]+)\.?([0-9]*)'
	[[ $1 =~ $pattern ]] || return 1
	major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]:-0}
	[[ $2 =~ $pattern ]] || return 1
	((major > BASH_REMATCH[1] || (major == BASH_REMATCH[1] && minor >= ${BASH_REMATCH[2]:-0})))
}

require_root() {
	((${XKV_REQ_UID:-$EUID} == 0)) && return
	warn "loading BPF programs and making network namespaces needs root: run it again with sudo"
	return 1
}

require_kernel() {
	local release=${XKV_REQ_KERNEL:-$(uname -r)}
	version_at_least "$release" "$XKV_MIN_KERNEL" && return
	warn "kernel $release is too old: xkv needs Linux $XKV_MIN_KERNEL or newer (Debian 12 has 6.1," \
		"Ubuntu 24.04 has 6.8)"
	return 1
}

require_btf() {
	local btf=${XKV_REQ_BTF:-/sys/kernel/btf/vmlinux}
	[[ -r $btf ]] && return
	warn "this kernel has no type information ($btf): use a kernel built with" \
		"CONFIG_DEBUG_INFO_BTF=y, as those of Debian and Ubuntu are"
	return 1
}

is_bpffs() {
	[[ $(stat -f -c %t -- "$1" 2>/dev/null) = cafe4a11 ]]
}

# Mounts bpffs where systemd does, and leaves it mounted.
require_bpffs() {
	local dir=${XKV_REQ_BPFFS:-/sys/fs/bpf} lock
	is_bpffs "$dir" && return
	if [[ $dir != /sys/fs/bpf ]]; then # never cover a directory that may hold something else
		warn "the BPF file system is not mounted at $dir: as root, run 'mount -t bpf bpf $dir'"
		return 1
	fi
	# Two mounts on one another would hide the pins in the lower one, so take turns.
	exec {lock}>/run/lock/xkv-bpffs.lock 2>/dev/null && flock "$lock"
	is_bpffs "$dir" || mount -t bpf bpf "$dir" 2>/dev/null || true
	[[ -z ${lock:-} ]] || exec {lock}>&-
	is_bpffs "$dir" && return
	warn "the BPF file system is not mounted at $dir and cannot be mounted there:" \
		"as root, run 'mount -t bpf bpf $dir' (the kernel needs CONFIG_BPF_SYSCALL=y)"
	return 1
}

require_netns() {
	local ip=${XKV_REQ_IP:-ip}
	if ! command -v "$ip" >/dev/null; then
		warn "the ip command is missing: run 'sudo scripts/setup.sh' (package iproute2)"
		return 1
	fi
	# Inside a namespace that ends with the command, so nothing has to be removed.
	unshare --net "$ip" link add xkvprobe0 type veth peer name xkvprobe1 2>/dev/null && return
	warn "network namespaces or veth pairs cannot be made here: run as root on a kernel with" \
		"CONFIG_NET_NS and CONFIG_VETH ('modprobe veth'); in a container, give it CAP_SYS_ADMIN" \
		"and CAP_NET_ADMIN"
	return 1
}

# Prints the first bpftool that works.  Ubuntu's /usr/sbin/bpftool is a wrapper which only looks for
# the tools of the very kernel that runs; those of another one serve as well.
find_bpftool() {
	local tool
	for tool in "${BPFTOOL:-bpftool}" /usr/lib/linux-tools/*/bpftool /usr/lib/linux-tools-*/bpftool; do
		tool=$(command -v "$tool" 2>/dev/null) || continue
		if "$tool" version >/dev/null 2>&1; then
			printf '%s\n' "$tool"
			return
		fi
	done
	return 1
}

require_tools() {
	local missing=()
	command -v "${XKV_REQ_CLANG:-clang}" >/dev/null || missing+=(clang)
	BPFTOOL=${XKV_REQ_BPFTOOL:-${BPFTOOL:-bpftool}} find_bpftool >/dev/null || missing+=(bpftool)
	((${#missing[@]} == 0)) && return
	warn "what the build needs is missing (${missing[*]}): run 'sudo scripts/setup.sh'"
	return 1
}

# require NAME...: runs all checks, so that everything that is missing is reported at once.
require() {
	local name bad=0
	for name; do
		"require_$name" && continue
		bad=1
		[[ $name != root ]] || break # the other checks cannot tell without it
	done
	return "$bad"
}
