// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/anishathalye/porcupine"
)

// style is what is done to a key most of the time.
type style int

const (
	blobs    style = iota // values of all sizes: overwrites and moves between the classes
	counters              // numbers
	churned               // inserted and deleted
	expiring              // lives for some milliseconds
	styles
)

// key is one key under test, from its first operation to its check.  It is never used again
// afterwards: only of a key that was never there is the state at the start of the history certain.
type key struct {
	id    int64
	name  string
	style style

	log
	chunks         atomic.Uint64 // made so far
	version, older atomic.Uint64 // the last two that replies have told
}

var paddings = []int{0, 0, 0, 20, 50, 130, 220}

func newKey(id int64, place int, prefix string) *key {
	k := &key{id: id, style: style(place) % styles}
	k.name = fmt.Sprintf("%s:%d:%d:", prefix, place, id)
	k.name += strings.Repeat("k", paddings[id%int64(len(paddings))])
	return k
}

// op is one operation of one client on its way.
type op struct {
	key *key
	request
	reply
}

// entry is what a history has of an operation.
func (o *op) entry(client int) porcupine.Operation {
	q, r := o.request, o.reply
	return porcupine.Operation{ClientId: client, Input: &q, Call: q.call, Output: &r, Return: r.ret}
}

// tell notes the version of a reply, if it has one.
func (k *key) tell(version uint64) {
	if version != 0 && version != k.version.Load() {
		k.older.Store(k.version.Swap(version))
	}
}
