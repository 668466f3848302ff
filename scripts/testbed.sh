#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The test bed: two network namespaces joined by a veth pair, one for the server
# with its NIC and one for the client.  It does not touch the host's interfaces.
#
#   scripts/testbed.sh up                          makes or repairs it
#   scripts/testbed.sh down                        removes it
#   scripts/testbed.sh status                      exit status 0 if it is complete
#   scripts/testbed.sh exec client|server CMD...   runs CMD on one side
#
#               namespace     interface  addresses
#     server    xkv-server    xkv0       10.77.0.1/24  fd77::1/64
#     client    xkv-client    xkv1       10.77.0.2/24  fd77::2/64
#
# XKV_TESTBED (default xkv) is the first part of the namespaces' names: several
# beds can stand side by side, each with the same interfaces and addresses.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

BED=${XKV_TESTBED:-xkv}
SERVER=$BED-server CLIENT=$BED-client
PASS=$XKV_BUILD/pass.bpf.o

usage() {
	warn "usage: testbed.sh up | down | status | exec client|server COMMAND..."
	exit 2
}

# inside NETNS COMMAND...: changes the network namespace only.  'ip netns exec' would also mount a
# new /sys, and with it hide the pins below /sys/fs/bpf.
inside() {
	local ns=$1
	shift
	nsenter --net="/run/netns/$ns" -- "$@"
}

has_netns() {
	# A name whose namespace is gone (a killed 'ip netns add') is an empty file.
	[[ -e /run/netns/$1 ]] && inside "$1" true 2>/dev/null
}

has_link() {
	inside "$1" ip link show dev "$2" >/dev/null 2>&1
}

make_netns() {
	has_netns "$1" && return
	rm -f "/run/netns/$1"
	ip netns add "$1" || die "cannot make the network namespace $1: see 'dmesg | tail'"
}

# The two ends are each other's peer if each names the other's index in the other's namespace.
is_pair() {
	local a b
	a=$(inside "$SERVER" ip -o link show dev xkv0 2>/dev/null) || return 1
	b=$(inside "$CLIENT" ip -o link show dev xkv1 2>/dev/null) || return 1
	[[ $a =~ ^([0-9]+):\ xkv0@if([0-9]+): ]] || return 1
	local index=${BASH_REMATCH[1]} peer=${BASH_REMATCH[2]}
	[[ $b =~ ^$peer:\ xkv1@if$index: && $a = *link-netns\ "$CLIENT"* && $b = *link-netns\ "$SERVER"* ]]
}

make_pair() {
	is_pair && return
	local queues
	has_link "$SERVER" xkv0 && inside "$SERVER" ip link del dev xkv0
	has_link "$CLIENT" xkv1 && inside "$CLIENT" ip link del dev xkv1
	# A queue for each CPU, so that no two share an XDP_TX ring.
	queues=$(nproc)
	ip link add xkv0 netns "$SERVER" address 02:00:00:77:00:01 \
		numtxqueues "$queues" numrxqueues "$queues" \
		type veth \
		peer name xkv1 netns "$CLIENT" address 02:00:00:77:00:02 \
		numtxqueues "$queues" numrxqueues "$queues" ||
		die "cannot make the veth pair: run 'modprobe veth', and see 'dmesg | tail'"
}

# configure NETNS DEV IPV4 IPV6
configure() {
	local ns=$1 dev=$2
	# Captures must contain only what the tests send: no router solicitations, no multicast
	# reports of link-local addresses; and no duplicate address detection, which takes a second.
	# shellcheck disable=SC2016 # expanded inside
	inside "$ns" bash -c 'cd "/proc/sys/net/ipv6/conf/$1" && echo 0 | tee disable_ipv6 accept_dad \
		router_solicitations accept_ra' - "$dev" >/dev/null ||
		die "cannot configure IPv6 on $dev: the kernel must have CONFIG_IPV6 and run without ipv6.disable=1"
	inside "$ns" ip link set dev "$dev" addrgenmode none
	# No partial UDP checksums (tx) and no VLAN tags beside the frame (txvlan), as on a real network:
	# XDP sees only the bytes of the frame.
	inside "$ns" ethtool -K "$dev" tx off txvlan off rxvlan off \
		tx-vlan-stag-hw-insert off rx-vlan-stag-hw-parse off >/dev/null 2>&1 ||
		die "cannot switch off the checksum offload of $dev: see 'ip netns exec $ns ethtool -k $dev'"
	inside "$ns" ip link set dev lo up
	inside "$ns" ip link set dev "$dev" up
	inside "$ns" ip addr replace "$3" dev "$dev"
	inside "$ns" ip addr replace "$4" dev "$dev" nodad
}

