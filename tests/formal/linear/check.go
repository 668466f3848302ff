// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checker judges the histories of keys, one after the other.
type checker struct {
	evictions bool
	timeout   time.Duration
	reports   string // directory of the visualizations
	out       io.Writer

	keys, operations, concurrent int
	kinds                        [kinds]int
	hows                         [hows]int
	outcomes                     [refused]int
	frontends                    map[string]int
	illegal, undecided           int
	longest                      time.Duration
}

const reportsMax = 3 // the first say it all

// check judges the history of a key and reports what is wrong with it.
func (c *checker) check(k *key) {
	history := closed(k.history)
	c.count(history)
	c.judge("key "+k.name, model(k.id, c.evictions), history, onesided(k.id, history),
		func() { c.report(k, history) })
}

// judge looks for an order, unless something is `wrong` in whatever order.
func (c *checker) judge(name string, m porcupine.Model, history []porcupine.Operation,
	wrong string, report func()) {
	begin, verdict := time.Now(), porcupine.Ok
	if wrong == "" {
		verdict = porcupine.CheckOperationsTimeout(m, history, c.timeout)
	}
	if took := time.Since(begin); took > c.longest {
		c.longest = took
	}
	switch {
	case wrong != "":
		c.illegal++
		fmt.Fprintf(c.out, "%s: %s\n", name, wrong)
	case verdict == porcupine.Unknown:
		c.undecided++
		fmt.Fprintf(c.out, "%s: %d operations could not be judged within %v; shorter histories "+
			"(-operations) or fewer clients for each key are needed\n", name, len(history), c.timeout)
	case verdict == porcupine.Illegal:
		c.illegal++
		if c.illegal <= reportsMax {
			report()
		}
	}
}

// closed lets what has no outcome return behind everything else.
func closed(history []porcupine.Operation) []porcupine.Operation {
	end := int64(0)
	for _, o := range history {
		if o.Return != never && o.Return > end {
			end = o.Return
		}
		if o.Call > end {
			end = o.Call
		}
	}
	out := append([]porcupine.Operation{}, history...)
	for i := range out {
		if out[i].Return == never {
			out[i].Return = end + 1
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Call < out[j].Call })
	return out
}

func (c *checker) count(history []porcupine.Operation) {
	c.countMeetings(history)
	for _, o := range history {
		c.kinds[o.Input.(*request).kind]++
		c.frontends[o.Input.(*request).frontend]++
		c.outcomes[o.Output.(*reply).outcome]++
	}
}

// countMeetings counts operations that began before another one had ended.
func (c *checker) countMeetings(history []porcupine.Operation) {
	end := int64(-1)
	c.keys++
	c.operations += len(history)
	for _, o := range history {
		if isUnknown(o) {
			continue
		}
		if o.Call <= end {
			c.concurrent++
		}
		if o.Return > end {
			end = o.Return
		}
	}
}

func isUnknown(o porcupine.Operation) bool {
	if t, ok := o.Input.(*txn); ok {
		return t.outcome == unknown
	}
	return o.Output.(*reply).outcome == unknown
}

// onesided finds what is wrong in whatever order: a value that nobody wrote, or one version of two values.
func onesided(key int64, history []porcupine.Operation) string {
	values := make(map[uint64]string)
	for _, o := range history {
		q, r := o.Input.(*request), o.Output.(*reply)
		if r.existed {
			if _, whole := describeValue(key, r.was); !whole {
				return "torn or foreign value: " + describe(key, q, r)
			}
		}
		if r.outcome != done || !r.tellsMeta || q.kind != opGet && q.kind != opSet {
			continue
		}
		value := r.was
		if q.kind == opSet {
			value = q.value
		}
		if other, seen := values[r.version]; seen && other != value {
			return "a version came twice, first with " + shorten(other) + ": " + describe(key, q, r)
		}
		values[r.version] = value
	}
	return ""
}

// ---- what is said of a history that has no order ----

