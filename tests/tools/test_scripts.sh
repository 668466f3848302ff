#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The scripts without a data plane: what each check says, what the set-up would
# do (with stand-ins for the package tools), the snapshot job against a stock
# Redis server, the unit files, the command lines.
# tests/run: once
# tests/run: seconds 20
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=tests/common/tap.sh
. tests/common/tap.sh

TMP=$(mktemp -d)
redis=''
clean_up() {
	[[ -z $redis ]] || kill "$redis" 2>/dev/null || true
	rm -rf "$TMP"
}
trap clean_up EXIT

# outcome STATUS TEXT COMMAND...: COMMAND ends with STATUS and says TEXT (an extended regular expression)
outcome() {
	local status=0 want=$1 text=$2
	shift 2
	"$@" >"$TMP/out" 2>&1 </dev/null || status=$?
	if [[ $status != "$want" ]] || { [[ -n $text ]] && ! grep -Eq -- "$text" "$TMP/out"; }; then
		cat "$TMP/out"
		fail "'$*': status $status (wanted $want), text '$text'"
	fi
}
# one_line: the command before said one sentence
one_line() {
	[[ $(wc -l <"$TMP/out") = 1 ]] || { cat "$TMP/out"; fail "more than one line"; }
}

# --- require.sh -------------------------------------------------------------------------------

check() {
	local setting=$1 name=$2 text=$3
	outcome 1 "$text" env "$setting" scripts/require.sh "$name"
	one_line
}
check XKV_REQ_UID=1000 root 'run it again with sudo'
check XKV_REQ_KERNEL=5.15.0-91-generic kernel 'kernel 5.15.0-91-generic is too old'
check XKV_REQ_KERNEL=6.0.9 kernel 'too old'
check XKV_REQ_KERNEL=nonsense kernel 'too old'
check "XKV_REQ_BTF=$TMP/none" btf 'CONFIG_DEBUG_INFO_BTF'
check "XKV_REQ_BPFFS=$TMP" bpffs "mount -t bpf bpf $TMP"
check XKV_REQ_IP=no-such-ip netns 'package iproute2'
check XKV_REQ_IP=false netns 'CONFIG_VETH'
check XKV_REQ_CLANG=no-such-clang tools 'setup.sh'
for release in 6.1.0-18-amd64 6.8.0-31-generic 6.10.3 7.0 6.1-rc1; do
	outcome 0 '' env XKV_REQ_KERNEL="$release" scripts/require.sh kernel
done
outcome 1 'BTF|type information' env "XKV_REQ_BTF=$TMP/none" XKV_REQ_KERNEL=4.19 scripts/require.sh kernel btf
grep -q 'too old' "$TMP/out" || fail "all that is missing is said at once"
outcome 2 "no check is called 'x'" scripts/require.sh x
ok "require.sh: one clear sentence for each thing that is missing"

# Ubuntu's wrapper is there but fails; the tools of another kernel must serve.
mkdir "$TMP/bin"
printf '#!/bin/sh\necho "WARNING: bpftool not found for kernel" >&2\nexit 2\n' >"$TMP/bin/bpftool"
chmod +x "$TMP/bin/bpftool"
if tool=$(BPFTOOL=$TMP/bin/bpftool find_bpftool); then
	[[ $tool != "$TMP/bin/bpftool" ]] || fail "a bpftool that does not work is not taken"
fi
ok "require.sh: a bpftool wrapper that fails is not taken"

# --- lint -------------------------------------------------------------------------------------

outcome 0 'spdx: nothing found' scripts/lint spdx
outcome 2 'usage' scripts/lint --what
mkdir "$TMP/few"
for tool in bash dirname git grep head xargs ls nproc mktemp rm cat; do ln -s "$(command -v $tool)" "$TMP/few"; done
outcome 1 'shellcheck is missing: run scripts/setup.sh lint' env "PATH=$TMP/few" scripts/lint shell
ok "lint: a tool that is missing is named"

# --- setup.sh ---------------------------------------------------------------------------------

