// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// The UDP front end (docs/protocol.md).  Nothing is sent a second time, except with ONCE: a request
// without a reply has an unknown outcome.  Only what the server says it has not done (PAD) is asked
// again.

const (
	hdrLen    = 16
	opLen     = 24
	payload   = 1472
	replyFlag = 0x01

	flagOnce, flagAtomic = 0x04, 0x08
	sessionLen           = 8 // behind the header, with ONCE

	flagNX, flagXX, flagKeepTTL, flagCAS, flagReturn = 1, 2, 4, 8, 16
	hasValue                                         = 1
)

// status of a result, under the name that docs/protocol.md has for it
const (
	statusOK = iota
	statusMiss
	statusNotStored
	statusTooLarge
	statusPad
	statusNoMemory
	statusBusy
	statusBadRequest
	statusBadOpcode
	statusNotNumber = 12
	statusOverflow  = 13
	statusRepeated  = 14
	statusNoSession = 15
	statusReadOnly  = 16
	statusAborted   = 17

	numberLen = 8 // of what INCR and APPEND return
)

var opcodes = [kinds]byte{opGet: 2, opSet: 3, opDelete: 4, opExpire: 5, opIncr: 6, opAppend: 7,
	opCheck: 12}

type udpDoor struct {
	conn    net.Conn
	timeout time.Duration
	id      uint64
	session uint64
	padTo   int // what the server has asked for so far
	buffer  [65536]byte
}

func dialUDP(address string, timeout time.Duration, id uint64) (*udpDoor, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return nil, err
	}
	return &udpDoor{conn: conn, timeout: timeout, id: id, session: id*0x9e3779b97f4a7c15 | 1}, nil
}

func (d *udpDoor) ready() bool { return true }

func pad8(n int) int { return (n + 7) &^ 7 }

func appendPadded(to []byte, data string) []byte {
	to = append(to, data...)
	return append(to, make([]byte, pad8(len(data))-len(data))...)
}

func appendOp(to []byte, key string, q *request) []byte {
	var op [opLen]byte
	value := q.value

	if q.kind == opIncr {
		value = string(binary.BigEndian.AppendUint64(nil, uint64(q.amount)))
	}
	op[0] = opcodes[q.kind]
	for _, f := range []struct {
		on   bool
		flag byte
	}{{q.nx, flagNX}, {q.xx, flagXX}, {q.keepTTL, flagKeepTTL}, {q.cas, flagCAS}} {
		if f.on {
			op[1] |= f.flag
		}
	}
	if q.old {
		op[1] |= flagReturn
	}
	op[2] = byte(len(key))
	binary.BigEndian.PutUint32(op[4:], uint32(len(value)))
	binary.BigEndian.PutUint64(op[8:], uint64(q.ttl/millisecond))
	binary.BigEndian.PutUint64(op[16:], q.expect)
	return appendPadded(appendPadded(append(to, op[:]...), key), value)
}

// datagram is a request; do() and run() make them.
type datagram struct {
	flags byte
	ops   []*op
}

// encode gives it the next id, as the session needs them: each later than the last.
func (d *udpDoor) encode(g datagram) []byte {
	out := make([]byte, hdrLen, payload)
	d.id += 8
	copy(out, []byte{'X', 'K', 1, g.flags, byte(len(g.ops)), 0})
	binary.BigEndian.PutUint64(out[8:], d.id)
	if g.flags&flagOnce != 0 {
		out = binary.BigEndian.AppendUint64(out, d.session)
	}
	for _, o := range g.ops {
		out = appendOp(out, o.key.name, &o.request)
	}
	binary.BigEndian.PutUint16(out[6:], uint16(len(out)))
	for len(out) < d.padTo {
		out = append(out, 0)
	}
	return out
}

// ask sends a request until it is long enough: others may make a value longer meanwhile.  `begin`
// is called before each, `take` with the reply; it returns the size that the request should have
// had.
func (d *udpDoor) ask(g datagram, begin func(), take func(reply []byte) (int, error)) error {
	for {
		request := d.encode(g)
		begin()
		reply, err := d.exchange(request)
		if err != nil || reply == nil {
			return err
		}
		need, err := take(reply)
		if err != nil || need == 0 {
			return err
		}
		if need > payload || need <= len(request) {
			return fmt.Errorf("a datagram of %d bytes was sent and one of %d is asked for",
				len(request), need)
		}
		d.padTo = need
	}
}

func (d *udpDoor) do(batch []*op) error {
	return d.ask(datagram{ops: batch}, func() { stamp(batch) },
		func(reply []byte) (int, error) { return d.decode(reply, batch, now()) })
}

// exchange sends a datagram, with ONCE some copies of it, and returns the first reply; nil if none
// comes in time.
func (d *udpDoor) exchange(datagram []byte) ([]byte, error) {
	if datagram[3]&flagOnce != 0 {
		for _, wait := range []time.Duration{copyAfter, copyAfter, d.timeout / 4} {
			if reply, err := d.send(datagram, wait); reply != nil || err != nil {
				return reply, err
			}
		}
	}
	return d.send(datagram, d.timeout)
}

