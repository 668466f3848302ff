// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Histories made by hand: does the checker find what it is there to find, and nothing else?

const testKey = 7

// chunk is the value number n.
func chunk(n uint64) string { return makeChunk(testKey, n, 40) }

// row is one operation of a history; times are milliseconds.
type row struct {
	call, ret int64 // ret 0: the reply was lost
	q         request
	r         reply
}

func history(rows []row) []porcupine.Operation {
	var h []porcupine.Operation
	for i, w := range rows {
		q, r := w.q, w.r
		q.call, r.ret = w.call*millisecond, w.ret*millisecond
		if w.ret == 0 {
			r = reply{ret: never}
		}
		h = append(h, porcupine.Operation{ClientId: i, Input: &q, Call: q.call, Output: &r, Return: r.ret})
	}
	return h
}

func get(value string) (request, reply) {
	return request{kind: opGet}, reply{outcome: done, tellsOld: true, existed: true, was: value}
}

func getMiss() (request, reply) { return request{kind: opGet}, reply{outcome: miss, tellsOld: true} }

func getVersion(value string, version uint64) (request, reply) {
	q, r := get(value)
	r.tellsMeta, r.version = true, version
	return q, r
}

func set(value string) (request, reply) {
	return request{kind: opSet, value: value}, reply{outcome: done}
}

func setVersion(value string, version uint64) (request, reply) {
	return request{kind: opSet, value: value}, reply{outcome: done, tellsMeta: true, version: version}
}

func getLeft(value string, left int64) (request, reply) {
	q, r := getVersion(value, 10)
	r.left = left * millisecond
	return q, r
}

func setPX(value string, ttl int64) (request, reply) {
	return request{kind: opSet, value: value, ttl: ttl * millisecond}, reply{outcome: done}
}

func setNX(value string, is outcome) (request, reply) {
	return request{kind: opSet, value: value, nx: true}, reply{outcome: is}
}

func setKeep(value string) (request, reply) {
	return request{kind: opSet, value: value, keepTTL: true}, reply{outcome: done}
}

func cas(value string, expect uint64, is outcome, version uint64) (request, reply) {
	return request{kind: opSet, value: value, cas: true, expect: expect},
		reply{outcome: is, tellsMeta: true, version: version}
}

func del(is outcome) (request, reply) { return request{kind: opDelete}, reply{outcome: is} }

func getdel(value string) (request, reply) {
	return request{kind: opDelete, old: true}, reply{outcome: done, tellsOld: true, existed: true, was: value}
}

func incr(amount, number int64) (request, reply) {
	return request{kind: opIncr, amount: amount}, reply{outcome: done, number: number}
}

func appended(value string, length int64) (request, reply) {
	return request{kind: opAppend, value: value}, reply{outcome: done, number: length}
}

func getTooLarge(length int) (request, reply) {
	return request{kind: opGet}, reply{outcome: tooLarge, valueLen: length}
}

func appendTooLarge(value string) (request, reply) {
	return request{kind: opAppend, value: value}, reply{outcome: tooLarge, valueLen: 2 * len(value)}
}

func persist(is outcome) (request, reply) { return request{kind: opPersist}, reply{outcome: is} }

func at(call, ret int64, q request, r reply) row { return row{call, ret, q, r} }

// do makes a row of times and what one of the functions above returns.
func do(call, ret int64) func(request, reply) row {
	return func(q request, r reply) row { return at(call, ret, q, r) }
}

const lost = 0

