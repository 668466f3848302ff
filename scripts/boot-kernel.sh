#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Tests xkv with kernels of Debian packages in an emulated machine (qemu): loads
# the BPF programs, runs the tests of tests/packet and some of tests/store, and a
# smoke test end to end on three network devices:
#
#     device     XDP       address         driver, client
#     xkv0       native    10.77.0.1/24    veth; a namespace of the machine
#     virtio0    native    10.77.1.1/24    virtio_net, two queues; outside, 10.77.1.2
#     e1000      generic   10.77.2.1/24    e1000; outside, 10.77.2.2
#
# "Outside" is a network namespace of the host without a name, with a tap device for
# each NIC of the machine.  It ends with the script, and so does the machine.
#
#   scripts/boot-kernel.sh [KERNEL...] [OBJECT...]
#       A KERNEL is a package that apt offers (linux-image-6.1.0-56-amd64) or a file
#       (NAME.deb); default: the newest of each version that apt offers.  An OBJECT
#       (NAME.o) is an xkv.bpf.o of another compiler: it is loaded, too.
#       The last line is the sum: N passed, N failed, N skipped.
#
#   scripts/boot-kernel.sh --shell [KERNEL]
#       Boots KERNEL (default: the newest), starts xkvd on virtio0, and runs $SHELL,
#       or commands from standard input, in the namespace of the clients:
#       `xkv -h 10.77.1.1 get KEY`, `xkv-bench -h 10.77.1.1`.  `guest COMMAND` runs
#       one in the machine: `guest ethtool -S virtio0`, `guest end_xkvd TERM`,
#       `guest start_xkvd --interface virtio0 --max-keys 1000000`, `guest cat /log`.
#       The end of the shell ends the machine.
#
#   scripts/boot-kernel.sh --exchanges [KERNEL]
#       Counts failed compare-and-exchanges under load, in a build that counts them:
#       `make exchanges`.
#
# The machine's size: XKV_GUEST_CPUS=2, XKV_GUEST_QUEUES=2 (of virtio0) and
# XKV_GUEST_MEMORY=2048 (MiB).  Runs as root, after `make all tests`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
export XKV_BUILD

KERNELS_DIR=$XKV_ROOT/scripts/kernels
PROGRAMS=("$XKV_BUILD"/{xkvd,xkv,xkv-bench} ip ethtool redis-cli nsenter modprobe)
APPLETS=(sh mount cat sleep ls mkdir rm head uname grep kill echo test seq stty readlink basename
	timeout tr sort taskset)
TESTS=("$XKV_BUILD"/tests/test_{parse,rules,requests,operations,slots,relocate,reads,changes,txn})
MODULES=(veth virtio_pci virtio_net e1000 bridge bonding team
	team_mode_roundrobin 8021q sch_ingress cls_bpf)
command -v teamnl >/dev/null && PROGRAMS+=(teamnl)
# All of it ends with this script, whatever ends that.
BED=(setpriv --pdeathsig KILL unshare --net --pid --fork --kill-child --mount-proc
	"$KERNELS_DIR/bed.sh")

# The packages of the newest kernel of each version that apt offers, oldest first.
offered_kernels() {
	apt-cache search --names-only '^linux-image-([0-9.]+-)?amd64$' | cut -d' ' -f1 |
		xargs -r apt-cache depends |
		sed -n 's/^  Depends: \(linux-image-[0-9].*\)/\1/p' | sort -uV
}

# fetch KERNEL: unpacks it in kernel/; the package stays below the build for the next time
fetch() {
	local deb=$1 said
	rm -rf kernel
	if [[ $1 != *.deb ]]; then
		mkdir -p "$XKV_BUILD/kernels"
		if ! said=$(cd "$XKV_BUILD/kernels" && apt-get download "$1" 2>&1); then
			warn "cannot download $1: ${said##*$'\n'}"
			return 1
		fi
		deb=$(find "$XKV_BUILD/kernels" -name "$1_*.deb" | sort -V | tail -n 1)
	fi
	dpkg -x "$deb" kernel
}

# with_libraries DIR PROGRAM...: copies programs to DIR, and the shared libraries that they need
with_libraries() {
	local program library
	for program in "${@:2}"; do
		program=$(command -v "$program")
		cp -L "$program" "$1"
		while read -r library; do
			mkdir -p "root$(dirname "$library")"
			cp -Lu "$library" "root$library"
		done < <(ldd "$program" | grep -o '/[^ ]*')
	done
}

