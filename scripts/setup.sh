#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Installs the packages that are missing for building, demonstrating and testing
# xkv on Debian 12 and Ubuntu 24.04 (and newer), after listing them.
#
#   scripts/setup.sh [--check] [build] [demo] [test] [lint] [kernels] [compilers]
#                    [packages] [browser] [coverage]
#
# Without a group it takes build, demo and test.
#
# Exit status: 0 nothing is missing (or was installed), 1 something is missing, 2 wrong usage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

OS_RELEASE=${XKV_REQ_OS_RELEASE:-/etc/os-release}
POLICY=${XKV_REQ_POLICY:-/usr/sbin/policy-rc.d}

# The newest clang that the system offers; without any the build's own.
newest_clang() {
	LC_ALL=C apt-cache search --names-only '^clang-[0-9]+$' 2>/dev/null |
		grep -oE '^clang-[0-9]+' | sort -V | tail -n 1 | grep . || echo clang
}

# Group, package, purpose.  A name that starts with ? is installed only if the system offers it.
packages() {
	cat <<'END'
build make             runs the build
build gcc              compiles user space
build libc6-dev        C library headers
build pkg-config       finds libraries for what links to libxkv
build clang            compiles the BPF programs
build llvm             llvm-objdump and llvm-strip for BPF objects
build libbpf-dev       loads BPF programs and maps
build libxdp-dev       attaches XDP programs
build libelf-dev       libbpf reads object files with it
build zlib1g-dev       libbpf needs it
build libev-dev        event loop of xkvd
build liblua5.1-0-dev  scripts
build lua-cjson-dev    their library cjson
build lua-bitop-dev    their library bit
build liblzf-dev       compressed strings in snapshots
build libedit-dev      line editing in xkv
build libjansson-dev   JSON output
build libsystemd-dev   readiness messages to systemd
build libssl-dev       TLS (OpenSSL), and SHA-1 of scripts
build ?libmicrohttpd-dev serves metrics over HTTP (http-port)
build libhiredis-dev   xkv speaks RESP with it where a request has to go over TCP
demo  iproute2         network namespaces and veth pairs
demo  ethtool          checksum offloads of the test bed
demo  util-linux       nsenter and flock
demo  kmod             modprobe veth
demo  redis-tools      redis-cli and redis-benchmark, the clients of the TCP front end
demo  ?xdp-tools       xdp-loader shows what is attached
test  redis-server     the stock server that snapshots are exchanged with
test  memcached        another server that xkv-bench can ask
test  python3          the end-to-end tests
test  python3-pytest   their framework
test  python3-redis    the Redis client library that they use
test  libcmocka-dev    framework of the C tests
test  python3-hiredis  another client library
test  python3-matplotlib draws the figures
test  openssl          makes certificates
test  procps           pgrep, for what a test has left running
test  shellcheck       the scripts' own test
test  tcpdump          captures what XDP sends
test  ?zsh             completion is tried there, too
test  tshark           shows that the captures have no checksum error
test  ?prometheus      scrapes metrics, and checks them (promtool)
test  ?python3-prometheus-client parses them
test  ?golang-go       the linearizability test (Porcupine, from the Go module proxy)
test  ?spin            checks the model of the entry protocol
test  ?systemd-container the units, under systemd
test  ?strace           kills xkvd at system calls of an upgrade
test  ?libclang-rt-dev run-time library of the fuzz targets
kernels qemu-system-x86 the emulator that other kernels boot in
kernels busybox-static shell of the emulated machine
kernels cpio           packs its initial RAM disk
kernels kmod           loads its drivers
kernels iproute2       its devices, and the taps outside
kernels ethtool        statistics of its queues
kernels redis-tools    redis-cli
kernels ?libteam-utils teamnl: the mode of a team
compilers ?clang-14    the oldest clang that the BPF programs are tried with
lint  cppcheck         checks C
lint  shellcheck       checks shell scripts
lint  codespell        checks spelling
lint  pipx             installs ruff, which checks Python
lint  clang-format-14  formats C; other versions differ
packages dpkg-dev      dpkg-buildpackage (make deb)
packages debhelper     what Debian's packages are built with
packages lintian       checks them
packages rpm           rpmbuild (make rpm)
packages rpmlint       checks these
packages mmdebstrap    a clean root to install them in
packages ?buildah      builds the container image (make image)
packages ?podman       runs it, by the next one
packages ?runc         as Kubernetes would
browser ?chromium        the web console is tried in it
browser ?chromium-driver drives it
browser ?python3-selenium for the test
coverage gcovr         sums up what gcov counts (make coverage)
END
	[[ " ${groups[*]} " != *' compilers '* ]] || # only then: apt takes a second
		echo "compilers ?$(newest_clang) the newest clang that the BPF programs are tried with"
	# bpftool is a package of its own in Debian, a part of the kernel's tools in Ubuntu.
	if [[ $ID = ubuntu ]]; then
		echo 'build linux-tools-common  bpftool (wrapper): skeleton headers, dumps'
		echo 'build linux-tools-generic bpftool itself'
	else
		echo 'build bpftool          skeleton headers, map dumps'
	fi
}

