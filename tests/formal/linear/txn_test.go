// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Histories of groups of keys, made by hand.

const keyA, keyB = 0, 1

// on makes a part of what one of the functions above returns.
func on(at int) func(request, reply) *part {
	return func(q request, r reply) *part { return &part{op: op{request: q, reply: r}, at: at} }
}

// txnRow is one transaction of a history; times are milliseconds.
type txnRow struct {
	call, ret int64 // ret 0: the reply was lost
	t         txn
}

func together(call, ret int64, parts ...*part) txnRow {
	t := txn{how: asExec, outcome: done, failed: -1, existed: -1, parts: parts}
	return txnRow{call, ret, t}
}

func with(w txnRow, change func(*txn)) txnRow {
	change(&w.t)
	return w
}

func msetnx(call, ret int64, is outcome) txnRow {
	return with(together(call, ret,
		on(keyA)(setNX(chunk(8), unknown)), on(keyB)(setNX(chunk(9), unknown))),
		func(t *txn) { t.how, t.outcome = asMSetNX, is })
}

func rename(call, ret int64, is outcome) txnRow {
	return with(together(call, ret, on(keyA)(get("")), on(keyB)(get(""))),
		func(t *txn) { t.how, t.outcome = asRename, is })
}

func delBoth(call, ret int64, existed int) txnRow {
	return with(together(call, ret, on(keyA)(del(unknown)), on(keyB)(del(unknown))),
		func(t *txn) { t.how, t.existed = asDel, existed })
}

func datagramOf(call, ret int64, parts ...*part) txnRow {
	return with(together(call, ret, parts...), func(t *txn) { t.how = asAtomic })
}

// aborted is an ATOMIC datagram that was not done because of the last part.
func aborted(call, ret int64, parts ...*part) txnRow {
	return with(datagramOf(call, ret, parts...),
		func(t *txn) { t.outcome, t.failed = notStored, len(t.parts)-1 })
}

func check(expect uint64, is outcome, version uint64) (request, reply) {
	return request{kind: opCheck, expect: expect},
		reply{outcome: is, tellsMeta: true, version: version}
}

func noNumber() (request, reply) {
	return request{kind: opIncr, amount: 1}, reply{outcome: notNumber}
}

func groupHistory(rows []txnRow) []porcupine.Operation {
	var h []porcupine.Operation
	for i, w := range rows {
		t := w.t
		t.call, t.ret = w.call*millisecond, w.ret*millisecond
		if w.ret == 0 {
			t.ret, t.outcome = never, unknown
		}
		for _, p := range t.parts {
			p.call, p.ret = t.call, t.ret
			if w.ret == 0 {
				p.reply = reply{ret: never}
			}
		}
		h = append(h, porcupine.Operation{
			ClientId: i, Input: &t, Call: t.call, Output: &t, Return: t.ret})
	}
	return h
}

var setBoth = func(call, ret int64, n uint64) txnRow {
	return together(call, ret, on(keyA)(set(chunk(n))), on(keyB)(set(chunk(n))))
}

