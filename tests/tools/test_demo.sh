#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The demo from end to end, and that nothing stays behind: not after it, not
# after an interruption in the middle, by key or by signal.
# tests/run: once
# tests/run: seconds 20
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=tests/common/tap.sh
. tests/common/tap.sh

if ! require root kernel btf bpffs netns tools 2>/dev/null || ! command -v redis-cli >/dev/null; then
	echo "SKIP: needs root, network namespaces, bpffs, clang, bpftool and redis-cli"
	exit 77
fi

OUT=$(mktemp)
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR" "$OUT"' EXIT

nothing_left() {
	[[ -z $(find "$TMPDIR" -mindepth 1) ]] || fail "$1: no temporary directory stays"
	[[ ! -e /sys/fs/bpf/xkv-demo ]] || fail "$1: no pin stays"
	if ip netns | grep -q '^xkv-demo-'; then fail "$1: no namespace stays"; fi
	if pgrep -f -- '--pin-dir /sys/fs/bpf/xkv-demo' >/dev/null; then fail "$1: no process stays"; fi
}

# With job control the demo has a process group of its own, as on a terminal.  A shell cannot trap
# signals that were ignored when it was started, as SIGINT is for whatever runs in the background.
start() {
	: >"$OUT" # now: what the last demo said is not taken for this one's
	set -m
	env --default-signal=INT,TERM,HUP "$@" scripts/demo.sh >"$OUT" 2>&1 </dev/null &
	demo=$!
	set +m
}

# interrupt WHAT TEXT STATUS KILL...: when the demo has said TEXT, does KILL
interrupt() {
	local what=$1 text=$2 want=$3 status=0
	shift 3
	start XKV_DEMO_SECONDS=30
	wait_until 60 grep -q "$text" "$OUT" || fail "$what: '$text' is not reached"
	"$@"
	wait "$demo" 2>/dev/null || status=$?
	[[ $status = "$want" ]] || fail "$what: exit status $status instead of $want"
	nothing_left "$what"
	ok "$what: ended with $want, and nothing stays"
}
key() {
	kill -INT -- "-$demo"
}
signal() {
	kill "-$1" "$demo"
}

start XKV_DEMO_SECONDS=1
wait "$demo" || fail "the demo succeeds"
nothing_left "the whole demo"
inside='refuses the program that prints it'
! kernel_traces || inside=' 128 bytes, version'
for text in 'hello from the driver' 'quince' 'operations per second' "$inside" \
	'answered in the driver: [1-9]' 'still without a daemon' 'RDB looks OK' \
	'xkv_get_hits:' 'Next:'; do
	grep -q -- "$text" "$OUT" || fail "the demo shows: $text"
done
ok "the whole demo"

interrupt "Ctrl-C under load" 'run *[12] s' 130 key
interrupt "SIGTERM to the script alone under load" 'run *[12] s' 143 signal TERM
interrupt "Ctrl-C while xkvd starts" 'Starting xkvd' 130 key
interrupt "SIGTERM while the bed is made" 'Making a test bed' 143 signal TERM

nothing() {
	outcome=0
	"$@" >"$OUT" 2>&1 </dev/null || outcome=$?
	[[ $outcome != 0 && $(wc -l <"$OUT") = 1 ]]
}
nothing env XKV_REQ_UID=1000 scripts/demo.sh || fail "not root: one sentence"
nothing env XKV_REQ_KERNEL=5.4 scripts/demo.sh || fail "an old kernel: one sentence"
nothing env XKV_REQ_BTF=/none scripts/demo.sh || fail "no BTF: one sentence"
nothing env XKV_REQ_BPFFS=/none scripts/demo.sh || fail "no bpffs: one sentence"
ok "what is missing is said in one sentence, and nothing is made"
nothing_left "refused"
echo "1..$n"
