#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Shows xkv from the build to the restart on a test bed of its own, and removes
# everything that it made, even if it is interrupted.
#
#   sudo make demo          XKV_DEMO_SECONDS=5 is how long the load runs
#
# It does not touch the host's network: all traffic is between two namespaces.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

export XKV_BUILD XKV_TESTBED=xkv-demo
BED=$XKV_ROOT/scripts/testbed.sh
PINS=/sys/fs/bpf/xkv-demo
SERVER=10.77.0.1
LOAD_SECONDS=${XKV_DEMO_SECONDS:-5}
TMP='' daemon='' child='' finished=0

# Colours only on a terminal.
bold='' plain=''
[[ ! -t 1 ]] || bold=$'\e[1m' plain=$'\e[0m'

step() {
	printf '\n%s==> %s%s\n' "$bold" "$*" "$plain"
}

on() {
	local side=$1
	shift
	"$BED" exec "$side" "$@"
}

# typed COMMAND...: the command as one would type it
typed() {
	local word line=''
	for word in "${@/#"$XKV_BUILD"\//}"; do
		[[ $word != *' '* ]] || word="'$word'"
		line+=" $word"
	done
	printf '%s' "${line# }"
}

# show SIDE COMMAND...: prints a command, then its output
show() {
	local side=$1
	shift
	printf '    %s$ %s\n' "$side" "$(typed "$@")"
	on "$side" "$@" 2>&1 | sed 's/^/    /'
}

# Long commands run beside the shell: it can then be interrupted at once.
long() {
	"$@" &
	child=$!
	local status=0
	wait "$child" || status=$?
	child=''
	return "$status"
}

failed() {
	warn "$1"
	if [[ -s $TMP/xkvd.log ]]; then
		warn "the last lines of xkvd's log:"
		tail -n 15 "$TMP/xkvd.log" | sed 's/^/    /' >&2
	fi
	exit 1
}

xkv() {
	show client "$XKV_BUILD/xkv" -h "$SERVER" "$@" || failed "xkv $1 failed${2:+ ($2)}"
}

redis() {
	show client redis-cli -h "$SERVER" "$@" || failed "redis-cli $1 failed: is redis-tools installed?"
}

# expect TEXT COMMAND...: what the demo shows is also checked
expect() {
	local text=$1 got
	shift
	got=$(on client "$@" 2>&1) || failed "'$(typed "$@")' failed: $got"
	[[ $got = *"$text"* ]] || failed "'$(typed "$@")' said '$got' instead of '$text'"
}

answers() {
	kill -0 "$daemon" 2>/dev/null || return 0 # ended: start_daemon looks at that
	[[ $(on client redis-cli -h "$SERVER" ping) = PONG ]]
}

start_daemon() {
	# Not through on(): the process must be xkvd itself, so that signals reach it.
	"$BED" exec server "$XKV_BUILD/xkvd" --interface xkv0 --mode native --dir "$TMP" --pin-dir "$PINS" \
		--protected-mode no --max-keys 200000 >>"$TMP/xkvd.log" 2>&1 8>&- &
	daemon=$!
	disown "$daemon" # or the shell would report its end
	wait_until 30 answers || failed "xkvd does not answer after 30 s"
	kill -0 "$daemon" 2>/dev/null || failed "xkvd did not start"
}

gone() {
	! kill -0 "$1" 2>/dev/null
}

# stop SIGNAL: ends the daemon and waits for it
stop_daemon() {
	[[ -n $daemon ]] || return 0
	local pid=$daemon
	daemon=''
	kill "-$1" "$pid" 2>/dev/null || return 0
	if ! wait_until 20 gone "$pid"; then
		kill -KILL "$pid" 2>/dev/null || true
		wait_until 20 gone "$pid" || warn "xkvd (pid $pid) does not end"
	fi
}

detach() {
	[[ -d $PINS ]] || return 0
	on server "$XKV_BUILD/xkvd" --detach --interface xkv0 --pin-dir "$PINS" >>"$TMP/xkvd.log" 2>&1 ||
		true
	rm -rf "$PINS"
}