# archive DIR: a part of an initial RAM disk
archive() {
	(cd "$1" && find . | cpio -o -H newc --quiet | gzip -1)
}

# The part that is the same for all kernels.
make_root() {
	local applet object
	mkdir -p root/{bin,objects,tests,proc,sys,dev,run/netns,tmp,data}
	mkdir -p root/usr/lib/x86_64-linux-gnu/bpf
	cp "$KERNELS_DIR/init" root/init
	cp "$(command -v busybox)" root/bin/busybox
	for applet in "${APPLETS[@]}"; do ln -s busybox "root/bin/$applet"; done
	cp "$XKV_BUILD/pass.bpf.o" root/bin/
	for object in "${OBJECTS[@]}"; do cp "$object" "root/objects/${object//\//_}"; done
	# libxdp's dispatcher, where it is installed.
	cp /usr/lib/x86_64-linux-gnu/bpf/* root/usr/lib/x86_64-linux-gnu/bpf/ 2>/dev/null || true
	with_libraries root/bin "${PROGRAMS[@]}" "$(find_bpftool)"
	with_libraries root/tests "${TESTS[@]}"
	cp "$XKV_ROOT/tests/vectors.txt" root/tests/
	archive root >root.gz
}

# The kernel's part: the modules of the devices.  One that it lacks skips the device's checks.
make_modules() {
	local release module what path
	release=$(basename kernel/lib/modules/*)
	rm -rf modules
	mkdir -p "modules/lib/modules/$release"
	cp "kernel/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} \
		"modules/lib/modules/$release/"
	depmod -b kernel "$release"
	for module in "${MODULES[@]}"; do
		modprobe -d "$PWD/kernel" -S "$release" -D "$module" 2>/dev/null || true
	done | while read -r what path _; do
		[[ $what = insmod ]] || continue # or it is built in
		mkdir -p "modules$(dirname "${path#"$PWD/kernel"}")"
		cp "$path" "modules${path#"$PWD/kernel"}"
	done
	depmod -b modules "$release"
	archive modules >modules.gz
}

# prepare KERNEL: makes what bed.sh boots
prepare() {
	fetch "$1" || return
	make_modules
	cat root.gz modules.gz >initrd.gz
}

# check_kernel KERNEL: what comes out is added to the file results, a line for each check
check_kernel() {
	prepare "$1" || { echo "skipped $1: cannot be downloaded" >>results; return; }
	"${BED[@]}" checks || echo "failed $1: not done" >>results
}

count() {
	grep -c "^$1 " results || true
}

mode=checks KERNELS=() OBJECTS=()
for arg; do
	case $arg in
	--shell) mode=shell ;;
	--exchanges) mode=exchanges TESTS=("$XKV_BUILD/tests/stress") ;;
	-*) warn "usage: boot-kernel.sh [--shell|--exchanges] [KERNEL...] [OBJECT...]"; exit 2 ;;
	*.o) OBJECTS+=("$(realpath -e -- "$arg")") ;;
	*.deb) KERNELS+=("$(realpath -e -- "$arg")") ;;
	*) KERNELS+=("$arg") ;;
	esac
done
require root netns
for program in qemu-system-x86_64 busybox cpio redis-cli modprobe apt-get dpkg; do
	command -v "$program" >/dev/null ||
		die "$program is missing: run 'sudo scripts/setup.sh kernels'"
done
[[ -x $XKV_BUILD/xkvd && -x ${TESTS[0]} ]] || die "run 'make all tests' first"
((${#KERNELS[@]})) || mapfile -t KERNELS < <(offered_kernels)
((${#KERNELS[@]})) || die "apt offers no linux-image-amd64: run apt-get update, or name a .deb"

TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
cd "$TMP"
make_root
if [[ $mode != checks ]]; then
	prepare "${KERNELS[-1]}"
	"${BED[@]}" "$mode"
	exit
fi
: >results
for kernel in "${KERNELS[@]}"; do check_kernel "$kernel"; done
echo
grep -E '^(skipped|failed) ' results || true
echo "$(count passed) passed, $(count failed) failed, $(count skipped) skipped"
(($(count failed) == 0))