// copyAfter is shorter than many requests take, so that copies meet what they are copies of.
const copyAfter = 100 * time.Microsecond

func (d *udpDoor) send(datagram []byte, wait time.Duration) ([]byte, error) {
	end := time.Now().Add(wait)
	if err := d.conn.SetReadDeadline(end); err != nil {
		return nil, err
	}
	// An error may be about an earlier datagram (the port was closed meanwhile): no reason to give up.
	_, _ = d.conn.Write(datagram)
	for time.Now().Before(end) {
		n, err := d.conn.Read(d.buffer[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil
		}
		if err == nil && n >= hdrLen && binary.BigEndian.Uint64(d.buffer[8:]) == d.id {
			return d.buffer[:n], nil
		}
	}
	return nil, nil
}

// decode puts the results of a reply into the batch; operations behind the last were not done.  It
// returns the size that the datagram should have had, 0 if it was right.
func (d *udpDoor) decode(data []byte, batch []*op, at int64) (int, error) {
	length, count := int(binary.BigEndian.Uint16(data[6:])), int(data[4])
	if data[0] != 'X' || data[1] != 'K' || data[2] != 1 || data[3] != replyFlag || data[5] != 0 ||
		count < 1 || count > len(batch) || length > len(data) {
		return 0, fmt.Errorf("bad header of a reply: % x", data[:hdrLen])
	}
	offset, need := hdrLen, 0
	for i, o := range batch {
		o.ret = at
		if i >= count {
			o.outcome = refused
			continue
		}
		used, pad, err := o.decodeResult(data[offset:length])
		if err != nil {
			return 0, err
		}
		if pad > 0 && i > 0 {
			return 0, errors.New("PAD is not the first result")
		}
		offset, need = offset+used, need+pad
	}
	if offset != length {
		return 0, fmt.Errorf("results end at %d, length says %d", offset, length)
	}
	return need, nil
}

// decodeResult reads the result at the start of data; it returns its length and the size that PAD asks for.
func (o *op) decodeResult(data []byte) (used, pad int, err error) {
	if len(data) < opLen || data[0] != opcodes[o.kind] {
		return 0, 0, fmt.Errorf("bad result for %s: %.60x", kindNames[o.kind], data)
	}
	used = opLen
	valueLen := int(binary.BigEndian.Uint32(data[4:]))
	value := ""
	if data[2]&hasValue != 0 {
		if valueLen > len(data)-opLen || pad8(valueLen) > len(data)-opLen {
			return 0, 0, fmt.Errorf("a value of %d bytes in a result of %d", valueLen, len(data))
		}
		value = string(data[opLen : opLen+valueLen])
		used += pad8(valueLen)
	}
	switch status := data[1]; status {
	case statusOK, statusMiss, statusNotStored:
		o.outcome = []outcome{done, miss, notStored}[status]
		o.version = binary.BigEndian.Uint64(data[16:])
		o.left = int64(binary.BigEndian.Uint64(data[8:])) * millisecond
		o.tellsMeta = true
	case statusTooLarge:
		o.outcome, o.valueLen = tooLarge, valueLen
	case statusPad:
		o.outcome, pad = refused, valueLen
	case statusNoMemory, statusBusy, statusReadOnly:
		o.outcome = refused
	case statusNotNumber:
		o.outcome = notNumber
	case statusOverflow:
		o.outcome = overflow
	default:
		return 0, 0, fmt.Errorf("status %d for %s", status, kindNames[o.kind])
	}
	return used, pad, o.takeValue(value, data[2]&hasValue != 0)
}

// takeValue stores the value of a result under what it means for this operation.
func (o *op) takeValue(value string, has bool) error {
	switch {
	case o.kind == opIncr || o.kind == opAppend:
		if has != (o.outcome == done) || has && len(value) != 8 {
			return fmt.Errorf("%s without a number", kindNames[o.kind])
		}
		if has {
			o.number = int64(binary.BigEndian.Uint64([]byte(value)))
		}
	case o.tells():
		o.tellsOld, o.existed, o.was = true, has, value
	case has:
		return fmt.Errorf("%s with a value that nobody asked for", kindNames[o.kind])
	}
	return nil
}

// tells says whether the result, as it came out, shows what was there before.
func (o *op) tells() bool {
	switch o.outcome {
	case done, miss:
		return o.kind == opGet || o.old
	case notStored:
		return o.kind == opSet && o.old
	}
	return false
}

// knows asks whether the server has an opcode at all.
func (d *udpDoor) knows(k kind) (bool, error) {
	o := &op{key: &key{name: "linear:probe"}, request: request{kind: k, amount: 1, value: "x"}}
	for i := 0; i < 10; i++ {
		reply, err := d.exchange(d.encode(datagram{ops: []*op{o}}))
		if err != nil {
			return false, err
		}
		if len(reply) >= hdrLen+opLen {
			return reply[hdrLen+1] != statusBadOpcode, nil
		}
	}
	return false, errors.New("no answer over UDP")
}
