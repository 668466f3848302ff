#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Boots a kernel of the distribution in an emulator (no KVM needed, no network)
# with xkv in its initial RAM disk, and checks what depends on the kernel: the
# verifier accepts the programs, xkvd attaches, both front ends work, a store is
# adopted after kill -9, the files below /sys/fs/bpf, detaching.
#
#   scripts/boot-kernel.sh                                        the kernel that apt would install
#   scripts/boot-kernel.sh linux-image-6.1.0-56-amd64 [FILE...]   another one; it also loads these
#                                                                 xkv.bpf.o, of other compilers, say
#
# Needs a build, and the packages qemu-system-x86, busybox-static, cpio and redis-tools.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

PROGRAMS=("$XKV_BUILD/xkvd" "$XKV_BUILD/xkv" "$(find_bpftool)" /sbin/ip /usr/sbin/ethtool /usr/bin/redis-cli /usr/bin/nsenter)
APPLETS=(sh mount cat sleep insmod ls mkdir rm head uname grep kill poweroff echo test seq)
BOOT_SECONDS=300

for program in qemu-system-x86_64 busybox cpio redis-cli apt-get dpkg; do
	command -v "$program" >/dev/null || { warn "boot-kernel.sh needs $program: apt-get install qemu-system-x86 busybox-static cpio redis-tools"; exit 2; }
done
[[ -x $XKV_BUILD/xkvd && -e $XKV_BUILD/pass.bpf.o ]] || { warn "run make first"; exit 2; }

PACKAGE=${1:-$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2 }')}
mapfile -t OBJECTS < <((($# < 2)) || realpath -e -- "${@:2}")
((${#OBJECTS[@]} == ($# < 2 ? 0 : $# - 1))) || exit 2
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
cd "$TMP"

# fetch PACKAGE: unpacks a kernel package below kernel/
fetch() {
	apt-get download "$1" >/dev/null 2>&1 || { warn "cannot download $1: apt-get update"; exit 2; }
	dpkg -x ./*.deb kernel
}

# with_libraries PROGRAM...: copies programs and the shared libraries that they need
with_libraries() {
	local program library
	for program; do
		cp -L "$program" root/bin/
		while read -r library; do
			mkdir -p "root$(dirname "$library")"
			cp -Lu "$library" "root$library"
		done < <(ldd "$program" | grep -o '/[^ ]*')
	done
}

# The script that the emulated machine runs.
write_init() {
	cat >root/init <<-'INIT'
		#!/bin/sh
		export PATH=/bin
		mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
		mount -t bpf bpf /sys/fs/bpf
		insmod /lib/veth.ko 2>/dev/null
		IP=/bin/ip
		IN="/bin/nsenter --net=/run/netns/client"
		$IP netns add client
		$IP link add xkv0 numrxqueues 2 numtxqueues 2 type veth peer name xkv1 numrxqueues 2 numtxqueues 2
		$IP link set xkv1 netns client
		$IP addr add 10.77.0.1/24 dev xkv0; $IP link set xkv0 up; $IP link set lo up
		$IN $IP addr add 10.77.0.2/24 dev xkv1; $IN ethtool -K xkv1 tx off >/dev/null
		$IN $IP link set xkv1 xdpdrv obj /bin/pass.bpf.o sec xdp; $IN $IP link set xkv1 up

		start() {
			xkvd --interface xkv0 --mode native --protected-mode no --dir /data --save "" --hot-sample-rate 1 >/log 2>&1 &
			daemon=$!
			for i in $(seq 60); do grep -q ready /log && break; sleep 1; done
			cat /log
		}
		check() { # WHAT EXPECTED GOT
			if test "$2" = "$3"; then echo "RESULT ok $1"; else echo "RESULT failed $1: '$3'"; fi
		}
		xkv="$IN xkv -h 10.77.0.1"
		redis="$IN redis-cli -h 10.77.0.1"
		mkdir /data
		echo; echo "RESULT kernel $(uname -r)"
		start
		check "attached" 1 "$(grep -c 'attached to xkv0, native' /log)"
		check "set over TCP" OK "$($redis set tcp one)"
		check "get over UDP" one "$($xkv get tcp)"
		check "set over UDP" OK "$($xkv set udp two)"
		check "get over TCP" two "$($redis get udp)"
		check "served by XDP" 1 "$($redis info xkv | grep -c 'xkv_replies:[1-9]')"
		kill -9 $daemon; sleep 1
		check "get after kill -9" two "$($xkv get udp)"
		check "set after kill -9" OK "$($xkv set udp six)"
		start
		check "adopted" 2 "$(grep -c adopted /log)"
		check "get after adopting" six "$($redis get udp)"
		check "increment over UDP" 42 "$($xkv incr number 42)"
		check "append over UDP" 4 "$($xkv append number 00)"
		check "a value of several pages" OK "$(head -c 300000 /bin/busybox | $redis -x set large)"
		check "entries" 4 "$(grep -c version /sys/fs/bpf/xkv/entries)"
		check "dump" 1 "$(grep -c '"key":"number","value":"4200"' /sys/fs/bpf/xkv/dump)"
		check "hot keys" 1 "$(xkv hot | grep -c '"number"')"
		xkv check
		check "xkv check" 0 $?
		kill $daemon; wait $daemon
		xkvd --detach --interface xkv0
		check "detached" "0 0" "$? $($IP link show xkv0 | grep -c xdp)"
		for object in $(ls /objects); do
			bpftool prog loadall /objects/$object /sys/fs/bpf/other >/log 2>&1
			status=$?
			cat /log
			check "loading $object" 0 $status
			rm -rf /sys/fs/bpf/other /sys/fs/bpf/xkv_*
		done
		echo "RESULT end"
		poweroff -f
	INIT
	chmod +x root/init
}

fetch "$PACKAGE"
mkdir -p root/{bin,lib,objects,proc,sys,dev,run,tmp,usr/lib/x86_64-linux-gnu/bpf}
cp "$(command -v busybox)" root/bin/busybox
for applet in "${APPLETS[@]}"; do ln -s busybox "root/bin/$applet"; done
cp "$XKV_BUILD/pass.bpf.o" root/bin/
for object in "${OBJECTS[@]}"; do cp "$object" "root/objects/${object//\//_}"; done
find kernel -name 'veth.ko*' -exec cp {} root/lib/ \;
[[ ! -e root/lib/veth.ko.xz ]] || xz -d root/lib/veth.ko.xz
cp /usr/lib/x86_64-linux-gnu/bpf/* root/usr/lib/x86_64-linux-gnu/bpf/ 2>/dev/null || true # libxdp's dispatcher
with_libraries "${PROGRAMS[@]}"
write_init
(cd root && find . | cpio -o -H newc --quiet | gzip -1) >initrd.gz
timeout "$BOOT_SECONDS" qemu-system-x86_64 -M q35 -cpu max -m 2048 -smp 2 -nographic -no-reboot -net none \
	-kernel kernel/boot/vmlinuz-* -initrd initrd.gz -append "console=ttyS0 quiet panic=-1 rdinit=/init" \
	</dev/null 2>&1 | tr -d '\r' | tee console | grep --line-buffered '^RESULT' | sed 's/^RESULT //' || true
if ! grep -q '^RESULT end' console || grep -q '^RESULT failed' console; then
	warn "the console's last lines:"
	tail -n 40 console >&2
	exit 1
fi
