// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// checkGroup judges the history of a group of keys.
func (c *checker) checkGroup(g *group) {
	history := closed(g.history)
	c.countGroup(history)
	c.judge(fmt.Sprintf("group %d", g.id), groupModel(g.id, c.evictions), history,
		onesidedGroup(g.id, history), func() { c.reportGroup(g, history) })
}

func (c *checker) countGroup(history []porcupine.Operation) {
	c.countMeetings(history)
	for _, o := range history {
		t := o.Input.(*txn)
		c.hows[t.how]++
		c.outcomes[t.outcome]++
		c.frontends[t.frontend()]++
		for _, p := range t.parts {
			c.kinds[p.kind]++
		}
	}
}

// onesidedGroup finds what is wrong in whatever order: a value that nobody wrote.
func onesidedGroup(id int64, history []porcupine.Operation) string {
	for _, o := range history {
		t := o.Input.(*txn)
		for _, p := range t.parts {
			if _, whole := describeValue(id, p.was); p.existed && !whole {
				return "torn or foreign value: " + t.describe(id)
			}
		}
	}
	return ""
}

// reportGroup prints all of a history that has no order: it is short.
func (c *checker) reportGroup(g *group, history []porcupine.Operation) {
	m := groupModel(g.id, c.evictions)
	_, info := porcupine.CheckOperationsVerbose(m, history, c.timeout)
	fmt.Fprintf(c.out, "group %d: no order of %d transactions explains what came of them.  "+
		"All of them (ms; ? the reply was lost):\n", g.id, len(history))
	lines := describeGroup(g.id, history)
	for _, line := range lines {
		fmt.Fprintln(c.out, line)
	}
	fmt.Fprintf(c.out, "    behind the longest order that fits: %s\n", reached(m, info))
	c.write(g.id, m, info, lines)
}

func describeGroup(id int64, history []porcupine.Operation) []string {
	lines := make([]string, len(history))
	for i, o := range history {
		t := o.Input.(*txn)
		mark := " "
		if t.outcome == unknown {
			mark = "?"
		}
		lines[i] = fmt.Sprintf("  %s %12s..%-12s client %2d %-4s %s",
			mark, ms(t.call), ms(t.ret), o.ClientId, t.frontend(), t.describe(id))
	}
	return lines
}
