#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The test runner itself, on made-up tests: what fails must be counted as
# failed, whatever way it fails in.
# tests/run: once
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/common/tap.sh
. tests/common/tap.sh

TMP=$(mktemp -d)
OUT=$TMP/out
trap 'rm -rf "$TMP"' EXIT

mkdir -p "$TMP"/{tests/{e2e,resp},scripts,build/tests,build/san/tests}
cp tests/run "$TMP/tests/"
touch "$TMP/build/xkvd" "$TMP/build/san/xkvd"
unset CI XKV_BUILD XKV_TEST_PREFIX

program() {
	cat >"$TMP/$1"
	chmod +x "$TMP/$1"
}
run() {
	status=0
	"$TMP/tests/run" "$@" >"$TMP/out" 2>&1 </dev/null || status=$?
}
# sum TEXT STATUS WHAT: the last line and the exit status
sum() {
	[[ $(tail -n 1 "$TMP/out") = "$1" && $status = "$2" ]] || fail "$3: status $status"
	[[ $(grep -c ' passed, .* failed, ' "$TMP/out") = 1 ]] || fail "one sum only"
	rm -f "$TMP"/tests/{,e2e/,resp/}test_* "$TMP"/build/tests/* "$TMP"/build/san/tests/*
	ok "$3"
}

run
sum "0 passed, 0 failed, 0 skipped" 1 "no test at all is a failure"

program build/tests/test_good <<<$'#!/bin/sh\necho secret output; echo 1..2; echo ok 1 - a; echo ok 2 - b'
program tests/test_plain.sh <<<'exit 0'
program tests/test_case.py <<<$'def test_a():\n    pass\ndef test_b():\n    print("quiet")'
run
if grep -q 'secret\|quiet' "$TMP/out"; then fail "output of what passed is not shown"; fi
sum "5 passed, 0 failed, 0 skipped" 0 "cases of C, shell and Python tests are counted"

program build/tests/test_bad <<<$'#!/bin/sh\necho ok 1 - a; echo "# the reason"; echo not ok 2 - b; exit 1'
run
grep -q 'the reason' "$TMP/out" || fail "output of what failed is shown"
sum "1 passed, 1 failed, 0 skipped" 1 "a failed case"

program build/tests/test_dies <<<$'#!/bin/sh\necho ok 1 - a; kill -SEGV $$'
run
grep -q 'killed by signal 11' "$TMP/out" || fail "the signal is named"
sum "1 passed, 1 failed, 0 skipped" 1 "a crash after good cases"

program tests/test_short.sh <<<'echo ok 1 - a; exit 3'
run
sum "1 passed, 1 failed, 0 skipped" 1 "an exit status after good cases"

program build/tests/test_plan <<<$'#!/bin/sh\necho 1..3; echo ok 1 - a; exit 0'
run
sum "1 passed, 1 failed, 0 skipped" 1 "fewer cases than planned"

program tests/test_nothing.sh <<<'echo SKIP: no such device; exit 77'
program build/tests/test_cmocka <<<$'#!/bin/sh\necho "SKIP: no wheels"; echo "not ok 1 # SKIP test_name"; echo "ok 2 - b"'
program tests/test_skip.py <<<$'import pytest\ndef test_s():\n    pytest.skip("needs wings")'
run
for reason in 'no such device' 'needs wings' 'no wheels'; do
	grep -q "$reason" "$TMP/out" || fail "reasons are named"
done
sum "1 passed, 0 failed, 3 skipped" 0 "skips, with their reasons"

program tests/test_bad.py <<<$'def test_a():\n    assert 1 == 2\ndef test_b():\n    pass'
program tests/test_broken.py <<<'import no_such_module_at_all'
run
grep -q 'assert 1 == 2' "$TMP/out" || fail "the assertion is shown"
sum "1 passed, 2 failed, 0 skipped" 1 "failures in Python, and a file that cannot be imported"

program tests/test_exit.py <<<$'import os\ndef test_a():\n    os._exit(0)'
run
sum "0 passed, 1 failed, 0 skipped" 1 "a Python file that ends in the middle"

program tests/test_teardown.py <<<$'import pytest\n@pytest.fixture\ndef f():\n    yield\n    assert 0\ndef test_a(f):\n    pass'
run
sum "0 passed, 1 failed, 0 skipped" 1 "a fixture that fails afterwards counts once"

program tests/test_late.sh <<<$'# tests/run: timeout 1\ntrap "echo cleaned up; exit 1" TERM\nsleep 60 & wait $!'
run
for line in 'took too long' 'cleaned up'; do
	grep -q "$line" "$TMP/out" || fail "it says so, and the test has time to clean up"
done
sum "0 passed, 1 failed, 0 skipped" 1 "a test that takes too long"

program tests/test_child.sh <<<"sleep 987 & echo \$! >$TMP/child; exit 0"
run
# A process that was killed may wait for init to collect it (state Z).
if grep -Eqs '^State:\s+[^Z[:space:]]' "/proc/$(<"$TMP/child")/status"; then fail "no process stays behind"; fi
sum "1 passed, 0 failed, 0 skipped" 0 "processes that a test leaves are ended"

program build/tests/test_san <<<$'#!/bin/sh\necho ok 1 - a; echo "x.c:3: runtime error: shift" '
run
sum "1 passed, 1 failed, 0 skipped" 1 "what a sanitizer says is a failure"

# two_builds: C, shell and Python tests, for `make check` and its two other tiers
two_builds() {
	program build/tests/test_two <<<$'#!/bin/sh\necho ok 1 - a'
	program build/san/tests/test_two <<<$'#!/bin/sh\necho ok 1 - a'
	program tests/test_part.c <<<'/* tests/run: plain some* */'
	# shellcheck disable=SC2016 # for the inner shell
	for b in build build/san; do
		program $b/tests/test_part <<<$'#!/bin/sh\necho "ok 1 - part ${1:-all}"'
	done
	# shellcheck disable=SC2016 # for the inner shell
	program tests/test_env.sh <<<'[[ $XKV_BUILD = */build || $XKV_BUILD = */build/san ]]'
	program tests/test_once.sh <<<'# tests/run: once'
	program tests/test_slow.sh <<<'# tests/run: slow'
	program tests/resp/test_time.sh <<<'# tests/run: unsanitized'
	program tests/e2e/test_far.sh <<<'exit 0'
	program tests/e2e/test_chosen.py <<<$'import pytest\n@pytest.mark.sanitized\ndef test_a():\n    pass\n@pytest.mark.long\ndef test_b():\n    pass\ndef test_c():\n    pass'
	program tests/resp/test_stores.py <<'END'
import pytest
@pytest.mark.plain
def test_kernel():
    pass
def test_memory():
    pass
END
}
two_builds
run --build build --build build/san
grep -q 'san/test_chosen.py: test_a' "$TMP/out" || fail "the second build is named"
grep -Eq ' test_(two|slow|env.sh|stores.py: test_memory)' "$TMP/out" &&
	fail "what sanitizers see runs with them only"