# A Debian system without clang and redis-server.
mkdir "$TMP/deb"
cat >"$TMP/deb/dpkg-query" <<'END'
#!/bin/sh
for package; do :; done
case " $MISSING " in *" $package "*) exit 1 ;; esac
echo installed
END
cat >"$TMP/deb/apt-cache" <<'END'
#!/bin/sh
grep -qsx update "$APT_LOG" && CANDIDATE=''
echo "$2:"; echo "  Installed: (none)"; echo "  Candidate: ${CANDIDATE:-1.0}"
exec seq 20000 # more than a pipe holds: it fails if nobody reads to the end
END
cat >"$TMP/deb/apt-get" <<'END'
#!/bin/sh
echo "$@" >>"$APT_LOG"
[ -x "$XKV_REQ_POLICY" ] && echo "policy $("$XKV_REQ_POLICY"; echo $?)" >>"$APT_LOG"
exit "${APT_STATUS:-0}"
END
chmod +x "$TMP"/deb/*
printf 'ID=debian\nPRETTY_NAME="Debian 12"\n' >"$TMP/debian"
printf 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04"\n' >"$TMP/ubuntu"
printf 'ID=fedora\nPRETTY_NAME="Fedora 40"\n' >"$TMP/fedora"
setup() {
	env "PATH=$TMP/deb:$PATH" "APT_LOG=$TMP/apt" "XKV_REQ_POLICY=$TMP/policy-rc.d" \
		XKV_REQ_OS_RELEASE="$TMP/$1" "${@:2}"
}
outcome 0 'nothing is missing' setup debian MISSING='' scripts/setup.sh
outcome 1 "run 'sudo apt-get install -y --no-install-recommends clang redis-server'" \
	setup debian MISSING='clang redis-server' scripts/setup.sh --check
grep -q 'clang *compiles the BPF programs' "$TMP/out" || fail "each package is named with its purpose"
outcome 1 "run 'sudo apt-get install" setup debian MISSING=clang XKV_REQ_UID=1000 scripts/setup.sh
one_line
outcome 0 'nothing is missing for build demo' setup debian MISSING=redis-server scripts/setup.sh build demo
outcome 1 'bpftool ' setup debian MISSING='bpftool linux-tools-generic' scripts/setup.sh --check
outcome 1 'linux-tools-generic ' setup ubuntu MISSING='bpftool linux-tools-generic' scripts/setup.sh --check
outcome 1 'xdp-tools ' setup debian MISSING=xdp-tools scripts/setup.sh --check demo
CANDIDATE='(none)' outcome 0 'nothing is missing' setup debian MISSING=xdp-tools scripts/setup.sh --check demo
if grep -q 'sudo.* bpftool' "$TMP/out"; then fail "Ubuntu has no package bpftool"; fi
outcome 1 'cppcheck ' setup debian MISSING=cppcheck XKV_REQ_RUFF=true scripts/setup.sh --check lint
outcome 0 'missing for test lint' setup debian XKV_REQ_RUFF=true MISSING=cppchec scripts/setup.sh test lint
outcome 1 'ruff is missing' setup debian MISSING='' XKV_REQ_RUFF=no-such-ruff scripts/setup.sh --check lint
outcome 0 'Fedora 40 is neither Debian nor Ubuntu' setup fedora MISSING=clang scripts/setup.sh
outcome 2 'usage' setup debian scripts/setup.sh --what
[[ ! -e $TMP/apt ]] || fail "--check and non-root install nothing"
ok "setup.sh: names what is missing and the command, without installing"

: >"$TMP/apt"
outcome 0 'setup: done' setup debian MISSING=clang XKV_REQ_UID=0 scripts/setup.sh
grep -qx 'install -y --no-install-recommends clang' "$TMP/apt" || fail "installs only what is missing"
grep -q 'policy 101' "$TMP/apt" || fail "no service may start while packages are installed"
[[ ! -e $TMP/policy-rc.d ]] || fail "the policy is removed afterwards"
: >"$TMP/apt"
outcome 1 'could not install' setup debian MISSING=clang XKV_REQ_UID=0 APT_STATUS=100 scripts/setup.sh
[[ ! -e $TMP/policy-rc.d ]] || fail "the policy is removed after a failure"
grep -qx update "$TMP/apt" || fail "a failure is tried again with new lists"
sed -n 's/.*full log: \([^)]*\)).*/\1/p' "$TMP/out" | xargs -r rm -f
: >"$TMP/apt"
printf '#!/bin/sh\nexit 104\n' >"$TMP/policy-rc.d"
chmod +x "$TMP/policy-rc.d"
outcome 0 'apt-get update' setup debian MISSING='clang spin' XKV_REQ_UID=0 CANDIDATE='(none)' scripts/setup.sh
grep -qx 'install -y --no-install-recommends clang spin' "$TMP/apt" || fail "new lists offer optional packages, too"
grep -q 'policy 104' "$TMP/apt" || fail "a policy that was there is left alone"
[[ -e $TMP/policy-rc.d ]] || fail "a policy that was there stays"
ok "setup.sh: installs only what is missing, starts no service, refreshes old lists"

# --- xkv-snapshot -----------------------------------------------------------------------------