var groupHistories = []struct {
	name      string
	right     bool
	evictions bool
	rows      []txnRow
}{
	{"both or neither", true, false, []txnRow{
		setBoth(1, 2, 1), setBoth(3, 9, 2),
		together(4, 5, on(keyA)(get(chunk(1))), on(keyB)(get(chunk(1)))),
		together(6, 7, on(keyA)(get(chunk(2))), on(keyB)(get(chunk(2))))}},
	{"half of it", false, false, []txnRow{
		setBoth(1, 2, 1), setBoth(3, 9, 2),
		together(4, 5, on(keyA)(get(chunk(1))), on(keyB)(get(chunk(2))))}},
	{"half of it, one read after the other", false, false, []txnRow{
		setBoth(1, 2, 1), setBoth(3, 9, 2), together(4, 5, on(keyB)(get(chunk(2)))),
		together(6, 7, on(keyA)(get(chunk(1))))}},
	{"write skew", false, false, []txnRow{
		setBoth(1, 2, 1), together(3, 9, on(keyA)(get(chunk(1))), on(keyB)(set(chunk(2)))),
		together(4, 8, on(keyB)(get(chunk(1))), on(keyA)(set(chunk(3))))}},
	{"a read of what is absent, and a skew", false, false, []txnRow{
		together(3, 9, on(keyA)(getMiss()), on(keyB)(set(chunk(2)))),
		together(4, 8, on(keyB)(getMiss()), on(keyA)(set(chunk(3))))}},
	{"serializable, but not in the order of time", false, false, []txnRow{
		setBoth(1, 2, 1), together(3, 4, on(keyA)(set(chunk(2)))),
		together(5, 6, on(keyA)(get(chunk(1))), on(keyB)(get(chunk(1))))}},
	{"it sees its own changes", true, false, []txnRow{
		together(1, 2, on(keyA)(incr(5, 5)), on(keyA)(incr(1, 6)), on(keyA)(get("6")),
			on(keyA)(del(done)))}},
	{"a lost one is done", true, false, []txnRow{
		setBoth(1, 2, 1), setBoth(3, lost, 2), together(5, 6, on(keyA)(get(chunk(1)))),
		together(7, 8, on(keyA)(get(chunk(2))), on(keyB)(get(chunk(2))))}},
	{"a lost one is done by half", false, false, []txnRow{
		setBoth(1, 2, 1), setBoth(3, lost, 2),
		together(7, 8, on(keyA)(get(chunk(2))), on(keyB)(get(chunk(1))))}},

	{"MSETNX", true, false, []txnRow{
		msetnx(1, 2, done), msetnx(3, 4, notStored),
		together(5, 6, on(keyB)(get(chunk(9))))}},
	{"MSETNX of one that is there", false, false, []txnRow{
		together(1, 2, on(keyB)(set(chunk(1)))), msetnx(3, 4, done)}},
	{"MSETNX by half", false, false, []txnRow{
		together(1, 2, on(keyB)(set(chunk(1)))), msetnx(3, lost, unknown),
		together(5, 6, on(keyA)(get(chunk(8))))}},
	{"MSETNX without a reason", false, false, []txnRow{msetnx(1, 2, notStored)}},
	{"RENAME", true, false, []txnRow{
		setBoth(1, 2, 1), together(3, 4, on(keyA)(set(chunk(2)))), rename(5, 6, done),
		together(7, 8, on(keyA)(getMiss()), on(keyB)(get(chunk(2)))), rename(9, 10, miss)}},
	{"RENAME of one that is there", false, false, []txnRow{
		setBoth(1, 2, 1), rename(3, 4, miss)}},
	{"RENAME with its expiry", false, false, []txnRow{
		together(1, 2, on(keyA)(setPX(chunk(1), 100))), rename(5, 6, done),
		together(150, 151, on(keyB)(get(chunk(1))))}},
	{"DEL of two", true, false, []txnRow{setBoth(1, 2, 1), delBoth(3, 4, 2), delBoth(5, 6, 0)}},
	{"DEL of two, one of which was there", false, false, []txnRow{
		setBoth(1, 2, 1), delBoth(3, 4, 1)}},

	{"ATOMIC", true, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setVersion(chunk(1), 10)), on(keyB)(check(0, done, 0))),
		datagramOf(3, 4, on(keyA)(check(10, done, 10)), on(keyB)(set(chunk(2)))),
		together(5, 6, on(keyA)(get(chunk(1))), on(keyB)(get(chunk(2))))}},
	{"ATOMIC in spite of a condition", false, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setVersion(chunk(1), 10))),
		datagramOf(3, 4, on(keyA)(check(0, done, 0)), on(keyB)(set(chunk(2))))}},
	{"ATOMIC, aborted", true, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setVersion(chunk(1), 10))),
		aborted(3, 4, on(keyB)(set(chunk(2))), on(keyA)(check(8, notStored, 10))),
		aborted(5, 6, on(keyB)(set(chunk(2))), on(keyA)(noNumber())),
		together(7, 8, on(keyB)(getMiss()))}},
	{"ATOMIC, aborted and done by half", false, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setVersion(chunk(1), 10))),
		aborted(3, 4, on(keyB)(set(chunk(2))), on(keyA)(check(8, notStored, 10))),
		together(7, 8, on(keyB)(get(chunk(2))))}},
	{"ATOMIC, aborted without a reason", false, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setVersion(chunk(1), 10))),
		aborted(3, 4, on(keyB)(set(chunk(2))), on(keyA)(check(10, notStored, 10)))}},
	{"ATOMIC, repeated: the results are lost", true, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setNX(chunk(1), unknown)),
			on(keyB)(setNX(chunk(2), unknown))),
		together(3, 4, on(keyA)(get(chunk(1))), on(keyB)(get(chunk(2))))}},
	{"ATOMIC, repeated, in spite of a condition", false, false, []txnRow{
		datagramOf(1, 2, on(keyA)(setNX(chunk(1), unknown))),
		datagramOf(3, 4, on(keyA)(setNX(chunk(1), unknown)),
			on(keyB)(setNX(chunk(2), unknown)))}},

	{"there at first, expired in the end", false, false, []txnRow{
		together(1, 2, on(keyA)(setPX(chunk(1), 100))),
		together(100, 103, on(keyA)(get(chunk(1))), on(keyA)(getMiss()))}},
	{"evicted alone", true, true, []txnRow{
		setBoth(1, 2, 1), together(3, 4, on(keyA)(getMiss()), on(keyB)(get(chunk(1))))}},
	{"evicted in the middle", false, true, []txnRow{
		setBoth(1, 2, 1), together(3, 4, on(keyA)(get(chunk(1))), on(keyA)(getMiss()))}},
}

func TestGroupHistories(t *testing.T) {
	for _, h := range groupHistories {
		t.Run(h.name, func(t *testing.T) {
			got := porcupine.CheckOperationsTimeout(groupModel(testKey, h.evictions),
				closed(groupHistory(h.rows)), time.Minute)
			if (got == porcupine.Ok) != h.right || got == porcupine.Unknown {
				t.Errorf("%v, and right is %v", got, h.right)
			}
		})
	}
}

func TestGroupReport(t *testing.T) {
	var said bytes.Buffer
	c := &checker{timeout: time.Minute, reports: t.TempDir(), out: &said,
		frontends: make(map[string]int)}
	rows := []txnRow{setBoth(1, 2, 1),
		together(3, 4, on(keyA)(get(chunk(1))), on(keyB)(getMiss()))}
	c.checkGroup(&group{id: testKey, log: log{history: groupHistory(rows)}})
	if c.illegal != 1 || !strings.Contains(said.String(), "no order of 2 transactions") {
		t.Errorf("%+v %s", c, said.String())
	}
}
