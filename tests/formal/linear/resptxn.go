// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Transactions over RESP.  Whatever breaks the connection leaves the outcome unknown, unless
// nothing that changes something was sent yet.

// script runs the commands in ARGV, each behind the number of its words.
const script = `local out, at = {}, 1
while at <= #ARGV do
	local words = {}
	for i = 1, tonumber(ARGV[at]) do words[i] = ARGV[at + i] end
	at = at + #words + 1
	out[#out + 1] = redis.pcall(unpack(words))
end
return out`

const exact = 1 << 53 // numbers of Lua are exact up to here

// run does a transaction; an error is a server that breaks the protocol.
func (d *respDoor) run(t *txn) error {
	t.stamp()
	d.conn.SetDeadline(time.Now().Add(respTimeout))
	switch t.how {
	case asExec:
		return d.exec(t, t.parts)
	case asWatch:
		return d.watch(t)
	case asScript:
		return d.script(t)
	}
	return d.command(t)
}

// exchange sends commands, all at once, and returns the answers; false: the connection is gone.
func (d *respDoor) exchange(commands ...[]string) ([]answer, bool) {
	var out []byte

	for _, words := range commands {
		out = append(out, appendCommand(nil, words...)...)
	}
	answers := make([]answer, len(commands))
	_, err := d.conn.Write(out)
	for i := range answers {
		if err == nil {
			answers[i], err = d.read()
		}
	}
	if err != nil {
		d.drop()
	}
	return answers, err == nil
}

func words(p *part) []string { return command(p.key.name, &p.request) }

func names(t *txn) []string {
	var all []string
	seen := make(map[string]bool)
	for _, p := range t.parts {
		if !seen[p.key.name] {
			all = append(all, p.key.name)
		}
		seen[p.key.name] = true
	}
	return all
}

// filler is a key that nobody judges.
func filler(number int) string { return "lf:" + strconv.Itoa(number) }

// fill is a command that makes a transaction take longer; one that only reads stays so.
func fill(keys int, reads bool) []string {
	words := []string{either(reads, "MGET", "MSET")}
	for i := 0; i < keys; i++ {
		words = append(words, filler(i))
		if !reads {
			words = append(words, "f")
		}
	}
	return words
}

// exec sends MULTI, the parts and EXEC.
func (d *respDoor) exec(t *txn, parts []*part) error {
	commands, behind := [][]string{{"MULTI"}}, either(t.reads(), 1, 0)
	for i, p := range parts {
		if t.fillers > 0 && i == behind {
			commands = append(commands, fill(t.fillers, t.reads()))
		}
		commands = append(commands, words(p))
	}
	answers, ok := d.exchange(append(commands, []string{"EXEC"})...)
	if !ok {
		return nil
	}
	list := answers[len(answers)-1]
	if t.fillers > 0 && len(list.list) > behind {
		list.list = append(list.list[:behind], list.list[behind+1:]...)
	}
	return t.takeList(list, parts)
}

// takeList translates the answer of all parts.
func (t *txn) takeList(a answer, parts []*part) error {
	switch {
	case a.kind == '*' && a.isNil: // a key that was watched has changed
		t.finish(refused)
	case a.kind == '-':
		return t.takeError(a.text)
	case a.kind != '*' || len(a.list) != len(parts):
		return fmt.Errorf("%s of %d parts: %+v", t.how, len(parts), a)
	default:
		t.finish(done)
		for i, p := range parts {
			if err := p.take(a.list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *txn) takeError(text string) error {
	t.finish(refused)
	for _, reason := range []string{"OOM ", "BUSY ", "LOADING ", "EXECABORT "} {
		if strings.HasPrefix(text, reason) {
			return nil
		}
	}
	return fmt.Errorf("RESP %s: -%s", t.how, text)
}

// watch reads keys that are watched, and then changes some: at one moment, that of EXEC.
func (d *respDoor) watch(t *txn) error {
	var gets int

	commands := [][]string{append([]string{"WATCH"}, names(t)...)}
	for ; gets < len(t.parts) && t.parts[gets].kind == opGet; gets++ {
		commands = append(commands, words(t.parts[gets]))
	}
	answers, ok := d.exchange(commands...)
	if !ok {
		t.finish(refused)
		return nil
	}
	for i, p := range t.parts[:gets] {
		if err := p.take(answers[i+1]); err != nil {
			return err
		}
		if p.outcome == refused {
			d.drop() // it watches
			t.finish(refused)
			return nil
		}
	}
	t.restamp()
	return d.exec(t, t.parts[gets:])
}

func (d *respDoor) script(t *txn) error {
	keys := names(t)
	argv := append([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys...)
	for _, p := range t.parts {
		one := words(p)
		argv = append(append(argv, strconv.Itoa(len(one))), one...)
	}
	answers, ok := d.exchange(argv)
	if !ok {
		return nil
	}
	err := t.takeList(answers[0], t.parts)
	for _, p := range t.parts {
		if p.number > exact || p.number < -exact {
			p.outcome = unknown
		}
	}
	return err
}

// command sends one command about all the keys, or a single operation.
func (d *respDoor) command(t *txn) error {
	argv := words(t.parts[0])
	if t.how != asSingle {
		argv = []string{t.how.String()}
		for _, p := range t.parts {
			argv = append(argv, p.key.name)
			if p.kind == opSet {
				argv = append(argv, p.value)
			}
		}
	}
	answers, ok := d.exchange(argv)
	if !ok {
		return nil
	}
	return t.takeCommand(answers[0])
}

func (t *txn) takeCommand(a answer) error {
	switch {
	case t.how == asSingle:
		t.finish(done)
		err := t.parts[0].take(a)
		t.outcome = either(t.parts[0].outcome == refused, refused, done)
		return err
	case t.how == asRename && strings.HasPrefix(a.text, "ERR no such key"):
		t.finish(miss)
	case a.kind == '-':
		return t.takeError(a.text)
	case t.how == asMGet:
		return t.takeList(a, t.parts)
	case t.how == asMSetNX && a.number == 0:
		t.finish(notStored)
	case t.how == asDel:
		t.finish(done)
		t.existed = int(a.number) // each part is unknown
	default:
		t.finish(done)
		for _, p := range t.parts {
			p.outcome = done
		}
	}
	return nil
}
