// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// What several keys may do together.  A history is that of a group of keys: a list of
// transactions, each a list of operations on keys of the group (one, for an operation by itself)
// with one call, one return and one outcome: done, not done because a condition does not hold, or
// unknown.  The operations are those of a single key (model.go), which say what comes of each;
// they take effect one after the other with nothing between them.  A new kind of transaction needs
// a `how`, a chance in respHows or udpHows (groups.go), and a front end that asks for it.
//
// Expiry and eviction.  A transaction sees one moment: a key is there for all of it or for none,
// unless the transaction itself changes that.

// how a transaction is asked for.
type how uint8

const (
	asSingle how = iota
	asExec       // MULTI .. EXEC
	asWatch      // WATCH, GETs, MULTI .. EXEC: all at the time of EXEC, or nothing
	asScript     // EVAL
	asMGet
	asMSet
	asMSetNX
	asDel // DEL of several keys tells how many there were
	asRename
	asAtomic // an ATOMIC datagram
	hows
)

var howNames = [hows]string{"single", "EXEC", "WATCH", "EVAL", "MGET", "MSET", "MSETNX", "DEL",
	"RENAME", "ATOMIC"}

const groupKeys = 3

// part is one operation of a transaction.
type part struct {
	op
	at int // its key, in the group
}

type txn struct {
	how     how
	parts   []*part
	fillers int // keys that nobody judges, used by the transaction: it takes longer
	once    bool
	outcome outcome
	failed  int // notStored: the part whose condition does not hold; -1: not told
	existed int // keys that there were; -1: not told
	call    int64
	ret     int64
}

// stamp notes the call: nothing has come of it yet.
func (t *txn) stamp() {
	t.call, t.ret, t.outcome, t.failed, t.existed = now(), never, unknown, -1, -1
	for _, p := range t.parts {
		p.call = t.call
		p.reply = reply{ret: never}
	}
}

// restamp moves the call to now: only what is sent from here on has an effect.
func (t *txn) restamp() {
	t.call = now()
	for _, p := range t.parts {
		p.call = t.call
	}
}

// finish notes the return.
func (t *txn) finish(is outcome) {
	t.ret, t.outcome = now(), is
	for _, p := range t.parts {
		p.ret = t.ret
	}
}

// frontend is that of all parts.
func (t *txn) frontend() string { return t.parts[0].frontend }

func (t *txn) reads() bool {
	for _, p := range t.parts {
		if p.kind != opGet && p.kind != opCheck {
			return false
		}
	}
	return t.how != asRename
}

// entry is what a history has of it.
func (t *txn) entry(client int) porcupine.Operation {
	return porcupine.Operation{
		ClientId: client, Input: t, Call: t.call, Output: t, Return: t.ret}
}

type groupState [groupKeys]state

func (s groupState) String() string {
	words := make([]string, len(s))
	for i := range s {
		words[i] = s[i].String()
	}
	return strings.Join(words, " | ")
}

// step returns the states that the transaction may lead to.
func (t *txn) step(s groupState, evictions bool) []interface{} {
	var next []interface{}

	if t.outcome == unknown {
		next = append(next, s)
	}
	for _, before := range t.seen(s, evictions) {
		if n, ok := t.apply(before); ok {
			next = append(next, n)
		}
	}
	return next
}

// seen returns the states that the transaction may find: which of its keys are gone by then?
func (t *txn) seen(s groupState, evictions bool) []groupState {
	all := []groupState{s}
	var looked [groupKeys]bool

	for _, p := range t.parts {
		k := s[p.at]
		if looked[p.at] || !k.exists {
			continue
		}
		looked[p.at] = true
		there := !k.expires || t.call <= k.latest
		gone := evictions || k.expires && t.ret >= k.earliest
		var more []groupState
		for _, one := range all {
			if there {
				more = append(more, one)
			}
			if gone {
				one[p.at] = state{}
				more = append(more, one)
			}
		}
		all = more
	}
	return all
}