job() {
	scripts/xkv-snapshot -p "$port" --dir "$TMP/copies" "$@"
}
copies() {
	find "$TMP/copies" -name 'xkv-*.rdb' | wc -l
}
up() {
	[[ $(redis-cli -p "$port" "$@" ping 2>/dev/null) = PONG ]]
}
# A port below the ephemeral range, in a network namespace of its own where there are privileges.
port=$((12000 + RANDOM % 9000))
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null; then
	mkdir "$TMP/redis"
	redis-server --port "$port" --bind 127.0.0.1 --dir "$TMP/redis" --save '' --logfile "$TMP/redis.log" &
	redis=$!
	wait_until 10 up || fail "redis-server starts"
	redis-cli -p "$port" set key one >/dev/null
	outcome 0 '' job --keep 2
	[[ ! -s $TMP/out ]] || fail "the job is quiet when all is well"
	[[ $(copies) = 1 ]] || fail "one copy"
	redis-check-rdb "$TMP"/copies/xkv-*.rdb >/dev/null || fail "the copy is a good snapshot"
	[[ $(stat -c %a "$TMP"/copies/xkv-*.rdb) = 600 ]] || fail "nobody else may read the copy"
	touch "$TMP/copies/xkv-19990101-000000.rdb" "$TMP/copies/xkv-mine.rdb" "$TMP/copies/other"
	redis-cli -p "$port" set key two >/dev/null
	outcome 0 'removed .*xkv-19990101-000000.rdb' job --keep 2 -v
	[[ $(copies) = 3 && -e $TMP/copies/xkv-mine.rdb && -e $TMP/copies/other ]] ||
		fail "only its own files are counted and removed"
	newest=$(find "$TMP/copies" -name 'xkv-2*.rdb' | sort | tail -n 1)
	grep -q two "$newest" || fail "the newest copy holds the newest data"
	if compgen -G "$TMP/copies/.xkv-snapshot.??????" >/dev/null; then fail "no temporary file stays"; fi
	ok "xkv-snapshot: dated copies, the newest N kept, quiet"

	exec {lock}>"$TMP/copies/.xkv-snapshot.lock"
	flock "$lock"
	outcome 2 'another job is at work' job
	exec {lock}>&-
	outcome 1 'keep takes a number' job --keep 0
	outcome 1 'keep takes a number' job --keep 08x
	outcome 1 'needs a value' job --keep
	outcome 1 'unknown option' job --sideways
	outcome 1 'where to' scripts/xkv-snapshot -p "$port"
	outcome 0 'Exit status' scripts/xkv-snapshot --help
	outcome 5 'cannot read' job --source "$TMP/nowhere.rdb"
	head -c 60 "$newest" >"$TMP/cut.rdb"
	before=$(copies)
	outcome 6 'is damaged' job --source "$TMP/cut.rdb"
	[[ $(copies) = "$before" ]] || fail "a damaged copy is not kept"
	outcome 5 'cannot make' scripts/xkv-snapshot -p "$port" --dir /proc/none
	redis-cli -p "$port" config set requirepass secret >/dev/null
	outcome 3 'REDISCLI_AUTH' job
	outcome 0 '' job -a secret
	outcome 0 '' env REDISCLI_AUTH=secret scripts/xkv-snapshot -p "$port" --dir "$TMP/copies"
	REDISCLI_AUTH=secret redis-cli -p "$port" acl setuser backup on '>other' +info +bgsave \
		'+config|get' >/dev/null
	outcome 0 '' job --user backup -a other
	outcome 3 'refuses' job --user backup -a wrong
	# A directory in the place of the file: the server cannot rename its snapshot to it.
	export REDISCLI_AUTH=secret
	rm "$TMP/redis/dump.rdb"
	mkdir -p "$TMP/redis/dump.rdb/full"
	before=$(copies)
	outcome 4 'the save failed' job --source "$newest"
	[[ $(copies) = "$before" ]] || fail "no copy of an old snapshot after a failed save"
	kill "$redis"
	wait "$redis" || true
	redis=''
	outcome 3 'is the server running' job
	ok "xkv-snapshot: each failure has its sentence and its exit status"
else
	skip "xkv-snapshot" "redis-server or redis-cli is not installed"
fi

# --- installation -----------------------------------------------------------------------------

make -s install "BUILD=${XKV_BUILD#"$XKV_ROOT"/}" "DESTDIR=$TMP/root" PREFIX=/usr >"$TMP/out" 2>&1 || {
	cat "$TMP/out"
	fail "make install"
}
for file in /usr/sbin/xkvd /usr/bin/xkv /usr/bin/xkv-bench /usr/bin/xkv-snapshot /usr/lib/libxkv.so \
	/usr/lib/libxkv.so.0 /usr/lib/libxkv.a /usr/include/xkv.h /usr/lib/pkgconfig/libxkv.pc \
	/usr/lib/xkv/xkv.bpf.o /usr/lib/xkv/attach.sh /usr/lib/systemd/system/xkvd.service \
	/usr/lib/systemd/system/xkv-snapshot.timer /usr/lib/sysusers.d/xkv.conf \
	/usr/share/bash-completion/completions/xkv-snapshot /usr/share/zsh/site-functions/_xkv \
	/etc/xkv/xkvd.conf; do
	[[ -r $TMP/root$file ]] || fail "make install brings $file"
