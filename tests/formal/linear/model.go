// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// What one key may do, as Porcupine wants to be told: a state, and which states an operation with its
// outcome may lead to.
//
// Unknown outcomes.  A write whose reply never came may have been done at any time after its call, or
// never.  It returns at the end of the history and its outcome fits whatever it found, so that the
// checker may put it anywhere, also behind everything that could have seen it.
//
// Versions.  A write over RESP, or one whose reply was lost, does not tell its version: the state then
// has version 0 until a reply of the same entry tells it.  A client knows a version only from a reply,
// whose operation comes before in every order that the checker may choose; so where the version is
// still 0 no CAS can hold the right one.
//
// Expiry.  The server notes "now + ttl" at an instant between call and return of the write, so the end
// of the entry lies between call + ttl and return + ttl (return is never, if the outcome is unknown).
// An operation looks at the clock at an instant between its own call and return: it may find the entry
// gone only if it returned after the earliest end, and there only if it was called before the latest.
// Between those two it may find either, and once somebody found it gone it stays so: step() follows both.
// `slack` covers that the server counts in whole milliseconds and by another clock.
//
// Eviction, where it is on, is the same without an earliest end.

type kind uint8

const (
	opGet kind = iota
	opSet
	opDelete
	opIncr
	opAppend
	opExpire
	opPersist
	opCheck // only in ATOMIC datagrams
	kinds
)

var kindNames = [kinds]string{"GET", "SET", "DELETE", "INCR", "APPEND", "EXPIRE", "PERSIST",
	"CHECK"}

const (
	never = math.MaxInt64
	slack = 5 * millisecond

	millisecond = int64(1e6) // all times are nanoseconds since the start
)

// request is what a client asks for.
type request struct {
	kind                 kind
	frontend             string
	way                  way // over RESP
	nx, xx, keepTTL, cas bool
	old                  bool   // the result carries the value that was there
	value                string // SET, APPEND
	amount               int64  // INCR
	ttl                  int64  // SET, EXPIRE: ns, 0 = for ever
	expect               uint64 // CAS, CHECK: the version; CHECK: 0 = there is no entry
	call                 int64
}

type outcome uint8

const (
	unknown outcome = iota // the reply was lost
	done
	miss
	notStored
	tooLarge // there is a value that the reply could not carry; nothing was changed
	notNumber
	overflow
	refused // not done, for a reason that is not the entry's: not a part of the history
	differs // no outcome: the state would have given another one
)

var outcomeNames = []string{"?", "OK", "MISS", "NOT_STORED", "TOO_LARGE", "NOT_NUMBER",
	"OVERFLOW", "refused", "differs"}

// reply is what the client was told.  What a front end does not tell is left out of the comparison.
type reply struct {
	outcome   outcome
	tellsOld  bool // existed and was say what was there before
	existed   bool
	was       string
	valueLen  int    // with tooLarge
	number    int64  // INCR: the new number; APPEND: the new length
	version   uint64 // 0: there is none, or not told
	tellsMeta bool   // version and left are told
	left      int64  // ns to live, 0 = for ever
	ret       int64
}

// state of a key: the zero state is that of a key that does not exist.
type state struct {
	exists           bool
	value            string
	version          uint64 // 0: nobody was told yet
	expires          bool
	earliest, latest int64 // of its end
}

func (s state) String() string {
	if !s.exists {
		return "missing"
	}
	text := fmt.Sprintf("%s v%d", shorten(s.value), s.version)
	if s.expires {
		text += fmt.Sprintf(" until %s..%s", ms(s.earliest), ms(s.latest))
	}
	return text
}

// step returns the states that the operation may lead to.
func step(s state, q *request, r *reply, evictions bool) []interface{} {
	var next []interface{}

	if !s.expires || q.call <= s.latest {
		if n, ok := apply(s, q, r); ok {
			next = append(next, n)
		}
	}
	if s.exists && (evictions || s.expires && r.ret >= s.earliest) {
		if n, ok := apply(state{}, q, r); ok {
			next = append(next, n)
		}
	}
	return next
}

// largestValue is the longest that the store holds.
const largestValue = 1 << 20

// apply does the operation to exactly this state, if it could have had that outcome there.
func apply(s state, q *request, r *reply) (state, bool) {
	if r.outcome == tooLarge && q.kind == opAppend { // the store holds none that large
		length := len(s.value) + len(q.value)
		return s, s.exists && length > largestValue && length == r.valueLen && verdict(s, q) == done
	}
	if r.outcome == tooLarge {
		return s, s.exists && len(s.value) == r.valueLen
	}
	after, is := result(s, q, r)
	if r.outcome == unknown {
		return after, true
	}
	if is != r.outcome || r.tellsOld && (r.existed != s.exists || r.was != s.value) {
		return s, false
	}
	return learn(after, q, r)
}

// verdict says whether the conditions of the operation hold.
func verdict(s state, q *request) outcome {
	if q.kind == opCheck {
		return either(s.exists == (q.expect != 0) && s.version == q.expect, done, notStored)
	}
	if q.cas {
		if !s.exists {
			return miss
		}
		if s.version != q.expect {
			return notStored
		}
	}
	if q.nx && s.exists || q.xx && !s.exists {
		return notStored
	}
	return done
}

