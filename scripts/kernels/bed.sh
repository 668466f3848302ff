#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Boots the kernel and the initial RAM disk of the working directory, and runs the
# checks (bed.sh checks), a shell (bed.sh shell) or counts (bed.sh exchanges).
# boot-kernel.sh starts it in
# network and process namespaces of its own, where the clients run.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=scripts/kernels/checks.sh
. "$(dirname "$0")/checks.sh"
# shellcheck source=scripts/kernels/exchanges.sh
. "$(dirname "$0")/exchanges.sh"

BOOT_SECONDS=600
CHECKS_SECONDS=3600 # without KVM the packet tests take minutes, on 6.1 many
CPUS=${XKV_GUEST_CPUS:-2}
QUEUES=${XKV_GUEST_QUEUES:-2}
export XKV_GUEST=$PWD/guest
export PATH=$XKV_ROOT/scripts/kernels:$XKV_BUILD:$PATH

# tap DEVICE ADDRESS [OPTION...]: the other end of a NIC's cable
tap() {
	ip tuntap add dev "$1" mode tap "${@:3}"
	ip addr add "$2" dev "$1"
	ip link set "$1" up
}

# A /dev/kvm of a CPU without these may be for kernels that were made for it only.
accelerator() {
	[[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo && echo kvm || echo tcg
}

# boot [COMMAND]: with COMMAND before the emulator's own, until it answers.
# virtio_net runs native XDP only if the host neither merges segments nor leaves out checksums.
boot() {
	local off=guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off
	local tap=script=no,downscript=no
	ip link set lo up
	tap tap-virtio 10.77.1.2/24 multi_queue
	tap tap-e1000 10.77.2.2/24
	rm -f guest.*
	mkfifo guest.in guest.out
	: >console
	"$@" qemu-system-x86_64 -accel "$(accelerator)" -M q35 -cpu max -smp "$CPUS" \
		-m "${XKV_GUEST_MEMORY:-2048}" -display none -no-reboot -pidfile guest.pid \
		-serial file:console -serial chardev:guest -chardev pipe,id=guest,path=guest \
		-nic none -netdev "tap,id=virtio,ifname=tap-virtio,queues=$QUEUES,$tap" \
		-device "virtio-net-pci,netdev=virtio,mq=on,vectors=$((2 * QUEUES + 2)),$off" \
		-netdev "tap,id=e1000,ifname=tap-e1000,$tap" -device e1000,netdev=e1000 \
		-kernel kernel/boot/vmlinuz-* -initrd initrd.gz \
		-append "console=ttyS0 quiet panic=-1 rdinit=/init" </dev/null >qemu.log 2>&1 &
	wait_until 10 test -s guest.pid && timeout "$BOOT_SECONDS" guest && return
	tail -n 40 qemu.log console >&2
	return 1
}

# Ends with the exit status of the last of it, and with it the machine.
run_shell() {
	start virtio0 native
	echo "xkvd on virtio0 has 10.77.1.1: $(guest uname -r), $(accelerator); guest COMMAND"
	cd "$XKV_ROOT"
	"${SHELL:-/bin/bash}"
}

case $1 in
checks)
	boot timeout "$CHECKS_SECONDS"
	run_checks
	;;
exchanges)
	boot
	run_exchanges
	;;
shell)
	boot
	run_shell
	;;
esac
