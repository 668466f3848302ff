// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math/rand"
	"sync"

	"github.com/anishathalye/porcupine"
)

// group is some keys under test and the history of all of them, from the first transaction to the
// check.
type group struct {
	id   int64
	keys [groupKeys]*key

	begun, inFlight, lost int
	retired               bool
	history               []porcupine.Operation
}

// The keys of a group share an identity, because RENAME takes a value from one to the other; so
// their chunks are numbered apart.
func newGroup(id int64, prefix string) *group {
	g := &group{id: id}
	for at := range g.keys {
		k := newKey(id, int(id)+at, fmt.Sprintf("%s:%d", prefix, at))
		k.chunks.Store(uint64(at) << 32)
		g.keys[at] = k
	}
	return g
}

// groups is what the clients work on, as keys is for single ones.
type groups struct {
	mu       sync.Mutex
	places   []*group
	prefix   string
	nextID   int64
	limit    int         // transactions of one history
	finished chan *group // to be checked
}

func newGroups(count, limit int, prefix string) *groups {
	gs := &groups{places: make([]*group, count), prefix: prefix, limit: limit,
		finished: make(chan *group, 256)}
	for i := range gs.places {
		gs.renew(i)
	}
	return gs
}

func (gs *groups) renew(place int) {
	gs.nextID++
	gs.places[place] = newGroup(gs.nextID, gs.prefix)
}

// take chooses a group and counts a transaction on it.
func (gs *groups) take(rng *rand.Rand) *group {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	place := rng.Intn(len(gs.places))
	g := gs.places[place]
	g.begun++
	g.inFlight++
	if g.begun == gs.limit || g.lost >= lostMax {
		g.retired = true
		gs.renew(place)
	}
	return g
}

// done puts a transaction into its group's history, and the history to be checked if it was the
// last.
func (gs *groups) done(client int, g *group, t *txn) {
	gs.mu.Lock()
	if t.outcome != refused && !(t.outcome == unknown && t.reads()) {
		g.history = append(g.history, porcupine.Operation{
			ClientId: client, Input: t, Call: t.call, Output: t, Return: t.ret})
		if t.outcome == unknown {
			g.lost++
		}
	}
	g.inFlight--
	last := g.retired && g.inFlight == 0
	gs.mu.Unlock()
	for _, p := range t.parts {
		if v := p.version; v != 0 && v != p.key.version.Load() {
			p.key.older.Store(p.key.version.Swap(v))
		}
	}
	if last {
		gs.finished <- g
	}
}

// close hands out what is left; no transaction may be under way.
func (gs *groups) close() {
	for _, g := range gs.places {
		if len(g.history) > 0 {
			gs.finished <- g
		}
	}
	close(gs.finished)
}

// howMix is how often what is asked for over RESP, in parts of the sum.  Over UDP all are single.
var howMix = [hows]int{asSingle: 20, asExec: 22, asWatch: 18, asScript: 14, asMGet: 8, asMSet: 6,
	asMSetNX: 4, asDel: 4, asRename: 6}

func (g *generator) how() how {
	if !g.resp {
		return asSingle
	}
	sum := 0
	for _, n := range howMix {
		sum += n
	}
	at := g.rng.Intn(sum)
	for h, n := range howMix {
		if at -= n; at < 0 {
			return how(h)
		}
	}
	panic("unreachable")
}

func (g *generator) part(gr *group, at int, q request) *part {
	q.frontend = frontendName[g.resp]
	return &part{op: op{key: gr.keys[at], request: q}, at: at}
}

// txn makes up a transaction on a group.
func (g *generator) txn(gr *group) *txn {
	t := &txn{how: g.how()}
	order := g.rng.Perm(groupKeys)
	several := order[:2+g.rng.Intn(groupKeys-1)]
	switch t.how {
	case asSingle:
		t.parts = []*part{g.part(gr, order[0], g.request(gr.keys[order[0]]))}
	case asExec, asScript:
		g.some(t, gr, 2+g.rng.Intn(3))
	case asWatch:
		for _, at := range several {
			t.parts = append(t.parts, g.part(gr, at, request{kind: opGet}))
		}
		g.some(t, gr, 1+g.rng.Intn(2))
	case asRename:
		several = order[:2]
		fallthrough
	default:
		for _, at := range several {
			t.parts = append(t.parts, g.part(gr, at, g.plain(t.how, gr.keys[at])))
		}
	}
	if (t.how == asExec || t.how == asWatch) && g.chance(15) {
		t.fillers = 100 + g.rng.Intn(800)
	}
	return t
}

// some adds operations on any keys, the same one twice perhaps.
func (g *generator) some(t *txn, gr *group, count int) {
	for i := 0; i < count; i++ {
		at := g.rng.Intn(groupKeys)
		t.parts = append(t.parts, g.part(gr, at, g.request(gr.keys[at])))
	}
}

// plain is the operation on a key in a command about several.
func (g *generator) plain(h how, k *key) request {
	switch h {
	case asMSet, asMSetNX:
		value := makeChunk(k.id, k.chunks.Add(1), g.length(k))
		return request{kind: opSet, nx: h == asMSetNX, value: value}
	case asDel:
		return request{kind: opDelete}
	}
	return request{kind: opGet}
}
