#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Broken frames through the XDP program, served one by one, and in bulks: the same ones
# each time, so that what fails once fails again.  `make fuzz` runs many more, from a new seed.
# tests/run: seconds 14
# tests/run: firm
set -euo pipefail
cd "$(dirname "$0")/../.."

FRAMES=${XKV_FUZZ_FRAMES:-${XKV_TEST_LONG:+3000000}}
FRAMES=${FRAMES:-200000}
n=0

# fuzz SEED HOW [VARIABLE]: with this in the environment
fuzz() {
	local status=0
	n=$((n + 1))
	env ${3:+"$3"} "${XKV_BUILD:-build}/tests/fuzz_packet" "$FRAMES" "$1" || status=$?
	if [ "$status" = 77 ]; then exit 77; fi
	if [ "$status" = 0 ]; then
		echo "ok $n - $FRAMES frames from seed $1, $2"
	else
		echo "not ok $n - $FRAMES frames from seed $1, $2"
	fi
}

fuzz 1 'one by one'
fuzz 2 'one by one'
# Sanitizers do not see BPF: on their build, which is the second one, once is enough.
if [ "${XKV_TEST_PASS:-0}" = 0 ]; then fuzz 3 'in bulks' XKV_TEST_BATCH=1; fi
echo "1..$n"
