# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause
#
# How often do CPUs meet?  Compare-and-exchanges that were in vain, by what they were for, while
# programs on all CPUs of the machine send to its veth pair, so that XDP runs on each of them.
# Needs a build with -DXKV_COUNT_EXCHANGES: `make exchanges`.  Sourced by bed.sh.

RUN_SECONDS=8
failures=0 # of the programs that make the load

# counts: "NAME DONE FAILED" for each kind, of all CPUs
counts() {
	guest bpftool map dump name xkv_exchanges | tr -d ' \n' |
		grep -oE '"[a-z]+":\{"done":[0-9]+,"failed":[0-9]+' | tr -c 'a-z0-9\n' ' ' |
		awk '{ done[$1] += $3; failed[$1] += $5 }
			END { for (name in done) print name, done[name], failed[name] }' | sort
}

# guest_info NAME: a field of INFO
guest_info() {
	guest in_client redis-cli -h 10.77.0.1 info | tr -d '\r' | sed -n "s/^$1://p"
}

# everywhere COMMAND: in the clients' namespace, once on each CPU
everywhere() {
	local cpu all=''
	for ((cpu = 0; cpu < CPUS; cpu++)); do all+="taskset $(printf %x $((1 << cpu))) $1 & "; done
	guest "in_client sh -c '$all wait' >/dev/null"
}

failed() {
	tail -n 20 output >&2
	failures=$((failures + 1))
}

# An emulated CPU may stand still for so long that the socket of xkvd is full: what needs it gets no
# answer then, as when it is killed.  Answers and the store are judged all the same.
stress() {
	guest in_client /tests/stress --pin-dir /sys/fs/bpf/xkv --killed --seconds "$@" >output ||
		failed
}

# New keys and deletes of one size, of 10,000 keys.
churn() {
	guest in_client xkv-bench -h 10.77.0.1 -c $((2 * CPUS)) -t "$CPUS" \
		--pin "$(seq -s , 0 $((CPUS - 1)))" \
		--keys 10000 --no-load --ratio 1:0 --deletes 50 --seconds "$RUN_SECONDS" \
		--timeout 20000 >output || failed
}

# Transfers between two of four accounts, each in a datagram.
transfers() {
	# shellcheck disable=SC2016 # the machine expands it
	local words='"atomic \"incr $from -1\" \"incr $to 1\""'
	guest "for i in \$(seq 20); do for from in 0 1 2 3; do for to in 0 1 2 3; do \
		test \$from = \$to || echo $words; done; done; done >/tmp/transfers"
	everywhere "xkv -h 10.77.0.1 </tmp/transfers"
}

# measure WHAT COMMAND...: on a fresh store
measure() {
	local ops busy before name did failed
	guest '! test -s /pid || end_xkvd TERM; xkvd --detach --interface xkv0' >output || true
	start xkv0 native
	[[ ! ${ONE_LIST:-} ]] || stress 0.1 --lists 1
	[[ ! ${FEED:-} ]] || guest in_client redis-cli -h 10.77.0.1 \
		config set notify-keyspace-events KEA >output
	ops=$(guest_info udp_operations_driver) busy=$(guest_info xkv_pass_busy)
	before=$(counts)
	"${@:2}"
	ops=$(($(guest_info udp_operations_driver) - ops))
	busy=$(($(guest_info xkv_pass_busy) - busy))
	printf '%s: %d operations in the driver, %d passed up as busy\n' "$1" "$ops" "$busy"
	join <(echo "$before") <(counts) | while read -r name did failed now now_failed; do
		awk -v name="$name" -v n=$((now - did)) -v f=$((now_failed - failed)) \
			'BEGIN { printf "  %-8s %10d done %8d failed, %.3f %% of the tries\n", name,
				n, f, n + f ? 100 * f / (n + f) : 0 }'
	done
}

run_exchanges() {
	echo "$CPUS CPUs, $(accelerator), Linux $(guest uname -r)"
	measure 'new keys and deletes' churn
	ONE_LIST=1 measure 'the same, one list' churn
	FEED=1 measure 'the same, with the feed' churn
	measure 'transfers' transfers
	measure 'stress' stress "$RUN_SECONDS"
	FEED=1 measure 'stress, with the feed' stress "$RUN_SECONDS"
	((failures == 0))
}