has_xdp() {
	[[ $(inside "$1" ip -o link show dev "$2") =~ prog/xdp ]]
}

attach_pass() {
	has_xdp "$CLIENT" xkv1 && return
	[[ -r $PASS ]] || make -s -C "$XKV_ROOT" BUILD="$XKV_BUILD" "$PASS" >&2 ||
		die "cannot build $PASS: run 'make' first"
	inside "$CLIENT" ip link set dev xkv1 xdpdrv obj "$PASS" sec xdp ||
		die "the kernel refused the XDP pass program on xkv1: see 'dmesg | tail'"
}

# side_ready NETNS DEV IPV4 IPV6: up with a carrier and both addresses usable
side_ready() {
	local link addr
	link=$(inside "$1" ip -o link show dev "$2") || return 1
	addr=$(inside "$1" ip -o addr show dev "$2") || return 1
	[[ $link = *LOWER_UP* && $addr = *" $3 "* && $addr = *" $4 "* && $addr != *tentative* ]]
}

offloads_off() {
	local features
	features=$(inside "$1" ethtool -k "$2") || return 1
	[[ $features = *"tx-checksumming: off"* && $features = *"tx-vlan-offload: off"* ]]
}

complete() {
	has_netns "$SERVER" && has_netns "$CLIENT" && is_pair &&
		side_ready "$SERVER" xkv0 10.77.0.1/24 fd77::1/64 &&
		side_ready "$CLIENT" xkv1 10.77.0.2/24 fd77::2/64 &&
		offloads_off "$SERVER" xkv0 && offloads_off "$CLIENT" xkv1 && has_xdp "$CLIENT" xkv1
}

up() {
	complete && return
	make_netns "$SERVER"
	make_netns "$CLIENT"
	make_pair
	configure "$SERVER" xkv0 10.77.0.1/24 fd77::1/64
	configure "$CLIENT" xkv1 10.77.0.2/24 fd77::2/64
	attach_pass
	wait_until 10 complete ||
		die "the test bed $BED did not come up within 10 s: run 'scripts/testbed.sh status'"
}

down() {
	local ns dev
	for ns in "$SERVER" "$CLIENT"; do
		[[ -e /run/netns/$ns ]] || continue
		# A process inside would keep a namespace, and with it the pair, alive.
		for dev in xkv0 xkv1; do
			! has_link "$ns" "$dev" || inside "$ns" ip link del dev "$dev"
		done
		ip netns del "$ns" 2>/dev/null || rm -f "/run/netns/$ns"
	done
}

show() {
	local ns
	for ns in "$SERVER" "$CLIENT"; do
		if has_netns "$ns"; then
			echo "$ns:"
			inside "$ns" ip -br addr | sed 's/^/    /'
			inside "$ns" ip -o link | grep -o 'xkv[01]@.*prog/xdp.*' | sed 's/@.*prog/: prog/;s/^/    /' || true
		else
			echo "$ns: does not exist"
		fi
	done
}

status() {
	show
	complete || die "the test bed $BED is not complete: run 'scripts/testbed.sh up'"
}

run_inside() {
	local ns
	case ${1:-} in
	client) ns=$CLIENT ;;
	server) ns=$SERVER ;;
	*) usage ;;
	esac
	shift
	(($#)) || usage
	has_netns "$ns" || die "there is no test bed $BED: run 'scripts/testbed.sh up' first"
	exec nsenter --net="/run/netns/$ns" -- "$@"
}

# Making and removing beds takes turns; one lock for all, so that no files pile up.
lock_bed() {
	exec 9>/run/lock/xkv-testbed.lock
	flock 9
}

[[ $BED =~ ^[A-Za-z0-9_.-]{1,200}$ ]] ||
	die "XKV_TESTBED='$BED' cannot be part of a name: use letters, digits, '.', '_' and '-'"
action=${1:-}
[[ $action ]] || usage
shift
[[ $action = exec || $# -eq 0 ]] || usage
case $action in
up)
	require root netns bpffs
	lock_bed
	up
	;;
down)
	require root
	lock_bed
	down
	;;
status)
	require root
	status
	;;
exec)
	require root
	run_inside "$@"
	;;
*) usage ;;
esac