usage() {
	warn "usage: setup.sh [--check] [build] [demo] [test] [lint] [kernels] [compilers] [coverage]"
	exit 2
}

have() {
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) = installed ]]
}

offered() {
	LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep '^  Candidate: [^(]' >/dev/null
}

# Prints "package purpose" of each missing package of the groups given.
missing() {
	local group package purpose seen=' '
	while read -r group package purpose; do
		[[ " $* " = *" $group "* && $seen != *" $package "* ]] || continue
		seen+="$package "
		if [[ $package = \?* ]]; then
			package=${package#\?}
			have "$package" || ! offered "$package" || printf '%-20s %s\n' "$package" "$purpose"
		else
			have "$package" || printf '%-20s %s\n' "$package" "$purpose"
		fi
	done < <(packages)
}

# A package must not start its service while we install: redis-server would take port 6379.
hold_services() {
	[[ -e $POLICY ]] && return
	printf '#!/bin/sh\nexit 101\n' >"$POLICY"
	chmod 755 "$POLICY"
	trap 'rm -f "$POLICY"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

# refresh_lists PACKAGE...: fetches the lists if they lack one of these; false if that was not needed.
refresh_lists() {
	local package said
	for package; do
		offered "$package" && continue
		echo "setup: package lists are missing or old: apt-get update"
		said=$(apt-get update 2>&1 </dev/null) || warn "apt-get update failed: ${said##*$'\n'}"
		return 0
	done
	return 1
}

install_packages() {
	local log
	log=$(mktemp)
	hold_services
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get install -y --no-install-recommends "$@" >"$log" 2>&1 </dev/null; then
		# Lists that are a few days old name versions that the mirror has dropped.
		apt-get update >>"$log" 2>&1 </dev/null || true
		if ! apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
			tail -n 20 "$log" >&2
			die "apt-get could not install the packages (full log: $log): check the network and" \
				"/etc/apt/sources.list, then run it again"
		fi
	fi
	rm -f "$log"
}

# ruff is on PyPI, and in no release of Debian or Ubuntu that we know.
install_ruff() {
	local said
	[[ " ${groups[*]} " = *' lint '* ]] && ! command -v "${XKV_REQ_RUFF:-ruff}" >/dev/null || return 0
	((!check_only)) || { warn "ruff is missing: run 'sudo scripts/setup.sh lint'"; return 1; }
	echo "setup: installing ruff with pipx in /opt/pipx"
	said=$(PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin pipx install ruff 2>&1 </dev/null) ||
		die "pipx could not install ruff: check the network, then run it again: ${said##*$'\n'}"
}

# Does not touch a server that was installed before; disables one that this script installed.
keep_off() {
	[[ -d /run/systemd/system ]] || return 0
	systemctl disable --quiet "$1.service" 2>/dev/null ||
		warn "could not disable $1.service: it will start at the next boot; if you do not" \
			"want that, run 'systemctl disable $1'"
}

check_only=0 groups=()
for arg; do
	case $arg in
	--check) check_only=1 ;;
	build | demo | test | lint | kernels | compilers | packages | browser | coverage)
		groups+=("$arg") ;;
	*) usage ;;
	esac
done
((${#groups[@]})) || groups=(build demo test)

ID='' ID_LIKE='' PRETTY_NAME='this system'
# shellcheck disable=SC1090 # the system's own file
[[ ! -r $OS_RELEASE ]] || . "$OS_RELEASE"
case " $ID $ID_LIKE " in
*" ubuntu "*) ID=ubuntu ;;
*" debian "*) ID=debian ;;
*)
	warn "$PRETTY_NAME is neither Debian nor Ubuntu: nothing is installed; make sure that you have what" \
		"these packages hold: $(packages | awk '{sub(/^\?/, "", $2); print $2}' | paste -sd ' ')"
	exit 0
	;;
esac

list=$(missing "${groups[@]}")
if [[ -z $list ]]; then
	install_ruff || exit 1
	echo "setup: nothing is missing for ${groups[*]}"
	exit 0
fi
mapfile -t names < <(awk '{print $1}' <<<"$list")
command="apt-get install -y --no-install-recommends ${names[*]}"
if ((check_only)); then
	printf 'setup: missing packages:\n%s\n' "$list"
	warn "packages are missing: run 'sudo $command'"
	exit 1
fi
if ((${XKV_REQ_UID:-$EUID} != 0)); then
	warn "packages are missing: run 'sudo $command'"
	exit 1
fi
if refresh_lists "${names[@]}"; then # only now is known which of the optional ones there are
	list=$(missing "${groups[@]}")
	mapfile -t names < <(awk '{print $1}' <<<"$list")
fi
printf 'setup: installing with apt-get (no service is started):\n%s\n' "$list"
install_packages "${names[@]}"
install_ruff
for service in redis-server memcached prometheus; do
	[[ " ${names[*]} " != *" $service "* ]] || keep_off "$service"
done
echo "setup: done"