// result returns what the operation makes of the state, and the outcome that it has there.
func result(s state, q *request, r *reply) (state, outcome) {
	if v := verdict(s, q); v != done {
		return s, v
	}
	switch q.kind {
	case opGet:
		if !s.exists {
			return s, miss
		}
		return s, done
	case opCheck:
		return s, done
	case opSet:
		return written(s, q, r, q.value, q.keepTTL), done
	case opDelete:
		if !s.exists {
			return s, miss
		}
		return state{}, done
	case opAppend:
		value := s.value + q.value
		if r.outcome == done && r.number != int64(len(value)) {
			return s, differs
		}
		return written(s, q, r, value, true), done
	case opIncr:
		return increment(s, q, r)
	case opExpire:
		if !s.exists {
			return s, miss
		}
		return written(s, q, r, s.value, false), done
	case opPersist:
		if !s.exists || !s.expires {
			return s, notStored
		}
		return written(s, q, r, s.value, false), done
	}
	panic("unknown kind of operation")
}

func increment(s state, q *request, r *reply) (state, outcome) {
	var old int64

	if s.exists {
		var ok bool
		if old, ok = parseNumber(s.value); !ok {
			return s, notNumber
		}
	}
	sum := old + q.amount
	if (sum > old) != (q.amount > 0) {
		return s, overflow
	}
	if r.outcome == done && r.number != sum {
		return s, differs
	}
	return written(s, q, r, strconv.FormatInt(sum, 10), true), done
}

// written is the state after a change: version and expiry are new.
func written(s state, q *request, r *reply, value string, keepTTL bool) state {
	after := state{exists: true, value: value, version: r.version}
	if keepTTL {
		after.expires, after.earliest, after.latest = s.expires, s.earliest, s.latest
	} else if q.ttl > 0 {
		after.expires, after.earliest, after.latest = true, q.call+q.ttl-slack, never
		if r.ret < never {
			after.latest = r.ret + q.ttl + slack
		}
	}
	return after
}

// learn compares version and remaining time with what the reply says of the entry after the operation.
func learn(s state, q *request, r *reply) (state, bool) {
	if !r.tellsMeta {
		return s, true
	}
	if !s.exists {
		return s, r.version == 0 && r.left == 0
	}
	if r.version == 0 || s.version != 0 && s.version != r.version {
		return s, false
	}
	if q.cas && r.outcome == notStored && r.version == q.expect {
		return s, false
	}
	s.version = r.version
	if s.expires != (r.left > 0) {
		return s, false
	}
	return s, !s.expires || q.call+r.left-slack <= s.latest && r.ret+r.left+slack >= s.earliest
}

// model returns the model of one key.
func model(key int64, evictions bool) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{state{}} },
		Step: func(s, input, output interface{}) []interface{} {
			return step(s.(state), input.(*request), output.(*reply), evictions)
		},
		Equal: func(a, b interface{}) bool { return a.(state) == b.(state) },
		Hash: func(s interface{}) uint64 {
			st := s.(state)
			return (st.version+uint64(len(st.value)))*0x9e3779b97f4a7c15 ^ uint64(st.earliest)
		},
		DescribeOperation: func(input, output interface{}) string {
			return describe(key, input.(*request), output.(*reply))
		},
		DescribeState: func(s interface{}) string { return s.(state).String() },
		DescribeOperationMetadata: func(later interface{}) string {
			if r, ok := later.(*reply); ok {
				return "later " + outcomeNames[r.outcome]
			}
			return ""
		},
	}
	return nondeterministic.ToModel()
}

// ---- words ----

func ms(ns int64) string {
	if ns == never {
		return "never"
	}
	return fmt.Sprintf("%.3f", float64(ns)/1e6)
}

func shorten(value string) string {
	if len(value) > 20 {
		return fmt.Sprintf("%.20s.. (%d B)", value, len(value))
	}
	return value
}

// describe says in one line what was asked and what was answered.
func describe(key int64, q *request, r *reply) string {
	words := []string{q.frontend, kindNames[q.kind]}
	if q.way != plain {
		words = append(words, wayNames[q.way])
	}
	if q.kind == opSet || q.kind == opAppend {
		text, _ := describeValue(key, q.value)
		words = append(words, text)
	}
	if q.kind == opIncr {
		words = append(words, strconv.FormatInt(q.amount, 10))
	}
	for _, flag := range []struct {
		on   bool
		name string
	}{{q.nx, "NX"}, {q.xx, "XX"}, {q.keepTTL, "KEEPTTL"}, {q.old, "RETURN"}} {
		if flag.on {
			words = append(words, flag.name)
		}
	}
	if q.cas || q.kind == opCheck {
		words = append(words, fmt.Sprintf("CAS v%d", q.expect))
	}
	if q.ttl > 0 || q.kind == opExpire {
		words = append(words, "ttl "+ms(q.ttl))
	}
	return strings.Join(append(words, "->", describeReply(key, q, r)), " ")
}

func describeReply(key int64, q *request, r *reply) string {
	words := []string{outcomeNames[r.outcome]}
	if r.existed {
		text, whole := describeValue(key, r.was)
		if !whole {
			text = "NEVER WRITTEN: " + text
		}
		words = append(words, text)
	} else if r.tellsOld {
		words = append(words, "(was missing)")
	}
	if r.outcome == tooLarge {
		words = append(words, fmt.Sprintf("%d B", r.valueLen))
	}
	if r.outcome == done && (q.kind == opIncr || q.kind == opAppend) {
		words = append(words, strconv.FormatInt(r.number, 10))
	}
	if r.tellsMeta {
		words = append(words, fmt.Sprintf("v%d", r.version))
		if r.left > 0 {
			words = append(words, "ttl "+ms(r.left))
		}
	}
	return strings.Join(words, " ")
}
