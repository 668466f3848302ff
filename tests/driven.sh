#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Runs a test of tests/resp/ or tests/clients/ with the driver answering over TCP
# (tcp-fast-path), which they know nothing of:
#
#   tests/driven.sh COMMAND...
#
# COMMAND runs at the client's end of a test bed.  What it takes for xkvd, $XKV_BUILD/xkvd, starts
# that at the server's end, and lets the loopback address reach its port there.  A second one at
# the same time has no interface.  The last line says how many commands the driver has answered.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

bed=${XKV_TEST_PREFIX:-xkv}-driven
real=$(realpath "$XKV_BUILD")
made=$(mktemp -d)
export XKV_TESTBED=$bed XKV_BUILD=$real
inside=(nsenter "--net=/run/netns/$bed-client" --)

# shellcheck disable=SC2317 # called when it ends
clean() {
	"$XKV_ROOT/scripts/testbed.sh" down
	rm -rf "$made"
}
trap clean EXIT

"$XKV_ROOT/scripts/testbed.sh" up
"${inside[@]}" sysctl -qw net.ipv4.conf.all.route_localnet=1
"${inside[@]}" iptables -t nat -A POSTROUTING -o xkv1 -j MASQUERADE

# Of all CPUs, the first counter of struct xkv_tcp_stats.
cat >"$made/sum.py" <<'END'
import json, sys
values = [cpu["value"][:8] for entry in json.load(sys.stdin) for cpu in entry["values"]]
print(sum(int.from_bytes(bytes(int(byte, 16) for byte in v), sys.byteorder) for v in values))
END

ln -s "$real"/* "$made"
rm "$made/xkvd"
cat >"$made/xkvd" <<END
#!/bin/bash
there=(nsenter --net=/run/netns/$bed-server -- $real/xkvd)
given=("\$@") pins=- port= detach=
while ((\$#)); do
	case \$1 in
	--pin-dir) pins=\$2 ;;
	--port) port=\$2 ;;
	--detach) detach=1 ;;
	esac
	shift
done
if [[ \$detach ]]; then
	bpftool -j map dump pinned "\$pins"/xkv_tcp_counters_v* 2>/dev/null |
		/usr/bin/python3 "$made/sum.py" >>"$made/answered" || true
	exec "\${there[@]}" --interface xkv0 "\${given[@]}"
fi
options=(--protected-mode no --enable-debug-command yes)
if [[ \$(nsenter --net=/run/netns/$bed-server ip link show dev xkv0) = *prog/xdp* ]]; then
	options+=(--bind 10.77.0.1 127.0.0.1 --allow 10.77.0.0/24)
else
	options+=(--interface xkv0 --tcp-fast-path on)
fi
[[ -z \$port ]] ||
	iptables -t nat -A OUTPUT -d 127.0.0.1 -p tcp --dport "\$port" -j DNAT --to 10.77.0.1
exec "\${there[@]}" "\${options[@]}" "\${given[@]}"
END
chmod +x "$made/xkvd"

status=0
XKV_BUILD=$made "${inside[@]}" "$@" || status=$?
touch "$made/answered"
awk '{ n += $1 } END { print n + 0, "commands were answered by the driver" }' "$made/answered"
exit $status