// apply does all of it to exactly this state, if it could have had this outcome there.
func (t *txn) apply(s groupState) (groupState, bool) {
	existed := 0

	if t.how == asAtomic {
		return t.atomic(s)
	}
	if t.outcome == notStored {
		return s, t.fails(s)
	}
	if t.how == asRename {
		return t.rename(s)
	}
	if t.how == asMSetNX && t.fails(s) {
		return s, t.outcome == unknown
	}
	for _, p := range t.parts {
		if p.outcome == refused { // for want of memory, alone
			continue
		}
		if s[p.at].exists {
			existed++
		}
		n, ok := apply(s[p.at], &p.request, &p.reply)
		if !ok {
			return s, false
		}
		s[p.at] = n
	}
	return s, t.existed < 0 || existed == t.existed
}

// fails tells whether a condition does not hold, and whether it is the one that was told.
func (t *txn) fails(s groupState) bool {
	for i, p := range t.parts {
		if verdict(s[p.at], &p.request) != done {
			return t.failed < 0 || t.failed == i
		}
		s[p.at], _ = result(s[p.at], &p.request, &p.reply)
	}
	return false
}

// atomic does all of a datagram.  Of one that was aborted only the operation that was told counts:
// that was not done alone, either.
func (t *txn) atomic(s groupState) (groupState, bool) {
	parts := t.parts
	if t.outcome == notStored {
		parts = parts[t.failed : t.failed+1]
	}
	for _, p := range parts {
		before := s[p.at]
		if p.outcome == tooLarge {
			return s, tooMuch(before, p)
		}
		if p.outcome == unknown && !isDone(before, p) {
			return s, false
		}
		n, ok := apply(before, &p.request, &p.reply)
		if !ok {
			return s, false
		}
		s[p.at] = n
	}
	return s, true
}

// isDone tells whether an operation would be done in this state.
func isDone(s state, p *part) bool {
	_, is := result(s, &p.request, &p.reply)
	return is == done || is == miss && !p.cas
}

// tooMuch tells whether this is what fits no reply behind the other results, or, of an APPEND, no
// slot.
func tooMuch(s state, p *part) bool {
	length := 0
	switch {
	case p.kind == opAppend || p.kind == opIncr:
		length = numberLen
	case s.exists && (p.kind == opGet || p.old):
		length = len(s.value)
	}
	joined := p.kind == opAppend && p.valueLen == len(s.value)+len(p.value)
	return verdict(s, &p.request) == done && (joined || p.valueLen == length)
}

// rename moves an entry, with its expiry.
func (t *txn) rename(s groupState) (groupState, bool) {
	from, to := t.parts[0].at, t.parts[1].at

	if !s[from].exists {
		return s, t.outcome == unknown || t.outcome == miss
	}
	if t.outcome == miss {
		return s, false
	}
	s[to] = s[from]
	s[to].version = 0 // a new one
	s[from] = state{}
	return s, true
}

// groupModel returns the model of the keys of a group.
func groupModel(id int64, evictions bool) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{groupState{}} },
		Step: func(s, input, _ interface{}) []interface{} {
			return input.(*txn).step(s.(groupState), evictions)
		},
		Equal: func(a, b interface{}) bool { return a.(groupState) == b.(groupState) },
		Hash: func(s interface{}) uint64 {
			var sum uint64
			for _, k := range s.(groupState) {
				sum ^= k.version + uint64(len(k.value)) ^ uint64(k.earliest)
				sum *= 0x9e3779b97f4a7c15
			}
			return sum
		},
		DescribeOperation: func(input, _ interface{}) string {
			return input.(*txn).describe(id)
		},
		DescribeState: func(s interface{}) string { return s.(groupState).String() },
	}
	return nondeterministic.ToModel()
}

// describe says in one line what was asked and what was answered.
func (t *txn) describe(id int64) string {
	words := make([]string, len(t.parts))
	for i, p := range t.parts {
		words[i] = fmt.Sprintf("key %d %s", p.at, describe(id, &p.request, &p.reply))
	}
	text := fmt.Sprintf("%s %s [%s]", t.how, outcomeNames[t.outcome], strings.Join(words, "; "))
	if t.existed >= 0 {
		text += fmt.Sprintf(" %d existed", t.existed)
	}
	return text
}

func (h how) String() string { return howNames[h] }
