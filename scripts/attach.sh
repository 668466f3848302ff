#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Attaches xkv to a real network interface, in one of two ways, and detaches it.
#
#   attach.sh xkvd DEV [OPTION...]   runs `xkv doctor`, then xkvd in the foreground
#   attach.sh ip DEV                 runs `xkv doctor`, then attaches the object with iproute2, without xkvd;
#                                    'xkvd --adopt /sys/fs/bpf/xdp/globals' can adopt it later
#   attach.sh status DEV             prints what is attached
#   attach.sh detach DEV [OPTION...] detaches the program; removes xkvd's maps and their data (to keep
#                                    it, 'xkv save' first); maps made by 'attach.sh ip' stay pinned;
#                                    OPTION as for xkvd (--pin-dir)
#
# Exit status: 0 done, 1 refused (with the reason), 2 wrong usage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# Uses the build of the source tree, or the installed files.
if [[ -d $XKV_ROOT/loader ]]; then
	OBJECT=$XKV_BUILD/xkv.bpf.o XKVD=$XKV_BUILD/xkvd XKV=$XKV_BUILD/xkv
else
	OBJECT=@XKVLIBDIR@/xkv.bpf.o XKVD=@SBINDIR@/xkvd XKV=@BINDIR@/xkv
fi
PINS=/sys/fs/bpf/xdp/globals

usage() {
	warn "usage: attach.sh ip|status DEV | attach.sh xkvd|detach DEV [OPTION...]"
	exit 2
}

# What is in the way is told, and left to xkvd or ip, which end with an error of their own.
check() {
	ip link show dev "$dev" >/dev/null 2>&1 ||
		die "there is no interface $dev: 'ip -br link' lists them"
	"$XKV" doctor "$dev" || true
}

attached() {
	ip -o -d link show dev "$dev" | grep -o 'prog/xdp.*\|xdp[a-z]* id [0-9]*' || true
}

attach_ip() {
	[[ -r $OBJECT ]] || die "$OBJECT is missing: run 'make' (or 'make install') first"
	[[ -z $(attached) ]] || die "$dev has an XDP program already ($(attached)): if it is xkv's," \
		"'xkvd --adopt $PINS --interface $dev' takes it over as it is; else ask its owner"
	ip link set dev "$dev" xdpdrv obj "$OBJECT" sec xdp ||
		die "$dev's driver refused the program in native mode: 'xkvd --interface $dev --mode auto' can" \
			"use generic mode"
	echo "attached; the maps are pinned below $PINS"
	echo "next: $XKVD --interface $dev --adopt $PINS"
}

# Takes off what 'attach.sh ip' has attached; programs of others stay.
detach_ip() {
	[[ ! -d $PINS ]] || flock -n "$PINS" true ||
		die "an xkvd is running on the maps in $PINS: stop it first"
	[[ $(attached) = *"name xkv_xdp "* ]] || return 0
	ip link set dev "$dev" xdpdrv off 2>/dev/null || true
	ip link set dev "$dev" xdpgeneric off 2>/dev/null || true
}

detach() {
	local said='' refused='' pins
	pins=$(readlink -f "$PINS") # iproute2 makes it a link
	if [[ -x $XKVD ]]; then
		said=$("$XKVD" --detach --interface "$dev" "$@" 2>&1) || refused=yes
	fi
	if [[ ! -x $XKVD || $refused && $said = *"uses the maps in $pins,"* ]]; then
		detach_ip
	else
		printf '%s\n' "$said" >&2
		[[ ! $refused ]] || exit 1
	fi
	[[ -z $(attached) ]] || die "$dev still has an XDP program: 'bpftool net show dev $dev' tells whose"
	# The pins made by 'attach.sh ip' keep the data; only print how to remove them.
	if [[ -d $PINS ]] && [[ -n $(ls -A "$PINS") ]]; then
		echo "maps stay pinned below $PINS: 'rm -r $PINS' frees them, and what they hold"
	fi
}

(($# >= 2)) || usage
action=$1 dev=$2
shift 2
[[ $action = xkvd || $action = detach || $# -eq 0 ]] || usage
case $action in
xkvd)
	require root kernel btf bpffs
	check
	exec "$XKVD" --interface "$dev" "$@"
	;;
ip)
	require root kernel btf bpffs
	check
	attach_ip
	;;
status)
	if [[ -n $(attached) ]]; then attached; else echo "nothing is attached to $dev"; fi
	;;
detach)
	require root
	detach "$@"
	;;
*) usage ;;
esac
