# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause
#
# For shell tests: one TAP line for each case.
#
#   ok NAME             it passed
#   skip NAME REASON    it was not tried
#   fail NAME           it failed: shows the file OUT, if there is one, and ends the test

#   kernel_traces       does the kernel take programs that trace?  Some refuse all

n=0
ok() {
	n=$((n + 1))
	echo "ok $n - $1"
}
skip() {
	n=$((n + 1))
	echo "ok $n - $1 # SKIP $2"
}
fail() {
	n=$((n + 1))
	[[ ! -f ${OUT-} ]] || sed 's/^/# /' "$OUT"
	echo "not ok $n - $1"
	exit 1
}

kernel_traces() {
	"$XKV_BUILD/tests/traces"
}
