// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// The RESP front end.  A connection that breaks leaves the outcomes of what was sent on it unknown.

const respTimeout = 5 * time.Second // far more than any command takes: xkvd hangs or is gone

type respDoor struct {
	address string
	raw     bool // with CLIENT TRACKING, so xkvd in front of a Redis passes it through as it is
	conn    net.Conn
	in      *bufio.Reader
}

// ready connects if need be.
func (d *respDoor) ready() bool {
	if d.conn != nil {
		return true
	}
	conn, err := net.DialTimeout("tcp", d.address, respTimeout)
	if err != nil {
		return false
	}
	d.conn, d.in = conn, bufio.NewReader(conn)
	if d.raw {
		return d.becomeRaw()
	}
	return true
}

func (d *respDoor) becomeRaw() bool {
	for _, words := range [][]string{{"HELLO", "3"}, {"CLIENT", "TRACKING", "ON"}} {
		if a, err := d.call(words...); err != nil || a.kind == '-' {
			d.drop()
			return false
		}
	}
	return true
}

func (d *respDoor) drop() {
	d.conn.Close()
	d.conn = nil
}

func appendCommand(to []byte, words ...string) []byte {
	to = append(to, fmt.Sprintf("*%d\r\n", len(words))...)
	for _, w := range words {
		to = append(to, fmt.Sprintf("$%d\r\n", len(w))...)
		to = append(append(to, w...), '\r', '\n')
	}
	return to
}

func command(key string, q *request) []string {
	switch q.kind {
	case opGet:
		return []string{"GET", key}
	case opDelete:
		if q.old {
			return []string{"GETDEL", key}
		}
		return []string{"DEL", key}
	case opIncr:
		return []string{"INCRBY", key, strconv.FormatInt(q.amount, 10)}
	case opAppend:
		return []string{"APPEND", key, q.value}
	case opExpire:
		return []string{"PEXPIRE", key, strconv.FormatInt(q.ttl/millisecond, 10)}
	case opPersist:
		return []string{"PERSIST", key}
	}
	words := []string{"SET", key, q.value}
	for _, option := range []struct {
		on   bool
		word string
	}{{q.nx, "NX"}, {q.xx, "XX"}, {q.keepTTL, "KEEPTTL"}, {q.old, "GET"}} {
		if option.on {
			words = append(words, option.word)
		}
	}
	if q.ttl > 0 {
		words = append(words, "PX", strconv.FormatInt(q.ttl/millisecond, 10))
	}
	return words
}

// answer is one reply: an error, a number, a text or a list that may be nil.
type answer struct {
	kind   byte // as on the wire
	text   string
	isNil  bool
	number int64
	list   []answer
}

func (d *respDoor) read() (a answer, err error) {
	for a, err = d.readAny(); err == nil && a.kind == '>'; a, err = d.readAny() {
	}
	return a, err
}

// readAny reads a reply or, in RESP3, a push message.
func (d *respDoor) readAny() (a answer, err error) {
	line, err := d.in.ReadString('\n')
	if err != nil {
		return a, err
	}
	if len(line) < 3 || !strings.HasSuffix(line, "\r\n") {
		return a, fmt.Errorf("bad RESP line %q", line)
	}
	a.kind, a.text = line[0], line[1:len(line)-2]
	switch a.kind {
	case '+', '-':
		return a, nil
	case '_':
		a.isNil, a.text = true, ""
		return a, nil
	case ':':
		a.number, err = strconv.ParseInt(a.text, 10, 64)
		return a, err
	case '$':
		length, err := strconv.Atoi(a.text)
		if err != nil || length < 0 {
			a.isNil, a.text = true, ""
			return a, err
		}
		text := make([]byte, length+2)
		_, err = io.ReadFull(d.in, text)
		a.text = string(text[:length])
		return a, err
	case '*', '>', '%':
		count, err := strconv.Atoi(a.text)
		a.isNil = count < 0
		if a.kind == '%' {
			count *= 2
		}
		for i := 0; i < count && err == nil; i++ {
			var one answer
			one, err = d.read()
			a.list = append(a.list, one)
		}
		return a, err
	}
	return a, fmt.Errorf("bad RESP line %q", line)
}

