// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"math/rand"
	"sync"

	"github.com/anishathalye/porcupine"
)

// log is what a subject (a key, or a group of keys) has a history in, from its first operation to
// its check.
type log struct {
	begun, inFlight, lost int
	retired               bool
	history               []porcupine.Operation
}

func (l *log) own() *log { return l }

type subject interface{ own() *log }

// A lost outcome stays open to the end of the history, and each doubles what the checker may have
// to look at: a subject with so many has had enough.
const lostMax = 6

// book is what the clients work on: a fixed number of places, each with a subject that is replaced
// when its history is long enough to be checked.
type book[S subject] struct {
	mu       sync.Mutex
	places   []S
	create   func(id int64, place int) S
	nextID   int64
	limit    int    // operations of one history
	finished chan S // to be checked
}

func newBook[S subject](count, limit int, create func(id int64, place int) S) *book[S] {
	b := &book[S]{places: make([]S, count), create: create, limit: limit,
		finished: make(chan S, 256)}
	for place := range b.places {
		b.renew(place)
	}
	return b
}

func (b *book[S]) renew(place int) {
	b.nextID++
	b.places[place] = b.create(b.nextID, place)
}

// take chooses a subject and counts an operation on it.
func (b *book[S]) take(rng *rand.Rand) S {
	b.mu.Lock()
	defer b.mu.Unlock()
	place := rng.Intn(len(b.places))
	s := b.places[place]
	l := s.own()
	l.begun++
	l.inFlight++
	if l.begun == b.limit || l.lost >= lostMax {
		l.retired = true
		b.renew(place)
	}
	return s
}

// done puts an operation into its subject's history, and the history to be checked if it was the
// last.  What was refused is not a part of it, nor is a read whose reply was lost.
func (b *book[S]) done(s S, o porcupine.Operation, is outcome, reads bool) {
	l := s.own()
	b.mu.Lock()
	if is != refused && !(is == unknown && reads) {
		l.history = append(l.history, o)
		if is == unknown {
			l.lost++
		}
	}
	l.inFlight--
	last := l.retired && l.inFlight == 0
	b.mu.Unlock()
	if last {
		b.finished <- s
	}
}

// close hands out what is left; no operation may be under way.
func (b *book[S]) close() {
	for _, s := range b.places {
		if len(s.own().history) > 0 {
			b.finished <- s
		}
	}
	close(b.finished)
}