grep -q ' test_stores.py: test_kernel' "$TMP/out" || fail "what they do not see runs without"
grep -q ' test_part: part some\*' "$TMP/out" || fail "of a C test a part"
sum "13 passed, 0 failed, 0 skipped" 0 "two builds, one sum: of the second a choice"
two_builds
run --build build
sum "11 passed, 0 failed, 0 skipped" 0 "one build runs all that has no mark long"
two_builds
run --tier fast --build build --build build/san
sum "7 passed, 0 failed, 0 skipped" 0 "fast: one build, nothing slow, and nothing end to end"
two_builds
run --tier long --build build --build build/san
sum "23 passed, 0 failed, 0 skipped" 0 "long: everything on both"

# Each notes when it begins and ends.
# shellcheck disable=SC2016 # for the inner shell
note='echo "begin $0" >>"$LOG"; sleep 0.3; echo "end $0" >>"$LOG"'
export LOG=$TMP/log
program tests/test_a.sh <<<"$note"
program tests/test_b.sh <<<"$note"
run -j 2
[[ $(cut -d' ' -f1 "$LOG" | tr '\n' ' ') = 'begin begin end end ' ]] || fail "-j 2: both run at the same time"
sum "2 passed, 0 failed, 0 skipped" 0 "two at a time"
rm "$LOG"
program tests/test_a.sh <<<"# tests/run: needs disk"$'\n'"$note"
program tests/test_b.sh <<<"# tests/run: needs disk"$'\n'"$note"
run -j 2
[[ $(cut -d' ' -f1 "$LOG" | tr '\n' ' ') = 'begin end begin end ' ]] || fail "one after the other"
sum "2 passed, 0 failed, 0 skipped" 0 "what needs the same is not run at the same time"
for i in {0..9}; do
	program "tests/test_$i.sh" <<<'exit 0'
