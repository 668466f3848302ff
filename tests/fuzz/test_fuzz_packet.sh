#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Broken frames through the XDP program: the same ones each time, so that what
# fails once fails again.  `make fuzz` runs many more, from a new seed.
# tests/run: seconds 12
set -euo pipefail
cd "$(dirname "$0")/../.."

FRAMES=${XKV_FUZZ_FRAMES:-${XKV_TEST_LONG:+3000000}}
FRAMES=${FRAMES:-300000}
n=0
for seed in 1 2; do
	n=$((n + 1))
	status=0
	"${XKV_BUILD:-build}/tests/fuzz_packet" "$FRAMES" "$seed" || status=$?
	if [ "$status" = 77 ]; then exit 77; fi
	if [ "$status" = 0 ]; then
		echo "ok $n - $FRAMES frames from seed $seed"
	else
		echo "not ok $n - $FRAMES frames from seed $seed"
	fi
done
echo "1..$n"
