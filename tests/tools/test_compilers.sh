#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# What clang 14 and the newest clang make of the BPF programs: no warning, and
# this kernel's verifier takes it.  The build's own clang has the other tests.
# tests/run: once
# tests/run: seconds 10
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=tests/common/tap.sh
. tests/common/tap.sh

if ! require root bpffs tools 2>/dev/null; then
	echo "SKIP: needs root, bpffs, clang and bpftool"
	exit 77
fi

TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT

# Compilers that are installed, oldest first, as clang-N.
installed() {
	compgen -c clang- | grep -xE 'clang-[0-9]+' | sort -uV
}

# load OBJECT: into a BPF file system of its own, for the maps pin themselves by name
load() {
	unshare --mount bash -s - "$(find_bpftool)" "$1" 2>&1 <<-'END'
		mount -t bpf bpf /sys/fs/bpf && "$1" prog loadall "$2" /sys/fs/bpf/programs
	END
}

own=clang-$(clang -dumpversion | cut -d. -f1)
mapfile -t compilers < <({ installed | grep -x clang-14; installed | tail -n 1; } |
	sort -uV | grep -vx "$own")
if ((!${#compilers[@]})); then
	echo "SKIP: no clang but $own is installed: scripts/setup.sh compilers"
	exit 77
fi
OUT=$TMP/out
for clang in "${compilers[@]}"; do
	object=$TMP/$clang/xkv.bpf.o
	make -s WERROR=1 BUILD="$TMP/$clang" CLANG="$clang" "$object" >"$OUT" 2>&1 || fail "$clang"
	if ! kernel_traces; then
		skip "$clang" "compiled only: the kernel refuses programs that trace"
	elif load "$object" >"$OUT" 2>&1; then
		ok "$clang"
	else
		fail "$clang"
	fi
done
