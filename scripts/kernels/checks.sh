# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause
#
# What boot-kernel.sh checks in the machine that runs.  Sourced by bed.sh.

KERNEL=''
C_TEST_SECONDS=900 # without KVM, on a machine that does other work, too

# report passed|failed|skipped WHAT: the file results has a line for each
report() {
	printf '%s %s: %s\n' "$1" "$KERNEL" "$2" | tee -a results
}

# check WHAT EXPECTED GOT
check() {
	if [[ $2 = "$3" ]]; then report passed "$1"; else report failed "$1: '$3', not '$2'"; fi
}

# succeeds WHAT COMMAND...: in the machine
succeeds() {
	local status=0
	guest "${@:2}" >output || status=$?
	check "$1" 0 "$status"
	((!status)) || tail -n 40 output >&2
}

# start DEVICE MODE [OPTION...]: starts xkvd and waits until it serves
start() {
	guest start_xkvd --interface "$1" --mode "$2" --protected-mode no --max-keys 100000 \
		--dir /data --save "''" --hot-sample-rate 1 "${@:3}" || guest cat /log
}

# on SIDE COMMAND...: runs a client in the machine's namespace or here, outside the machine
on() {
	if [[ $1 = inside ]]; then
		guest "nsenter --net=/run/netns/client $(printf '%q ' "${@:2}")"
	else
		"${@:2}" </dev/null
	fi
}

# info NAME: a field of INFO
info() {
	on "$side" redis-cli -h "$server" info | tr -d '\r' | sed -n "s/^$1://p"
}

# ask CLIENT ARGUMENT...: xkv and xkv-bench speak UDP, redis-cli TCP
ask() {
	on "$side" "$1" -h "$server" "${@:2}" 2>&1
}

# Values are verified, and the driver serves all requests.
burst() {
	local before after out
	before=$(info udp_operations_driver)
	out=$(ask xkv-bench -c 32 -t 2 -n 5000 --keys 1000 --ratio 1:4 --verify --json) || true
	after=$(info udp_operations_driver)
	check "$nic: load generator's values" 0 \
		"$(tr -d ' \n' <<<"$out" | sed -n 's/.*"verify_failures":\([0-9]*\).*/\1/p')"
	check "$nic: served by XDP" 1 "$((after - before >= 5000))"
}

# both_queues COUNTER: virtio_net has counted this on both
both_queues() {
	check "$nic: queues whose requests the driver answered" 2 \
		"$(guest ethtool -S "$device" | grep -cE "rx(_queue_)?[0-9]+_$1: [1-9]")"
}

# What cat shows of the maps.
files() {
	local n
	n=$(ask redis-cli dbsize)
	check "$nic: entries" "$n" "$(guest grep -c version /sys/fs/bpf/xkv/entries)"
	check "$nic: dump" 1 \
		"$(guest grep -c "'\"key\":\"number\",\"value\":\"4200\"'" /sys/fs/bpf/xkv/dump)"
	check "$nic: hot keys" 1 "$(guest "xkv hot | grep -c '\"number\"'")"
}

# smoke NIC DEVICE MODE SERVER SIDE: from attaching to detaching, with a kill -9 between
smoke() {
	local nic=$1 device=$2 mode=$3 server=$4 side=$5
	if ! guest ip link show "$device" >/dev/null; then
		report skipped "$nic: the kernel has no such device"
		return
	fi
	start "$device" "$mode"
	check "$nic: attached" "1 $mode" "$(info xkv_attached) $(info xkv_mode)"
	check "$nic: set over TCP" OK "$(ask redis-cli set tcp one)"
	check "$nic: get over UDP" one "$(ask xkv get tcp)"
	check "$nic: set over UDP" OK "$(ask xkv set udp two)"
	check "$nic: get over TCP" two "$(ask redis-cli get udp)"
	guest end_xkvd KILL
	check "$nic: get after kill -9" two "$(ask xkv get udp)"
	check "$nic: set after kill -9" OK "$(ask xkv set udp six)"
	start "$device" "$mode"
	check "$nic: adopted" 2 "$(guest grep -c adopted /log)"
	check "$nic: get after adopting" six "$(ask redis-cli get udp)"
	check "$nic: increment over UDP" 42 "$(ask xkv incr number 42)"
	check "$nic: append over UDP" 4 "$(ask xkv append number 00)"
	check "$nic: a value of several pages" OK \
		"$(on "$side" sh -c "head -c 300000 /dev/zero | redis-cli -h $server -x set large")"
	files
	burst
	[[ $nic != virtio_net ]] || both_queues xdp_tx
	ends
}