done
# A child of its own, whose CPU time counts, too.
# shellcheck disable=SC2016 # for the inner shell
program tests/test_busy.sh <<<'sh -c "i=0; while [ \$i -lt 300000 ]; do i=\$((i + 1)); done"'
run
[[ $(awk '/^the slowest files:/ { getline; print ($4 >= 0.1), $6 }' "$TMP/out") = '1 test_busy.sh' ]] ||
	fail "the slowest file stands first"
sum "11 passed, 0 failed, 0 skipped" 0 "the slowest files are named"
# shellcheck disable=SC2016 # for the inner shell
names='echo "$XKV_TEST_PREFIX $TMPDIR"; false'
program tests/test_a.sh <<<"$names"
program tests/test_b.sh <<<"$names"
run
[[ $(grep -oE 'xkvt[0-9a-f]{6} .*' "$TMP/out" | tr ' ' '\n' | sort -u | wc -l) = 4 ]] || fail "names of their own"
sum "0 passed, 2 failed, 0 skipped" 1 "a prefix and a temporary directory for each file"

# once NAME: a Python case that fails when it is run for the first time
once() {
	cat <<-END
		import os
		def test_$1():
		    ran = os.path.exists(f"{__file__}.$1.ran")
		    open(f"{__file__}.$1.ran", "w")
		    assert ran, "a busy machine"
	END
}
program tests/test_once.py < <(once a)
run
grep -q 'test_once.py:5: .*a busy machine' "$TMP/out" || fail "the place and the reason are named"
sum "0 passed, 1 failed, 0 skipped" 1 "nothing is run again unless --again says so"
program tests/test_once.py < <(once a; echo "def test_good(): pass")
program build/tests/test_shy <<'END'
#!/bin/sh
[ -e "$0.ran" ] && echo ok 1 - a || echo not ok 1 - a
touch "$0.ran"; echo ok 2 - b
END
run --again
unsteady=$(awk '/^unsteady/ { on = 1; next } !/^ / { on = 0 } on { print $1, $2 }' \
	"$TMP/out" | sort)
[[ $unsteady = "test_once.py: test_a:"$'\n'"test_shy: a" ]] || fail "what was unsteady is named"
sum "4 passed, 0 failed, 0 skipped" 0 "--again: what passes when run again"
program tests/test_firm.py < <(echo "# tests/run: firm"; once a)
program tests/test_always.py <<<$'def test_a():\n    assert 0'
program tests/test_dies.sh <<'END'
[ -e "$0.ran" ] || { touch "$0.ran"; kill -SEGV $$; }
END
run --again
sum "0 passed, 3 failed, 0 skipped" 1 "--again: fails twice, is firm, crashes"
program tests/test_many.py < <(for case in a b c d; do once "$case"; done)
run --again
sum "0 passed, 4 failed, 0 skipped" 1 "--again: many are no accident"

rm "$TMP/build/san/xkvd"
program tests/test_plain.sh <<<'exit 0'
run --build build/san
sum "1 passed, 1 failed, 0 skipped" 1 "a build that is missing is a failure"

program tests/test_one.sh <<<'exit 0'
program tests/test_other.sh <<<'exit 1'
program tests/test_py.py <<<$'def test_one():\n    pass\ndef test_other():\n    assert 0'
run -k one
sum "2 passed, 0 failed, 0 skipped" 0 "-k selects files and cases"
for name in tests/test_one.sh test_one; do
	program tests/test_one.sh <<<'exit 0'
	program tests/test_other.sh <<<'exit 1'
	run "$name"
	sum "1 passed, 0 failed, 0 skipped" 0 "files can be named: $name"
done
echo "1..$n"