done
if grep -rl '@[A-Z]*DIR@\|@PREFIX@\|@VERSION@' "$TMP/root" --include='*.*' | grep -v '\.so\|\.a$'; then
	fail "every place is filled in"
fi
cat >"$TMP/client.c" <<'END'
#include <xkv.h>
#include <stdio.h>
int main(void) { return puts(xkv_strerror(0)) < 0; }
END
# Not exported: make would find other libraries, and build anew what other tests run.
installed() {
	PKG_CONFIG_PATH=$TMP/root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$TMP/root pkg-config "$@"
}
if command -v pkg-config >/dev/null && [[ $XKV_BUILD != */san ]]; then
	# shellcheck disable=SC2046 # words on purpose
	gcc -Wall -Werror "$TMP/client.c" $(installed --cflags --libs libxkv) -o "$TMP/client" ||
		fail "a program builds against what was installed"
	LD_LIBRARY_PATH=$TMP/root/usr/lib "$TMP/client" >/dev/null || fail "the program runs"
fi
outcome 0 'nothing is attached' "$TMP/root/usr/lib/xkv/attach.sh" status lo
outcome 2 'there is no interface nosuchdev0' "$TMP/root/usr/bin/xkv" doctor nosuchdev0
if command -v systemd-analyze >/dev/null; then
	# What the units name must be there, so they are checked with this root's paths.
	for unit in xkvd.service xkv-snapshot.service xkv-snapshot.timer; do
		sed "s|/usr/s*bin/xkv[a-z-]*|/bin/true|" "$TMP/root/usr/lib/systemd/system/$unit" >"$TMP/$unit"
	done
	outcome 0 '' systemd-analyze verify --man=no "$TMP/xkvd.service" "$TMP/xkv-snapshot.timer"
	if grep "$TMP/xkv" "$TMP/out"; then fail "systemd understands the units"; fi
fi
"$TMP/root/usr/sbin/xkvd" --check-config "$TMP/root/etc/xkv/xkvd.conf" >/dev/null ||
	fail "xkvd accepts the example configuration"
# What is commented out must be right too, as an example.
sed 's/^# \([a-z-]* [^ ].*\)$/\1/;s/^# \([a-z-]* ""\)$/\1/' scripts/xkvd.conf |
	grep -E '^(interface|mode|port|bind|allow|foreign|udp-token|requirepass|protected-mode|enable-protected-configs|maxclients|timeout|tcp-keepalive|max-keys|miss|dir|dbfilename|save|rdb-other-types|loglevel|logfile) [^ ]+( [0-9a-f.:/]+)*$' \
		>"$TMP/all.conf"
[[ $(wc -l <"$TMP/all.conf") = 21 ]] || { cat "$TMP/all.conf"; fail "all examples are found"; }
"$TMP/root/usr/sbin/xkvd" --check-config "$TMP/all.conf" >/dev/null ||
	fail "xkvd accepts every line of the example configuration"
echo "port 1234" >"$TMP/root/etc/xkv/xkvd.conf"
make -s install "BUILD=${XKV_BUILD#"$XKV_ROOT"/}" "DESTDIR=$TMP/root" PREFIX=/usr >/dev/null 2>&1
grep -qx 'port 1234' "$TMP/root/etc/xkv/xkvd.conf" || fail "an upgrade keeps the configuration"
make -s uninstall "BUILD=${XKV_BUILD#"$XKV_ROOT"/}" "DESTDIR=$TMP/root" PREFIX=/usr >/dev/null
[[ $(find "$TMP/root" ! -type d) = "$TMP/root/etc/xkv/xkvd.conf" ]] || {
	find "$TMP/root" ! -type d
	fail "uninstall leaves the configuration only"
}
make -s install "BUILD=${XKV_BUILD#"$XKV_ROOT"/}" "DESTDIR=$TMP/a root" PREFIX=/usr >"$TMP/out" ||
	fail "make install with a blank in DESTDIR"
[[ -x "$TMP/a root/usr/sbin/xkvd" && ! -e $TMP/a ]] || fail "DESTDIR with a blank is one directory"
ok "make install and uninstall: complete, linkable, units and configuration valid"

# --- the benchmarks' command lines --------------------------------------------------------------

for script in bench/experiments/*.py; do
	[[ ! -x $script ]] || outcome 0 "^usage: $(basename "$script")" "$script" --help
done
ok "every benchmark explains its options"

# --- style ------------------------------------------------------------------------------------

if command -v shellcheck >/dev/null; then
	shellcheck -x scripts/*.sh scripts/xkv-snapshot tests/*/*.sh .ci/run || fail "shellcheck is content"
	ok "shellcheck is content with every script"
else
	skip "shellcheck" "shellcheck is not installed"
fi
echo "1..$n"