# The store is whole, and nothing stays on the device.
ends() {
	succeeds "$nic: xkv check" xkv check
	guest end_xkvd TERM
	succeeds "$nic: detach" xkvd --detach --interface "$device"
	check "$nic: no XDP program" 0 \
		"$(guest "for dev in $device; do ip link show \$dev; done" | grep -c xdp)"
}

# smoke_batched NIC DEVICE SERVER SIDE: the device redirects to itself; with a kill -9 between
smoke_batched() {
	local nic="$1, batched" device=$2 server=$3 side=$4 packets
	guest ip link show "$device" >/dev/null || return 0 # smoke() has said so
	start "$device" native --batch on
	check "$nic: mode" "native on" "$(info xkv_mode) $(info xkv_batch)"
	check "$nic: set over TCP" OK "$(ask redis-cli set tcp one)"
	check "$nic: get over UDP" one "$(ask xkv get tcp)"
	check "$nic: overwrite over UDP" OK "$(ask xkv set tcp two)"
	check "$nic: get over TCP" two "$(ask redis-cli get tcp)"
	check "$nic: increment over UDP" 42 "$(ask xkv incr number 42)"
	check "$nic: increment over TCP" 43 "$(ask redis-cli incr number)"
	check "$nic: delete over UDP" 1 "$(ask xkv del tcp)"
	check "$nic: deleted" '' "$(ask redis-cli get tcp)"
	burst
	packets=$(info xkv_batch_packets)
	check "$nic: packets that were queued" 1 "$((packets > 5000))"
	guest end_xkvd KILL
	check "$nic: set after kill -9" OK "$(ask xkv set number 6)"
	start "$device" native --batch on
	check "$nic: adopted" 2 "$(guest grep -c adopted /log)"
	check "$nic: get after adopting" 6 "$(ask redis-cli get number)"
	# Not before: for the first packets after it was attached tap devices choose one queue.
	burst
	both_queues xdp_redirects
	packets=$(info xkv_batch_packets)
	check "$nic: packets that were queued before and after" 1 "$((packets > 10000))"
	check "$nic: lost in the queue" 0 "$(info xkv_batch_lost)"
	ends
}

# smoke_tcp NIC DEVICE MODE SERVER SIDE: the driver answers on connections; with a kill -9 between
smoke_tcp() {
	local nic="$1, TCP fast path" device=$2 mode=$3 server=$4 side=$5 value
	guest ip link show "$device" >/dev/null || return 0 # smoke() has said so
	guest 'modprobe sch_ingress; modprobe cls_bpf' || true
	start "$device" "$mode" --tcp-fast-path on
	check "$nic: increments" 100 "$(ask redis-cli -r 100 incr number | tail -n 1)"
	printf -v value '%01000d' 0
	check "$nic: set" OK "$(ask redis-cli set long "$value")"
	check "$nic: gets of a long value" 100 \
		"$(ask redis-cli -r 100 get long | grep -cx "$value")"
	check "$nic: answered by the driver" 1 "$(($(info xkv_tcp_requests) >= 180))"
	guest end_xkvd KILL
	start "$device" "$mode" --tcp-fast-path on
	check "$nic: increments after kill -9" 200 "$(ask redis-cli -r 100 incr number | tail -n 1)"
	ends
}