var histories = []struct {
	name      string
	right     bool
	evictions bool
	rows      []row
}{
	{"empty", true, false, nil},
	{"one after the other", true, false, []row{
		do(1, 2)(getMiss()), do(3, 4)(set(chunk(1))), do(5, 6)(get(chunk(1))), do(7, 8)(del(done)), do(9, 10)(getMiss())}},
	{"a read during the write sees either", true, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 9)(set(chunk(2))), do(4, 5)(get(chunk(1))), do(6, 7)(get(chunk(2)))}},
	{"but not the old one after the new one", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 9)(set(chunk(2))), do(4, 5)(get(chunk(2))), do(6, 7)(get(chunk(1)))}},
	{"stale read", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(set(chunk(2))), do(5, 6)(get(chunk(1)))}},
	{"a miss between two values", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 6)(set(chunk(2))), do(4, 5)(getMiss())}},

	{"a lost write that was seen", true, false, []row{
		do(1, 2)(set(chunk(1))), do(3, lost)(set(chunk(2))), do(5, 6)(get(chunk(1))), do(7, 8)(get(chunk(2)))}},
	{"a lost write that nobody saw", true, false, []row{
		do(1, 2)(set(chunk(1))), do(3, lost)(set(chunk(2))), do(5, 6)(get(chunk(1)))}},
	{"a lost write that came twice", false, false, []row{
		do(1, lost)(set(chunk(1))), do(2, 3)(get(chunk(1))), do(4, 5)(set(chunk(2))), do(6, 7)(get(chunk(1)))}},
	{"a lost write before it was sent", false, false, []row{
		do(1, 2)(get(chunk(1))), do(3, lost)(set(chunk(1)))}},
	{"a lost delete", true, false, []row{
		do(1, 2)(set(chunk(1))), do(3, lost)(del(done)), do(4, 5)(get(chunk(1))), do(6, 7)(getMiss())}},

	{"resurrected delete", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(del(done)), do(5, 6)(get(chunk(1)))}},
	{"deleted twice", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 6)(del(done)), do(4, 5)(del(done))}},
	{"taken by two", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 6)(getdel(chunk(1))), do(4, 5)(getdel(chunk(1)))}},
	{"another value taken than was there", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(set(chunk(2))), do(5, 6)(getdel(chunk(1)))}},
	{"inserted by two", false, false, []row{
		do(1, 4)(setNX(chunk(1), done)), do(2, 3)(setNX(chunk(2), done))}},
	{"inserted by one of two", true, false, []row{
		do(1, 4)(setNX(chunk(1), notStored)), do(2, 3)(setNX(chunk(2), done))}},

	{"CAS with the right version", true, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, 4)(cas(chunk(2), 10, done, 12)), do(5, 6)(getVersion(chunk(2), 12))}},
	{"lost update: two CAS of one version", false, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, 6)(cas(chunk(2), 10, done, 12)), do(4, 5)(cas(chunk(3), 10, done, 14))}},
	{"lost update: CAS over a write that tells no version", false, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, 4)(set(chunk(2))), do(5, 6)(cas(chunk(3), 10, done, 12))}},
	{"CAS behind a lost write may fail", true, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, lost)(set(chunk(2))), do(5, 6)(cas(chunk(3), 10, notStored, 12)),
		do(7, 8)(getVersion(chunk(2), 12))}},
	{"CAS that fails without a reason", false, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, 4)(cas(chunk(2), 10, notStored, 10))}},
	{"a version that changed by itself", false, false, []row{
		do(1, 2)(setVersion(chunk(1), 10)), do(3, 4)(getVersion(chunk(1), 12))}},

	{"INCR from nothing", true, false, []row{
		do(1, 2)(incr(5, 5)), do(3, 6)(incr(1, 8)), do(4, 5)(incr(2, 7)), do(7, 8)(get("8"))}},
	{"double INCR", false, false, []row{
		do(1, 2)(set("10")), do(3, 4)(incr(5, 20)), do(5, 6)(get("20"))}},
	{"a lost INCR is done once", false, false, []row{
		do(1, 2)(set("10")), do(3, lost)(incr(5, 0)), do(4, 5)(get("15")), do(6, 7)(get("20"))}},
	{"lost INCR: two give the same", false, false, []row{
		do(1, 4)(incr(1, 1)), do(2, 3)(incr(1, 1))}},
	{"APPEND", true, false, []row{
		do(1, 2)(appended(chunk(1), 40)), do(3, 4)(appended(chunk(2), 80)), do(5, 6)(get(chunk(1) + chunk(2)))}},
	{"lost APPEND", false, false, []row{
		do(1, 2)(appended(chunk(1), 40)), do(3, 6)(appended(chunk(2), 80)), do(4, 5)(appended(chunk(3), 80))}},
	{"APPEND that was refused", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(appendTooLarge(chunk(2)))}},
	{"too large for a datagram", true, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(getTooLarge(40)), do(5, 6)(get(chunk(1)))}},
	{"too large, but another", false, false, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(getTooLarge(41))}},

	{"gone when it is time", true, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(50, 51)(get(chunk(1))), do(120, 121)(getMiss()),
		do(122, 123)(setNX(chunk(2), done))}},
	{"gone too early", false, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(50, 51)(getMiss())}},
	{"gone too late", false, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(150, 151)(get(chunk(1)))}},
	{"gone and there again", false, false, []row{
		do(1, 9)(setPX(chunk(1), 100)), do(101, 102)(getMiss()),
		do(103, 104)(get(chunk(1)))}},
	{"a slow write lives longer", true, false, []row{
		do(1, 80)(setPX(chunk(1), 100)), do(150, 151)(get(chunk(1)))}},
	{"KEEPTTL keeps it", false, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(3, 4)(setKeep(chunk(2))), do(150, 151)(get(chunk(2)))}},
	{"SET takes the expiry away", false, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(3, 4)(set(chunk(2))), do(150, 151)(getMiss())}},
	{"PERSIST does too", true, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(3, 4)(persist(done)), do(150, 151)(get(chunk(1))),
		do(152, 153)(persist(notStored))}},
	{"the time that is left", true, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(41, 42)(getLeft(chunk(1), 60))}},
	{"more time left than was given", false, false, []row{
		do(1, 2)(setPX(chunk(1), 100)), do(41, 42)(getLeft(chunk(1), 80))}},
	{"time left of what stays for ever", false, false, []row{
		do(1, 2)(set(chunk(1))), do(41, 42)(getLeft(chunk(1), 80))}},
	{"a lost expiring write may be done late", true, false, []row{
		do(1, lost)(setPX(chunk(1), 100)), do(500, 501)(get(chunk(1))), do(700, 701)(getMiss())}},

	{"evicted where that may be", true, true, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(getMiss()), do(5, 6)(setNX(chunk(2), done))}},
	{"evicted and there again", false, true, []row{
		do(1, 2)(set(chunk(1))), do(3, 4)(getMiss()), do(5, 6)(get(chunk(1)))}},
}

