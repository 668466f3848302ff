// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math/rand"
	"strings"
)

// In front of a Redis a command goes up by one of several connections, and may name its key or not:
// RESP clients ask for the same in ways that differ in this.

type way uint8

const (
	plain         way = iota
	byScript          // by EVAL, which does not name the key
	byScriptOfKey     // by EVAL, which does
	inMulti           // between MULTI and EXEC
	asRange           // GET: as GETRANGE, which is not cached
	asPair            // GET: as MGET with another key
)

var wayNames = []string{byScript: "by EVAL", byScriptOfKey: "by EVAL of the key",
	inMulti: "in MULTI", asRange: "by GETRANGE", asPair: "by MGET"}

const anyCommand = "return redis.call(unpack(ARGV))"

// wayOf chooses one that is good for the operation.  A cluster has to be told each key.
func wayOf(rng *rand.Rand, q *request, cluster bool) way {
	if cluster {
		return byName(rng, q)
	}
	if q.kind == opGet {
		return way(draw(rng, []int{plain: 60, byScript: 4, byScriptOfKey: 4, inMulti: 4,
			asRange: 14, asPair: 14}))
	}
	if q.kind == opIncr { // Lua cannot count that far
		return way(draw(rng, []int{plain: 80, inMulti: 20}))
	}
	return way(draw(rng, []int{plain: 70, byScript: 10, byScriptOfKey: 10, inMulti: 10}))
}

func byName(rng *rand.Rand, q *request) way {
	switch q.kind {
	case opGet:
		return way(draw(rng, []int{plain: 68, byScriptOfKey: 4, asRange: 14, asPair: 14}))
	case opIncr:
		return plain
	}
	return way(draw(rng, []int{plain: 85, byScriptOfKey: 15}))
}

// commands returns what is sent for the operation.
func commands(key string, q *request) [][]string {
	words := command(key, q)
	switch q.way {
	case byScript:
		return [][]string{append([]string{"EVAL", anyCommand, "0"}, words...)}
	case byScriptOfKey:
		return [][]string{append([]string{"EVAL", anyCommand, "1", key}, words...)}
	case inMulti:
		return [][]string{{"MULTI"}, words, {"EXEC"}}
	case asRange:
		return [][]string{{"GETRANGE", key, "0", "-1"}}
	case asPair:
		return [][]string{{"MGET", key, "{" + key + "}:other"}}
	}
	return [][]string{words}
}

// readReply reads what has come of the operation, however it was sent.
func (d *respDoor) readReply(o *op) (a answer, err error) {
	failed := ""
	for range commands(o.key.name, &o.request) {
		if a, err = d.read(); err != nil {
			return a, err
		}
		if o.way == inMulti && a.kind == '-' {
			failed = a.text
		}
	}
	switch {
	case failed != "": // was it executed without MULTI?
		if !strings.Contains(failed, "UPSTREAM") && !strings.Contains(failed, "EXEC") {
			return a, fmt.Errorf("a transaction: %s", failed)
		}
		return answer{kind: '-', text: lostUpstream}, nil
	case a.kind == '*' && len(a.list) > 0:
		a = a.list[0]
	case o.way == asRange && a.kind == '$':
		a.isNil = a.text == "" // no value is empty
	}
	return a, nil
}

// Errors of xkvd in front of a Redis: the first one was not executed, of the second nobody knows.
const (
	noUpstream   = "UPSTREAM there is no connection"
	lostUpstream = "UPSTREAM the connection"
)