# stacked WHAT CLIENT LINK: the driver answers for the address of up0, which gets the frames of
# xkv0.  CLIENT is the device on the other side, LINK the commands that make up0, in the machine.
stacked() {
	local nic=$1 client=$2 device=xkv0 server=10.77.3.1 side=inside
	if ! guest "${3//$'\n'/ }" >output; then
		report skipped "$nic: $(tail -n 1 output)"
	else
		guest "ip link set up0 up; ip link set xkv0 up; ip addr add $server/24 dev up0"
		guest "in_client ip addr add 10.77.3.2/24 dev $client"
		guest "in_client ip link set $client up"
		start xkv0 native --bind "$server"
		check "$nic: set over UDP" OK "$(ask xkv set udp two)"
		check "$nic: get over TCP" two "$(ask redis-cli get udp)"
		burst
		ends
		guest "in_client ip addr del 10.77.3.2/24 dev $client"
	fi
	guest "ip link del up0; ip link set xkv0 nomaster; ip link set xkv0 up" >output || true
}

# The client's side in LACP, too.  A port of a bond keeps its XDP program.
lacp_partner() {
	local bond='type bond mode 802.3ad miimon 100 lacp_rate fast' command
	for command in "link set xkv1 down" "link add bond1 $bond" "link set xkv1 master bond1" \
		"link set bond1 up"; do
		guest "in_client ip $command" >output || true
	done
}

# Bridges, bonds and teams that xkv0 is a port of, and VLANs on it and on these.
all_stacked() {
	local module mode on='ip link set xkv0 down && ip link set xkv0 master'
	local vlan='type vlan id 5'
	for module in bridge bonding team_mode_roundrobin 8021q; do
		guest modprobe "$module" >output || true
	done
	guest 'ethtool -K xkv0 txvlan off rxvlan off' || true
	guest 'in_client ethtool -K xkv1 txvlan off rxvlan off' || true
	guest "in_client ip link add link xkv1 name xkv1.5 $vlan" || true
	stacked bridge xkv1 "ip link add up0 type bridge && $on up0"
	for mode in active-backup balance-{rr,xor,tlb,alb} broadcast 802.3ad; do
		stacked "bond $mode" xkv1 \
			"ip link add up0 type bond mode $mode miimon 100 && $on up0"
	done
	stacked 'VLAN on a bond' xkv1.5 "ip link add low0 type bond mode active-backup miimon 100 &&
		$on low0 && ip link set low0 up && ip link add link low0 name up0 $vlan"
	guest 'ip link del low0' || true
	lacp_partner
	stacked 'bond 802.3ad, with a partner' bond1 \
		"ip link add up0 type bond mode 802.3ad miimon 100 lacp_rate fast && $on up0"
	guest 'in_client ip link del bond1; in_client ip link set xkv1 up' || true
	stacked team xkv1 "ip link add up0 type team &&
		teamnl up0 setoption mode roundrobin && $on up0"
	stacked VLAN xkv1.5 "ip link add link xkv0 name up0 $vlan"
	stacked 'VLAN on a bridge' xkv1.5 "ip link add low0 type bridge && $on low0 &&
		ip link set low0 up && ip link add link low0 name up0 $vlan"
	guest 'ip link del low0' || true
	stacked 'bridge of a VLAN' xkv1.5 "ip link add link xkv0 name xkv0.5 $vlan &&
		ip link set xkv0.5 up && ip link add up0 type bridge &&
		ip link set xkv0.5 master up0"
	guest 'ip link del xkv0.5' || true
	stacked 'bridge of a bond' xkv1 "ip link add low0 type bond mode balance-xor miimon 100 &&
		$on low0 && ip link set low0 up && ip link add up0 type bridge &&
		ip link set low0 master up0"
	guest 'ip link del low0' || true
	guest 'in_client ip link del xkv1.5' || true
	for mode in active-backup balance-rr balance-alb; do both_legs "$mode"; done
}