clean_up() {
	local status=$?
	trap '' INT TERM HUP
	trap - EXIT
	[[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
	((finished)) || printf '\n%s\n' "removing what the demo made ..." >&2
	stop_daemon TERM
	detach
	"$BED" down || true
	[[ -z $TMP ]] || rm -rf "$TMP"
	exit "$status"
}

build() {
	step "Building into ${XKV_BUILD#"$XKV_ROOT"/}/"
	long make -s -C "$XKV_ROOT" "-j$(nproc)" BUILD="${XKV_BUILD#"$XKV_ROOT"/}" all </dev/null ||
		failed "the build failed: the first error above says why; 'sudo scripts/setup.sh' installs" \
			"what is missing"
}

make_bed() {
	step "Making a test bed: two network namespaces, a veth pair between them"
	"$BED" down
	rm -rf "$PINS"
	"$BED" up || failed "the test bed did not come up"
	"$BED" status | sed 's/^/    /'
}

run_daemon() {
	step "Starting xkvd on the server's interface, XDP in native mode"
	start_daemon
	sed 's/^/    /' "$TMP/xkvd.log"
	on server ip -o link show dev xkv0 | grep -q 'prog/xdp' || failed "no native XDP program on xkv0"
}

both_frontends() {
	step "UDP: the driver answers xkv, the packet never reaches the network stack"
	xkv set greeting "hello from the driver"
	xkv get greeting
	step "TCP: xkvd answers Redis clients, from the same store"
	redis get greeting
	redis set fruit "quince" EX 3600
	xkv get fruit
	redis ttl fruit
	expect "hello from the driver" redis-cli -h "$SERVER" get greeting
	expect "quince" "$XKV_BUILD/xkv" -h "$SERVER" get fruit
}

load() {
	step "Load: one client for $LOAD_SECONDS seconds, 9 GETs to a SET, 16-byte keys, 128-byte values, zipf 0.99"
	long "$BED" exec client "$XKV_BUILD/xkv-bench" -h "$SERVER" --seconds "$LOAD_SECONDS" --keys 100000 --progress \
		--ratio 1:9 --distribution zipf:0.99 || failed "xkv-bench failed"
}

load_tcp() {
	local before after
	step "Load over TCP, by an unchanged redis-benchmark: the driver answers on its connections"
	before=$(answered_over_tcp)
	show client redis-benchmark -h "$SERVER" -c 4 -n 20000 -r 100000 -d 128 -t set,get --csv ||
		failed "redis-benchmark failed"
	after=$(answered_over_tcp)
	echo "    answered in the driver: $((after - before)) of 40000 commands"
	((after - before > 20000)) || failed "the driver answered too few of them"
}

answered_over_tcp() {
	on client redis-cli -h "$SERVER" info xkv | tr -d '\r' | sed -n 's/^xkv_tcp_requests://p'
}

look_inside() {
	step "What is in the store, printed in the kernel"
	if [[ -e $PINS/entries ]]; then # the reader ends before the writer
		{ cat "$PINS/entries" 2>&1 || true; } | sed -n '1,8s/^/    /p;8q' || true
	else
		echo "    this kernel refuses the program that prints it"
	fi
	step "Which keys are used most, by samples"
	"$XKV_BUILD/xkv" hot -n 5 --pin-dir "$PINS" | sed 's/^/    /'
}

crash() {
	step "Killing xkvd (-9): the driver goes on answering GET and SET"
	stop_daemon KILL
	xkv get greeting
	xkv set greeting "still without a daemon"
	expect "still without" "$XKV_BUILD/xkv" -h "$SERVER" get greeting
	step "Starting xkvd again: it adopts the program and the data that are pinned"
	start_daemon
	redis get greeting
	expect "still without" redis-cli -h "$SERVER" get greeting
}

snapshot() {
	step "Snapshot: to a file that Redis' own tools read"
	xkv save
	if command -v redis-check-rdb >/dev/null; then
		redis-check-rdb "$TMP/dump.rdb" 2>&1 | sed -n '/Checksum\|RDB looks\|keys read/s/^/    /p'
	fi
	[[ -s $TMP/dump.rdb ]] || failed "no snapshot in $TMP"
	step "Taking everything out of the kernel, and starting from the file alone"
	stop_daemon TERM
	detach
	start_daemon
	xkv get greeting
	redis dbsize
	expect "still without" "$XKV_BUILD/xkv" -h "$SERVER" get greeting
}

counters() {
	step "What was counted: by xkv, each reason under its name, and by the driver (zeros left out)"
	on client "$XKV_BUILD/xkv" -h "$SERVER" stats xkv | tr -d '\r' >"$TMP/stats" ||
		failed "xkv stats failed"
	grep '^xkv_.*:[0-9]*$' "$TMP/stats" | grep -v ':0$' | sed 's/^/    /' || true
	on server ethtool -S xkv0 2>/dev/null | sed -n 's/^ *\(.*xdp.*: [1-9]\)/    \1/p' || true
}

require root kernel btf bpffs netns tools || exit 1
command -v redis-cli >/dev/null || die "redis-cli is missing: run 'sudo scripts/setup.sh demo'"
exec 8>/run/lock/xkv-demo.lock
flock -n 8 || die "another demo is running: wait until it has ended"
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
TMP=$(mktemp -d "${TMPDIR:-/tmp}/xkv-demo.XXXXXX")
build
make_bed
run_daemon
both_frontends
load
load_tcp
look_inside
crash
counters
snapshot
finished=1
step "Done; everything that the demo made is being removed"
cat <<'END'
    Next:
      sudo make check                  every test
      sudo make bench-quick            the store against its ceilings
      sudo make install                then see docs/operations.md: real interfaces, systemd, snapshots
      docs/protocol.md, client/xkv.h   writing clients
END
