#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Prints what this machine lacks for xkv, a sentence each.
#
#   scripts/require.sh [CHECK...]      root kernel btf bpffs netns tools (default: all)
#   scripts/require.sh --bpftool       prints the path of a bpftool that works
#
# Exit status: 0 nothing is missing, 1 something is missing, 2 wrong usage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if [[ ${1:-} = --bpftool ]]; then
	find_bpftool || die "no working bpftool: run 'sudo scripts/setup.sh'"
	exit
fi

(($#)) || set -- root kernel btf bpffs netns tools
for check; do
	case $check in
	root | kernel | btf | bpffs | netns | tools) ;;
	*)
		warn "no check is called '$check': choose from root kernel btf bpffs netns tools"
		exit 2
		;;
	esac
done
require "$@"