// until returns the history as it stood at that time: what had not returned has no outcome.
func until(history []porcupine.Operation, at int64) []porcupine.Operation {
	var out []porcupine.Operation
	for _, o := range history {
		if o.Call > at {
			continue
		}
		if o.Return > at {
			if o.Input.(*request).kind == opGet {
				continue
			}
			o.Metadata = o.Output // for who reads it
			o.Output, o.Return = &reply{ret: never}, never
		}
		out = append(out, o)
	}
	return closed(out)
}

// shortest returns the shortest beginning of the history that has no order.  A beginning of one
// that has an order has one too, so that bisection finds it.
func (c *checker) shortest(m porcupine.Model, history []porcupine.Operation) []porcupine.Operation {
	ends := make([]int64, len(history))
	for i, o := range history {
		ends[i] = o.Return
	}
	sort.Slice(ends, func(i, j int) bool { return ends[i] < ends[j] })
	first := sort.Search(len(ends)-1, func(i int) bool {
		return porcupine.CheckOperationsTimeout(m, until(history, ends[i]), c.timeout) != porcupine.Ok
	})
	return until(history, ends[first])
}

const excerptLines = 16

// report prints the end of the shortest beginning that is wrong.
func (c *checker) report(k *key, history []porcupine.Operation) {
	m := model(k.id, c.evictions)
	short := c.shortest(m, history)
	_, info := porcupine.CheckOperationsVerbose(m, short, c.timeout)
	fmt.Fprintf(c.out, "key %s: no order of %d operations explains what came of them.  The last ones (ms; "+
		"* returned last, and does not fit; + returned later; ? never):\n", k.name, len(short))
	lines := describeAll(k.id, short)
	for i, line := range lines {
		if i >= len(lines)-excerptLines || line[2] != ' ' {
			fmt.Fprintln(c.out, line)
		}
	}
	fmt.Fprintf(c.out, "    behind the longest order that fits the state is %s\n", reached(m, info))
	c.write(k.id, m, info, describeAll(k.id, history))
}

// write puts a picture of what is wrong and all of the history into the directory for reports.
func (c *checker) write(
	id int64, m porcupine.Model, info porcupine.LinearizationInfo, all []string,
) {
	path := filepath.Join(c.reports, fmt.Sprintf("linear-%d", id))
	err := porcupine.VisualizePath(m, info, path+".html")
	if err == nil {
		err = os.WriteFile(path+".txt", []byte(strings.Join(all, "\n")+"\n"), 0o666)
	}
	if err != nil {
		fmt.Fprintf(c.out, "    cannot write reports: %v\n", err)
		return
	}
	fmt.Fprintf(c.out, "    picture: %s.html, all of the history: %s.txt\n", path, path)
}

// describeAll describes the operations of a history, a line each, and marks what is odd about them.
func describeAll(key int64, history []porcupine.Operation) []string {
	var lines []string
	var culprit int64

	for _, o := range history {
		if o.Output.(*reply).outcome != unknown && o.Return > culprit {
			culprit = o.Return
		}
	}
	for _, o := range history {
		q, r := o.Input.(*request), o.Output.(*reply)
		mark, end := " ", ms(r.ret)
		if later, ok := o.Metadata.(*reply); ok && later.outcome != unknown {
			mark, r, end = "+", later, ms(later.ret)
		} else if r.outcome == unknown {
			mark, end = "?", "?"
		} else if o.Return == culprit {
			mark = "*"
		}
		lines = append(lines, fmt.Sprintf("  %s %12s..%-12s client %2d: %s", mark, ms(o.Call), end, o.ClientId,
			describe(key, q, r)))
	}
	return lines
}

// reached describes the state behind the longest order that was found.
func reached(m porcupine.Model, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, part := range info.PartialLinearizationsOperations() {
		for _, order := range part {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	s := m.Init()
	for _, o := range longest {
		_, s = m.Step(s, o.Input, o.Output)
	}
	return m.DescribeState(s)
}
