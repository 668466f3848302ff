#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The test bed: comes up, stays up, is repaired whatever is missing, carries
# XDP_TX natively and finished checksums, shares the host's pins, goes away.
# tests/run: once
# tests/run: seconds 15
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=tests/common/tap.sh
. tests/common/tap.sh

if ! require root netns bpffs tools 2>/dev/null; then
	echo "SKIP: needs root, network namespaces, bpffs, clang and bpftool"
	exit 77
fi

export XKV_TESTBED=${XKV_TEST_PREFIX:-xkvt$$}-bed
BED=scripts/testbed.sh
TMP=$(mktemp -d)
PIN=/sys/fs/bpf/xkv-test-${XKV_TESTBED}
trap 'XKV_TESTBED=$XKV_TESTBED $BED down; XKV_TESTBED=$XKV_TESTBED-b $BED down; rm -rf "$TMP" "$PIN"' EXIT

ifindex() {
	$BED exec "$1" ip -o link show dev "$2" | cut -d: -f1
}

if $BED status >/dev/null 2>&1; then fail "status is an error without a bed"; fi
if $BED exec client true 2>/dev/null; then fail "exec is an error without a bed"; fi
$BED up
$BED status >/dev/null || fail "up makes a complete bed"
ok "up makes a complete bed"

before=$(ifindex server xkv0)-$(ifindex client xkv1)
xdp=$($BED exec client ip -o link show dev xkv1 | grep -o 'prog/xdp id [0-9]*')
$BED up
[[ $(ifindex server xkv0)-$(ifindex client xkv1) = "$before" ]] || fail "up twice keeps the links"
$BED exec client ip -o link show dev xkv1 | grep -q "$xdp" || fail "up twice keeps the XDP program"
ok "up twice changes nothing"

repair() {
	local what=$1
	shift
	"$@"
	! $BED status >/dev/null 2>&1 || fail "status sees it: $what"
	$BED up || fail "up repairs: $what"
	$BED status >/dev/null || fail "status is content after the repair: $what"
	ok "repaired: $what"
}
repair "link deleted" $BED exec server ip link del dev xkv0
repair "address lost" $BED exec client ip addr del fd77::2/64 dev xkv1
repair "link down" $BED exec server ip link set dev xkv0 down
repair "pass program lost" $BED exec client ip link set dev xkv1 xdp off
offload() {
	$BED exec client ethtool -K xkv1 tx on >/dev/null
}
repair "offload on again" offload
repair "namespace deleted" ip netns del "$XKV_TESTBED-client"
stale() {
	ip netns del "$XKV_TESTBED-server"
	: >"/run/netns/$XKV_TESTBED-server"
}
repair "namespace left as an empty file" stale
foreign_link() {
	$BED exec server ip link del dev xkv0
	$BED exec server ip link add xkv0 type veth peer name other
}
repair "another device of that name" foreign_link

XKV_TESTBED=$XKV_TESTBED-b $BED up
XKV_TESTBED=$XKV_TESTBED-b $BED status >/dev/null || fail "a second bed beside the first"
$BED status >/dev/null || fail "the first bed beside a second"
XKV_TESTBED=$XKV_TESTBED-b $BED down
$BED status >/dev/null || fail "down removes its own bed only"
ok "two beds at once"

mkdir "$PIN"
$BED exec client test -d "$PIN" || fail "exec sees the host's pins"
[[ $($BED exec client bash -c 'exit 7' && echo 0 || echo $?) = 7 ]] || fail "exec gives the exit status"
[[ $($BED exec client printf '%s|' 'a b' '*') = 'a b|*|' ]] || fail "exec keeps arguments apart"
ok "exec shares the host's pins, gives the exit status, keeps arguments"

# A frame of an experimental type comes back from a program that only says XDP_TX.
cat >"$TMP/tx.bpf.c" <<'END'
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int tx(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	unsigned short *type = data + 12;
	return (void *)(type + 1) <= end && *type == 0xb588 ? XDP_TX : XDP_PASS;
}
char LICENSE[] SEC("license") = "GPL";
END
clang -O2 -g -target bpf -I"/usr/include/$(gcc -dumpmachine)" -c "$TMP/tx.bpf.c" -o "$TMP/tx.bpf.o"
$BED exec server ip link set dev xkv0 xdpdrv obj "$TMP/tx.bpf.o" sec xdp
$BED exec client python3 - <<'END' || fail "XDP_TX comes back on the veth pair"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
s.bind(("xkv1", 0x88B5))
s.settimeout(5)
frame = bytes.fromhex("020000770001" "020000770002" "88b5") + bytes(range(50))
for _ in range(64):
    s.send(frame)
    while True:
        got, where = s.recvfrom(2000)
        if where[2] != socket.PACKET_OUTGOING:
            break
    assert got == frame, got
END
ok "XDP_TX comes back on the veth pair"
$BED exec server ip link set dev xkv0 xdp off

# Checksums that a local sender leaves to the device would show as wrong here.
if command -v tcpdump >/dev/null; then
	$BED exec server tcpdump -i xkv0 -c 2 -vv -n -l udp port 9999 >"$TMP/cap" 2>"$TMP/cap.err" &
	dump=$!
	wait_until 10 grep -q 'listening on' "$TMP/cap.err" || fail "tcpdump starts"
	$BED exec client bash -c 'echo hello >/dev/udp/10.77.0.1/9999; echo hello >/dev/udp/fd77::1/9999'
	wait_until 10 bash -c "! kill -0 $dump" || { kill "$dump"; fail "both datagrams arrive"; }
	[[ $(grep -c 'udp sum ok' "$TMP/cap") = 2 ]] || { cat "$TMP/cap"; fail "UDP checksums are finished"; }
	ok "UDP checksums are finished, IPv4 and IPv6"
else
	skip "UDP checksums on the wire" "tcpdump is not installed"
fi

if XKV_TESTBED='a/b' $BED up 2>/dev/null; then fail "a bad name is refused"; fi
[[ $($BED sideways 2>/dev/null && echo 0 || echo $?) = 2 ]] || fail "wrong usage is exit status 2"
ok "wrong usage is refused"

$BED down
$BED down
! ip netns | grep -q "^$XKV_TESTBED-" || fail "down removes the namespaces"
ok "down removes everything, twice is fine"
echo "1..$n"
