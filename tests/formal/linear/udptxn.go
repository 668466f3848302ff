// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
)

// Transactions over UDP: ATOMIC datagrams, and single operations.

func (d *udpDoor) run(t *txn) error {
	t.stamp()
	if t.how == asAtomic {
		return d.atomic(t)
	}
	o := &t.parts[0].op
	err := d.do([]*op{o})
	t.call = o.call // a datagram that has to be longer is asked again
	if o.outcome != unknown {
		is := o.reply
		t.finish(either(is.outcome == refused, refused, done))
		t.ret, o.reply = is.ret, is
	}
	return err
}

func (d *udpDoor) atomic(t *txn) error {
	g := datagram{flags: flagAtomic, ops: t.operations()}
	if t.once {
		g.flags |= flagOnce
	}
	return d.ask(g, t.stamp, func(reply []byte) (int, error) {
		return d.takeAtomic(t, g.ops, reply)
	})
}

// operations are those of the parts, and GETs of fillers behind the first of them, as many as fit.
func (t *txn) operations() []*op {
	ops := []*op{&t.parts[0].op}
	room := payload - hdrLen - sessionLen - t.parts[0].size()

	for _, p := range t.parts[1:] {
		room -= p.size()
	}
	for i := 0; i < t.fillers; i++ {
		o := &op{key: &key{name: filler(i)}, request: request{kind: opGet}}
		if room -= o.size(); room < 0 {
			break
		}
		ops = append(ops, o)
	}
	for _, p := range t.parts[1:] {
		ops = append(ops, &p.op)
	}
	return ops
}

// size is what the operation takes of a datagram.
func (o *op) size() int { return len(appendOp(nil, o.key.name, &o.request)) }

// takeAtomic translates the reply of all operations; it returns the size that the datagram should
// have had, 0 if it was right.
func (d *udpDoor) takeAtomic(t *txn, ops []*op, reply []byte) (int, error) {
	switch status, count := reply[5], int(reply[4]); {
	case status == statusRepeated: // done, but what the operations found is lost
		t.finish(done)
	case status == statusNoSession: // which a copy of it may have
	case status == statusAborted:
		return d.takeAborted(t, ops, reply)
	case status != 0 || count != len(ops):
		return 0, fmt.Errorf("ATOMIC of %d: status %d, %d results", len(ops), status, count)
	default:
		t.finish(done)
		_, err := d.decode(reply, ops, t.ret)
		for _, p := range t.parts {
			if err == nil && p.outcome != done && (p.outcome != miss || p.cas) {
				err = errors.New("ATOMIC was done in part: " + t.describe(p.key.id))
			}
		}
		return 0, err
	}
	return 0, nil
}

// takeAborted takes the one result: that of an operation that could not be done.
func (d *udpDoor) takeAborted(t *txn, ops []*op, reply []byte) (int, error) {
	index := int(reply[hdrLen+3])
	if reply[4] != 1 || index >= len(ops) {
		return 0, fmt.Errorf("ATOMIC was aborted by operation %d of %d", index, len(ops))
	}
	reply[5] = 0
	t.finish(refused)
	o := ops[index]
	need, err := d.decode(reply, []*op{o}, t.ret)
	if err != nil || o.outcome == refused {
		return need, err
	}
	o.tellsOld = false // nothing is returned of what there was
	for i, p := range t.parts {
		if &p.op == o {
			t.outcome, t.failed = notStored, i
		}
	}
	if o.existed || o.outcome == done || o.outcome == miss && !o.cas {
		return 0, fmt.Errorf("ATOMIC was aborted by what is done: %s", t.describe(o.key.id))
	}
	return need, nil
}