func (d *respDoor) do(batch []*op) error {
	var out []byte
	for _, o := range batch {
		for _, words := range commands(o.key.name, &o.request) {
			out = appendCommand(out, words...)
		}
	}
	stamp(batch)
	d.conn.SetDeadline(time.Now().Add(respTimeout))
	if _, err := d.conn.Write(out); err != nil {
		d.drop()
		return nil
	}
	for _, o := range batch {
		a, err := d.readReply(o)
		if err != nil {
			d.drop()
			return nil
		}
		o.ret = now()
		if err := o.take(a); err != nil {
			return err
		}
	}
	return nil
}

// take translates an answer into what it says about the key.
func (o *op) take(a answer) error {
	if a.kind == '-' {
		return o.takeError(a.text)
	}
	switch o.kind {
	case opGet:
		o.outcome = either(!a.isNil, done, miss)
		o.tellsOld, o.existed, o.was = true, !a.isNil, a.text
	case opDelete:
		if o.old {
			o.outcome = either(!a.isNil, done, miss)
			o.tellsOld, o.existed, o.was = true, !a.isNil, a.text
		} else {
			o.outcome = either(a.number == 1, done, miss)
		}
	case opSet:
		o.takeSet(a)
	case opIncr, opAppend:
		o.outcome, o.number = done, a.number
	case opExpire:
		o.outcome = either(a.number == 1, done, miss)
	case opPersist:
		o.outcome = either(a.number == 1, done, notStored)
	}
	return nil
}

func (o *op) takeSet(a answer) {
	if !o.old {
		o.outcome = either(!a.isNil, done, notStored)
		return
	}
	// The reply is the old value; whether the condition held follows from whether there was one.
	o.tellsOld, o.existed, o.was = true, !a.isNil, a.text
	o.outcome = either(o.nx && o.existed || o.xx && !o.existed, notStored, done)
}

func (o *op) takeError(text string) error {
	switch {
	case strings.HasPrefix(text, "ERR value is not an integer"):
		o.outcome = notNumber
	case strings.HasPrefix(text, "ERR increment or decrement would overflow"):
		o.outcome = overflow
	case strings.HasPrefix(text, "OOM "), strings.HasPrefix(text, "BUSY "),
		strings.HasPrefix(text, "LOADING "), strings.HasPrefix(text, "TRYAGAIN "),
		strings.HasPrefix(text, "CLUSTERDOWN "), strings.HasPrefix(text, "READONLY "):
		o.outcome = refused
	case strings.HasPrefix(text, noUpstream):
		o.outcome = refused
	case strings.HasPrefix(text, lostUpstream):
		o.reply = reply{ret: never}
	default:
		return fmt.Errorf("RESP %s: -%s", kindNames[o.kind], text)
	}
	return nil
}

func either[T any](condition bool, yes, no T) T {
	if condition {
		return yes
	}
	return no
}

// call sends one command that is not a part of the test.
func (d *respDoor) call(words ...string) (answer, error) {
	if !d.ready() {
		return answer{}, errors.New("cannot connect to " + d.address)
	}
	d.conn.SetDeadline(time.Now().Add(respTimeout))
	if _, err := d.conn.Write(appendCommand(nil, words...)); err != nil {
		return answer{}, err
	}
	return d.read()
}

// knows asks whether the server has a command at all.
func (d *respDoor) knows(k kind) (bool, error) {
	a, err := d.call(command("linear:probe", &request{kind: k, amount: 1, value: "x"})...)
	return !strings.HasPrefix(a.text, "ERR unknown command"), err
}
