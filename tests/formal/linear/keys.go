// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math/rand"
	"strings"
	"sync"
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

	begun, inFlight, lost int
	retired               bool
	history               []porcupine.Operation
	chunks                atomic.Uint64 // made so far
	version, older        atomic.Uint64 // the last two that replies have told
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

// keys is what the clients work on: a fixed number of places, each with a key that is replaced when
// its history is long enough to be checked.
type keys struct {
	mu       sync.Mutex
	places   []*key
	prefix   string
	nextID   int64
	limit    int       // operations of one history
	finished chan *key // to be checked
}

// A lost outcome stays open to the end of the history, and each doubles what the checker may have to
// look at: a key with so many has had enough.
const lostMax = 6

func newKeys(count, limit int, prefix string) *keys {
	ks := &keys{places: make([]*key, count), prefix: prefix, limit: limit, finished: make(chan *key, 256)}
	for i := range ks.places {
		ks.renew(i)
	}
	return ks
}

func (ks *keys) renew(place int) {
	ks.nextID++
	ks.places[place] = newKey(ks.nextID, place, ks.prefix)
}

// take chooses a key and counts an operation on it.
func (ks *keys) take(rng *rand.Rand) *key {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	place := rng.Intn(len(ks.places))
	k := ks.places[place]
	k.begun++
	k.inFlight++
	if k.begun == ks.limit || k.lost >= lostMax {
		k.retired = true
		ks.renew(place)
	}
	return k
}

// done puts an operation into its key's history, and the history to be checked if it was the last.
func (ks *keys) done(client int, o *op) {
	ks.mu.Lock()
	k := o.key
	if o.outcome != refused && !(o.outcome == unknown && o.kind == opGet) {
		q, r := o.request, o.reply
		k.history = append(k.history, porcupine.Operation{
			ClientId: client, Input: &q, Call: q.call, Output: &r, Return: r.ret})
		if o.outcome == unknown {
			k.lost++
		}
	}
	k.inFlight--
	last := k.retired && k.inFlight == 0
	ks.mu.Unlock()
	if v := o.version; v != 0 && v != k.version.Load() {
		k.older.Store(k.version.Swap(v))
	}
	if last {
		ks.finished <- k
	}
}

// close hands out what is left; no operation may be under way.
func (ks *keys) close() {
	for _, k := range ks.places {
		if len(k.history) > 0 {
			ks.finished <- k
		}
	}
	close(ks.finished)
}