# both_legs MODE: a bond of xkv0 and xkv2, of which each is asked alone, as its client's side is
both_legs() {
	local nic="both legs of a bond, $1" device=xkv0 server=10.77.3.1 side=inside leg client
	if ! guest "ip link add up0 type bond mode $1 miimon 50" >output; then
		report skipped "$nic: $(tail -n 1 output)"
		return
	fi
	guest "ip link add xkv2 type veth peer name xkv3; ip link set xkv3 netns client"
	guest "in_client ethtool -K xkv3 tx off"
	guest "in_client ip link set xkv3 xdpdrv obj /bin/pass.bpf.o sec xdp"
	for leg in xkv0 xkv2; do
		guest "ip link set $leg down; ip link set $leg master up0; ip link set $leg up"
	done
	guest "ip link set up0 up; ip addr add $server/24 dev up0"
	start 'xkv0 xkv2' native --bind "$server"
	for client in xkv1 xkv3; do
		guest 'in_client ip link set xkv1 down; in_client ip link set xkv3 down'
		guest "in_client ip link set $client up"
		guest "in_client ip addr add 10.77.3.2/24 dev $client"
		for _ in {1..50}; do
			[[ $(on inside timeout 1 redis-cli -h "$server" ping) != PONG ]] || break
		done
		check "$nic: attached" 1 "$(info xkv_attached)"
		check "$nic: set over UDP, $client" OK "$(ask xkv set udp two)"
		check "$nic: get over TCP, $client" two "$(ask redis-cli get udp)"
		burst
		guest "in_client ip addr del 10.77.3.2/24 dev $client"
	done
	device='xkv0 xkv2' ends
	guest 'in_client ip link set xkv1 up; ip link del up0; ip link del xkv2' >output || true
	guest 'ip link set xkv0 nomaster; ip link set xkv0 up' >output || true
}

# c_test NAME: each case of a C test counts; what passed is shown as one line
c_test() {
	local out line status=0 passed=0 began=$SECONDS
	out=$(guest "CMOCKA_MESSAGE_OUTPUT=TAP timeout $C_TEST_SECONDS /tests/$1") || status=$?
	((status != 77)) || { report skipped "$1: $out"; return; }
	while IFS= read -r line; do
		case $line in
		ok\ *\#\ SKIP*) report skipped "$1: ${line#ok *# SKIP}" ;;
		ok\ *) passed=$((passed + 1)); report passed "$1: ${line#ok *- }" >/dev/null ;;
		not\ ok\ *) report failed "$1: ${line#not ok *- }" ;;
		esac
	done <<<"$out"
	check "$1: exit status after $passed cases passed in $((SECONDS - began)) s" 0 "$status"
	((status == 0)) || tail -n 40 <<<"$out" >&2
}

# takes_too_long TEST: each case of test_slots loads the BPF programs, for which 6.1 takes 15 s
# without KVM; it had not ended after 290 s.
takes_too_long() {
	[[ $1 = test_slots && $KERNEL = 6.1.* && $(accelerator) = tcg ]]
}

run_checks() {
	local name
	KERNEL=$(guest uname -r)
	smoke veth xkv0 native 10.77.0.1 inside
	smoke_tcp veth xkv0 native 10.77.0.1 inside
	all_stacked
	smoke virtio_net virtio0 native 10.77.1.1 outside
	smoke_batched virtio_net virtio0 10.77.1.1 outside
	smoke_tcp virtio_net virtio0 native 10.77.1.1 outside
	smoke e1000 e1000 generic 10.77.2.1 outside
	smoke_tcp e1000 e1000 generic 10.77.2.1 outside
	# Until 6.7 each look-up in a map of maps waits for a grace period: seconds for each case.
	guest 'echo 1 >/sys/kernel/rcu_expedited'
	for name in $(guest ls /tests | grep ^test_); do
		if takes_too_long "$name"; then
			report skipped "$name: takes minutes without KVM"
		else
			c_test "$name"
		fi
	done
	for name in $(guest ls /objects); do
		succeeds "load $name" bpftool prog loadall "/objects/$name" /sys/fs/bpf/other
		guest 'rm -rf /sys/fs/bpf/other /sys/fs/bpf/xkv_*'
	done
}
