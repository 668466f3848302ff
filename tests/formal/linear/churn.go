// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math/rand"
	"strings"
	"sync/atomic"
)

// churn makes neighbours: keys that nobody judges, so that buckets, slots and pages of the keys under
// test are shared, given back and used again.  They come in waves of one size: many are set in an
// order by chance, then most are deleted, so that pages run empty but for a few entries.
type churn struct {
	frontend   frontend
	rng        *rand.Rand
	neighbours int
	prefix     string
	atOnce     int // operations in one request
	sizes      []int
	over       *atomic.Bool
	ops        *atomic.Int64
}

func (c *churn) run() {
	for !c.over.Load() {
		size, most := c.sizes[c.rng.Intn(len(c.sizes))], 70+c.rng.Intn(31)
		c.pass(request{kind: opSet}, size, 100)
		c.pass(request{kind: opDelete}, 0, most)
	}
}

// pass does the operation to so many percent of the neighbours.
func (c *churn) pass(q request, size, percent int) {
	var batch []*op

	for _, i := range c.rng.Perm(c.neighbours) {
		if c.rng.Intn(100) >= percent {
			continue
		}
		if size > 0 {
			q.value = strings.Repeat("n", size-c.rng.Intn(size/4+1))
		}
		batch = append(batch, &op{key: &key{name: fmt.Sprintf("%s:n:%d", c.prefix, i)}, request: q})
		if len(batch) < c.atOnce {
			continue
		}
		if c.over.Load() {
			return
		}
		if c.frontend.ready() {
			// What came of it does not matter, nor that nothing did while xkvd was gone.
			_ = c.frontend.do(batch)
			c.ops.Add(int64(len(batch)))
		} else {
			pause()
		}
		batch = nil
	}
}
