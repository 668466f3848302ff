#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Attaches xkv to a real network interface, in one of two ways, and detaches it.
#
#   attach.sh check DEV              prints which settings of DEV suit XDP, and what to change
#   attach.sh xkvd DEV [OPTION...]   checks, then runs xkvd in the foreground
#   attach.sh ip DEV                 checks, then attaches the object with iproute2, without xkvd;
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
	OBJECT=$XKV_BUILD/xkv.bpf.o XKVD=$XKV_BUILD/xkvd
else
	OBJECT=@LIBDIR@/xkv/xkv.bpf.o XKVD=@SBINDIR@/xkvd
fi
PINS=/sys/fs/bpf/xdp/globals

usage() {
	warn "usage: attach.sh check|ip|status DEV | attach.sh xkvd|detach DEV [OPTION...]"
	exit 2
}

hints=0
hint() {
	printf '  hint  %s\n' "$*"
	hints=$((hints + 1))
}

driver() {
	ethtool -i "$dev" 2>/dev/null | sed -n 's/^driver: //p'
}

# A frame and the room that XDP needs around it must fit a page (or be multi-buffer).
check_mtu() {
	local mtu
	mtu=$(ip -o link show dev "$dev" | grep -o 'mtu [0-9]*' | cut -d' ' -f2)
	echo "  mtu   $mtu"
	((mtu <= 3498)) || die "$dev has an MTU of $mtu, and a native XDP program needs frames that fit" \
		"one page: run 'ip link set dev $dev mtu 1500'"
	((mtu >= 1500)) || hint "datagrams of xkv clients are up to 1500 bytes: on an MTU of $mtu large" \
		"values cannot be fetched over UDP"
}

# feature NAME: on, off or nothing
feature() {
	ethtool -k "$dev" 2>/dev/null | sed -n "s/^$1: \(on\|off\).*/\1/p"
}

check_offloads() {
	[[ $(feature rx-vlan-offload) != on ]] || hint "the device strips VLAN tags before XDP sees them:" \
		"if requests come tagged, run 'ethtool -K $dev rxvlan off'"
	[[ $(feature large-receive-offload) != on ]] ||
		die "large receive offload merges frames and excludes XDP: run 'ethtool -K $dev lro off'"
	if [[ $(driver) = veth && $(feature tx-checksumming) = on ]]; then
		hint "a veth's peer leaves checksums unfinished: run 'ethtool -K PEER tx off' on the peer"
	fi
}

# With fewer transmit queues than CPUs drivers share or lock them, or refuse XDP.
check_channels() {
	local text queues cpus
	cpus=$(nproc)
	text=$(ethtool -l "$dev" 2>/dev/null) || return 0
	queues=$(sed -n '/Current/,$p' <<<"$text" |
		awk '/^(RX|Combined):/ && $2 ~ /^[0-9]+$/ { n += $2 } END { print n + 0 }')
	echo "  queues $queues, CPUs $cpus"
	((queues >= cpus)) || hint "fewer queues than CPUs: 'ethtool -L $dev combined $cpus' spreads the" \
		"load, if the device has as many"
	case $(driver) in
	virtio_net)
		hint "virtio_net needs a transmit queue for each CPU more than it uses: give the virtual" \
			"machine 'queues=$((2 * cpus))', or XDP_TX shares queues under a lock"
		;;
	esac
}

# What to expect.  A driver that is not named here may have native XDP all the same.
verdict() {
	local said
	case $(driver) in
	veth)
		said='native XDP; replies arrive if the peer has an XDP program, too (pass.bpf.o will do)'
		;;
	virtio_net | mlx4_en | mlx5_core | ena | bnxt_en | i40e | ice | igb | igc | ixgbe | \
		ixgbevf | gve | mana | hv_netvsc | sfc | nfp | qede | tun)
		said='native XDP'
		;;
	*) said="not known of this driver: '--mode auto' tries native XDP, and then generic" ;;
	esac
	((hints == 0)) || said+=", see the hints"
	echo "  verdict  $said"
}

check() {
	ip link show dev "$dev" >/dev/null 2>&1 ||
		die "there is no interface $dev: 'ip -br link' lists them"
	if [[ $(ip -o link show dev "$dev") = *'<LOOPBACK'* ]]; then
		echo "$dev: loopback: nothing to check, xkvd answers there through the kernel's stack"
		return
	fi
	command -v ethtool >/dev/null || die "ethtool is missing: run 'apt-get install -y ethtool'"
	echo "$dev: driver $(driver)"
	check_mtu
	check_offloads
	check_channels
	[[ $(ip -o link show dev "$dev") = *,UP[,\>]* ]] || hint "$dev is down: run 'ip link set dev $dev up'"
	verdict
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
check) check ;;
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
