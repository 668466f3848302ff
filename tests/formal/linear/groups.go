// SPDX-License-Identifier: BSD-2-Clause

package main

import "fmt"

// group is some keys under test and the history of all of them, from the first transaction to the
// check.
type group struct {
	id   int64
	keys [groupKeys]*key
	log
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

// How often what is asked for, in parts of the sum.
var (
	respHows = []int{asSingle: 20, asExec: 22, asWatch: 18, asScript: 14, asMGet: 8, asMSet: 6,
		asMSetNX: 4, asDel: 4, asRename: 6}
	udpHows = []int{asSingle: 60, asAtomic: 40}
)

func (g *generator) how() how {
	if g.resp {
		return how(draw(g.rng, respHows))
	}
	return how(draw(g.rng, udpHows))
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
	case asAtomic:
		g.atomic(t, gr, several)
	case asRename:
		several = order[:2]
		fallthrough
	default:
		for _, at := range several {
			t.parts = append(t.parts, g.part(gr, at, g.plain(t.how, gr.keys[at])))
		}
	}
	if t.how == asExec && g.chance(15) {
		g.slowReads(t, gr, several)
	} else if (t.how == asExec || t.how == asWatch) && g.chance(15) {
		t.fillers = g.fillers()
	}
	return t
}

const largeFillers = 2100 // more than the server has places for at its start

// fillers is how many there are in a transaction that has some.
func (g *generator) fillers() int {
	if g.chance(g.large) {
		return largeFillers + g.rng.Intn(3000)
	}
	return 100 + g.rng.Intn(800)
}

// slowReads makes up a transaction that only reads, and takes long between the first two keys.
func (g *generator) slowReads(t *txn, gr *group, several []int) {
	t.parts = nil
	for _, at := range several {
		t.parts = append(t.parts, g.part(gr, at, request{kind: opGet}))
	}
	t.fillers = g.fillers()
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

// skew makes up one of three datagrams: the first two, at once, must not both be done.
func (g *generator) skew(t *txn, gr *group) {
	set := func(at int) *part {
		k := gr.keys[at]
		return g.part(gr, at,
			request{kind: opSet, value: makeChunk(k.id, k.chunks.Add(1), 40)})
	}
	switch g.rng.Intn(3) {
	case 0: // creates a key, and reads another one
		t.parts = []*part{g.part(gr, 0, request{kind: opGet}), set(1)}
		t.fillers = g.rng.Intn(30)
	case 1: // changes that, while the first one is missing
		t.parts = []*part{set(0), g.part(gr, 1, request{kind: opCheck})}
	default:
		t.parts = []*part{g.part(gr, 1, request{kind: opDelete})}
	}
}

// atomic makes up a datagram: one operation on each key, as each may be changed once only.
func (g *generator) atomic(t *txn, gr *group, several []int) {
	readsAll, room := g.chance(30), payload-hdrLen-sessionLen

	if g.chance(g.skewed) {
		g.skew(t, gr)
		return
	}
	t.once = g.chance(40)
	for _, at := range several {
		q := request{kind: opGet}
		if !readsAll && !g.chance(20) {
			q = g.conditional(gr.keys[at])
		}
		p := g.part(gr, at, q)
		if p.size() > room {
			p = g.part(gr, at, request{kind: opCheck})
		}
		room -= p.size()
		t.parts = append(t.parts, p)
	}
	if g.chance(50) {
		t.fillers = 1 + g.rng.Intn(24)
	}
}

// conditional is an operation as by itself, or a CHECK.
func (g *generator) conditional(k *key) request {
	if !g.chance(20) {
		return g.request(k)
	}
	q := request{kind: opCheck}
	if g.chance(50) {
		q.expect = k.version.Load()
	}
	return q
}