func TestHistories(t *testing.T) {
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			got := porcupine.CheckOperationsTimeout(model(testKey, h.evictions), closed(history(h.rows)), time.Minute)
			if (got == porcupine.Ok) != h.right || got == porcupine.Unknown {
				t.Errorf("%v, and right is %v", got, h.right)
			}
		})
	}
}

func TestValues(t *testing.T) {
	torn := []byte(chunk(1))
	copy(torn[30:], chunk(2)[30:])
	for _, v := range []struct {
		value string
		whole bool
	}{
		{"", true}, {"17", true}, {"-1", true}, {chunk(1), true}, {chunk(1) + chunk(2), true}, {"5" + chunk(3), true},
		{"007", false}, {"x", false}, {chunk(1)[:39], false}, {chunk(1) + "1", false}, {string(torn), false},
		{makeChunk(testKey+1, 1, 40), false}, {makeChunk(testKey, 5, 1300), true},
	} {
		if words, whole := describeValue(testKey, v.value); whole != v.whole {
			t.Errorf("%q: %s, %v", v.value, words, whole)
		}
	}
}

// judge runs a history through all of the checker and returns what it says.
func judge(t *testing.T, rows []row) (*checker, string) {
	var said bytes.Buffer
	c := &checker{timeout: time.Minute, reports: t.TempDir(), out: &said, frontends: make(map[string]int)}
	c.check(&key{id: testKey, name: "key", log: log{history: history(rows)}})
	return c, said.String()
}

func TestReport(t *testing.T) {
	rows := []row{do(1, 2)(set(chunk(1))), do(3, 4)(set(chunk(2))), do(5, 6)(get(chunk(1))), do(7, 8)(get(chunk(2)))}
	c, said := judge(t, rows)
	if c.illegal != 1 || !strings.Contains(said, "no order of 3 operations") || // the last one is not needed
		!strings.Contains(said, "*        5.000..6.000        client  2:  GET -> OK #1 (40 B)") {
		t.Errorf("%+v %s", c, said)
	}
	if c, said := judge(t, rows[:2]); c.illegal != 0 || said != "" {
		t.Errorf("%+v %s", c, said)
	}
}

func TestOnesided(t *testing.T) {
	torn := chunk(1)[:30] + chunk(2)[30:]
	for want, rows := range map[string][]row{
		"torn or foreign": {do(1, 2)(set(chunk(1))), do(3, 4)(get(torn))},
		"came twice":      {do(1, 2)(setVersion(chunk(1), 10)), do(3, 4)(setVersion(chunk(2), 10))},
	} {
		if c, said := judge(t, rows); c.illegal != 1 || !strings.Contains(said, want) {
			t.Errorf("%s: %+v %s", want, c, said)
		}
	}
}
