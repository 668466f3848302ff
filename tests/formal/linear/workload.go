// SPDX-License-Identifier: BSD-2-Clause

package main

import "math/rand"

// mix is how often a style does what, in parts of their sum.
type mix [kinds]int

var mixes = [styles]mix{
	blobs:    {opGet: 40, opSet: 36, opDelete: 8, opAppend: 8, opIncr: 2, opExpire: 3, opPersist: 1},
	counters: {opGet: 24, opIncr: 46, opSet: 14, opDelete: 8, opAppend: 2, opExpire: 2, opPersist: 1},
	churned:  {opGet: 34, opSet: 34, opDelete: 30, opIncr: 1, opAppend: 1},
	expiring: {opGet: 44, opSet: 34, opDelete: 5, opIncr: 4, opAppend: 3, opExpire: 8, opPersist: 2},
}

var frontendName = map[bool]string{false: "udp", true: "resp"}

// generator makes up the operations of one client.
type generator struct {
	rng     *rand.Rand
	resp    bool
	front   bool // in front of a Redis: without what is about versions, and in different ways
	cluster bool // ... of a cluster
	skewed  int  // percent of ATOMIC datagrams
	large   int  // percent of transactions with fillers
	knows   [kinds]bool
}

func (g *generator) chance(percent int) bool { return g.rng.Intn(100) < percent }

// draw chooses a place by the weights there.
func draw(rng *rand.Rand, weights []int) int {
	sum := 0
	for _, n := range weights {
		sum += n
	}
	left := rng.Intn(sum)
	for at, n := range weights {
		if left -= n; left < 0 {
			return at
		}
	}
	panic("unreachable")
}

// kind chooses one that the server has.
func (g *generator) kind(m mix) kind {
	for k := range m {
		if !g.knows[k] {
			m[k] = 0
		}
	}
	return kind(draw(g.rng, m[:]))
}

// batch makes up what the client asks for at once: mostly one operation, sometimes some more.
func (g *generator) batch(ks *book[*key]) []*op {
	var batch []*op

	room := payload - hdrLen
	for len(batch) == 0 || len(batch) < 4 && room > opLen+256 && g.chance(15) {
		k := ks.take(g.rng)
		o := &op{key: k, request: g.request(k)}
		o.frontend = frontendName[g.resp]
		if o.size() > room && !g.resp {
			o.request = request{kind: opGet, frontend: o.frontend}
		}
		room -= o.size()
		batch = append(batch, o)
	}
	return batch
}

// request makes up an operation on a key.
func (g *generator) request(k *key) request {
	q := g.usual(k)
	if !g.front {
		return q
	}
	if g.resp {
		q.way = wayOf(g.rng, &q, g.cluster)
		return q
	}
	q.cas, q.old = false, false
	q.xx = q.xx && q.kind == opSet
	return q
}

func (g *generator) usual(k *key) request {
	q := request{kind: g.kind(mixes[k.style])}
	switch q.kind {
	case opSet:
		g.set(k, &q)
	case opDelete:
		q.old = g.chance(40)
		g.cas(k, &q, 30)
	case opIncr:
		q.amount = int64(1 + g.rng.Intn(1000))
		if g.chance(20) {
			q.amount = -q.amount
		}
		g.cas(k, &q, 10)
		q.xx = !g.resp && !q.cas && g.chance(10)
	case opAppend:
		q.value = makeChunk(k.id, k.chunks.Add(1), 24+g.rng.Intn(60))
		g.cas(k, &q, 10)
		q.xx = !g.resp && !q.cas && g.chance(10)
	case opExpire:
		if g.resp || !g.chance(15) { // else it takes the expiry away
			q.ttl = g.ttl(k)
		}
	}
	return q
}

func (g *generator) set(k *key, q *request) {
	q.old = g.chance(15)
	switch {
	case k.style == churned && g.chance(60), g.chance(12):
		q.nx = true
	case g.chance(12):
		q.xx = true
	default:
		g.cas(k, q, 40)
	}
	if g.chance(10) {
		q.keepTTL = true
	} else if g.chance(8) || k.style == expiring && g.chance(75) {
		q.ttl = g.ttl(k)
	}
	if k.style == counters && g.chance(90) {
		q.value = numberText(g.rng)
		return
	}
	q.value = makeChunk(k.id, k.chunks.Add(1), g.length(k))
}

// cas makes the operation one that wants a version that was told lately, if there is one.
func (g *generator) cas(k *key, q *request, percent int) {
	if g.resp || !g.chance(percent) {
		return
	}
	version := k.version.Load()
	if g.chance(15) {
		version = k.older.Load()
	}
	q.cas, q.expect = version != 0, version
}

func (g *generator) ttl(k *key) int64 {
	if k.style == expiring {
		return (2 + g.rng.Int63n(30)) * millisecond
	}
	return (20 + g.rng.Int63n(400)) * millisecond
}

// length is that of a new value: most stay in their class or next to it, some leave it far.
func (g *generator) length(k *key) int {
	if g.resp && k.style == blobs && g.chance(8) {
		return 4000 + g.rng.Intn(2000)
	}
	most := payload - hdrLen - opLen - pad8(len(k.name)) - 8
	if most > 1300 {
		most = 1300
	}
	switch g.rng.Intn(3) {
	case 0:
		return chunkMin + g.rng.Intn(24)
	case 1:
		return 100 + g.rng.Intn(200)
	}
	return 600 + g.rng.Intn(most-600)
}

// numberText is a number to start from; a few are at the end of what INCR can count.
func numberText(rng *rand.Rand) string {
	if rng.Intn(20) == 0 {
		return "9223372036854775800"
	}
	return []string{"0", "-5", "100000", "99999999"}[rng.Intn(4)]
}
