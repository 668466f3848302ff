// SPDX-License-Identifier: BSD-2-Clause

// linear proves the store linearizable, key by key: clients of both front ends work on few keys at
// once, all they ask and are told is recorded with its times, and Porcupine looks for an order of
// each key's operations that explains it.  With -transactions it proves it strictly serializable:
// histories are of groups of keys, and of transactions.  tests/formal/test_linear.py runs it, and
// kills xkvd meanwhile.
//
// Exit status: 0 all is well, 1 something is not, 2 it could not be found out.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

type options struct {
	server, reports            string
	port, clients, respClients int
	keys, operations           int
	neighbours                 int
	skewed, large              int
	seconds, patience          float64
	leastUDP, leastRESP        int64
	seed                       int64
	timeout, checkTimeout      time.Duration
	evictions, transactions    bool
	front, cluster             bool
	raw                        int
	relay, behind              string
}

func parseOptions() options {
	var o options
	flag.StringVar(&o.server, "server", "10.77.0.1", "address of xkvd")
	flag.IntVar(&o.port, "port", 6379, "its port")
	flag.Float64Var(&o.seconds, "seconds", 10, "how long the clients work")
	flag.Int64Var(&o.leastUDP, "least-udp", 0, "they work on until so many operations were answered over UDP, ...")
	flag.Int64Var(&o.leastRESP, "least-resp", 0, "... and so many over RESP, ...")
	flag.Float64Var(&o.patience, "patience", 60, "... but no longer than these seconds more")
	flag.IntVar(&o.clients, "clients", 8, "clients over UDP")
	flag.IntVar(&o.respClients, "resp-clients", 4, "clients over RESP")
	flag.IntVar(&o.keys, "keys", 8, "keys at a time")
	flag.IntVar(&o.operations, "operations", 200, "operations on a key, then it is checked and another takes its place")
	flag.IntVar(&o.neighbours, "neighbours", 3000, "keys that come and go around them, for each of three churners")
	flag.Int64Var(&o.seed, "seed", time.Now().UnixNano(), "of all chance")
	flag.DurationVar(&o.timeout, "timeout", 250*time.Millisecond, "wait for a reply over UDP")
	flag.DurationVar(&o.checkTimeout, "check-timeout", 20*time.Second, "of the judgement of one key")
	flag.BoolVar(&o.evictions, "evictions", false, "the server may drop keys at any time")
	flag.BoolVar(&o.front, "front", false, "the server is in front of a Redis")
	flag.BoolVar(&o.cluster, "cluster", false, "... of a cluster, whose slots move")
	flag.IntVar(&o.raw, "raw", 0, "so many of the clients over RESP are passed through as they are")
	flag.StringVar(&o.relay, "relay", "", "pass on what comes to this socket, late")
	flag.StringVar(&o.behind, "behind", "", "the socket of the Redis")
	flag.BoolVar(&o.transactions, "transactions", false, "transactions, on so many -keys groups")
	flag.IntVar(&o.skewed, "skewed", 10, "percent of ATOMIC: aim at write skew")
	flag.IntVar(&o.large, "large", 10, "percent of those with other keys, too: thousands")
	flag.StringVar(&o.reports, "reports", ".", "directory for pictures of what is wrong")
	flag.Parse()
	if flag.NArg() > 0 || o.keys < 1 || o.clients+o.respClients < 1 || o.operations < 1 {
		flag.Usage()
		os.Exit(2)
	}
	return o
}

var start = time.Now()

// now is the time of all histories: nanoseconds of the monotonic clock.
func now() int64 { return int64(time.Since(start)) }

// wallDrift is how far the wall clock, which the server's expiry follows, has moved against it.
func wallDrift() time.Duration {
	t := time.Now()
	return t.Round(0).Sub(start.Round(0)) - t.Sub(start)
}

// pause is for what cannot be waited for in another way: xkvd is not there.
func pause() { time.Sleep(5 * time.Millisecond) }

type frontend interface {
	ready() bool          // false: cannot connect just now
	do(batch []*op) error // an error is a server that breaks the protocol
	run(t *txn) error     // likewise
}

// stamp marks operations as begun now, with no outcome yet.
func stamp(batch []*op) {
	at := now()
	for _, o := range batch {
		o.call = at
		o.reply = reply{ret: never}
	}
}

// run is one run of the test.
type run struct {
	options
	keys    *book[*key]
	groups  *book[*group]
	over    atomic.Bool
	churned atomic.Int64
	refused atomic.Int64
	largest atomic.Int64 // transactions with thousands of keys that were done
	udp     atomic.Int64 // operations that were answered
	resp    atomic.Int64
	errors  chan error
	workers sync.WaitGroup
}

func (r *run) dialUDP(client int, timeout time.Duration) (*udpDoor, error) {
	return dialUDP(fmt.Sprintf("%s:%d", r.server, r.port), timeout, uint64(r.seed)+uint64(client)<<32)
}

func (r *run) dialRESP() *respDoor {
	return &respDoor{address: fmt.Sprintf("%s:%d", r.server, r.port)}
}

// client works on the keys until the time is over.
func (r *run) client(number int, d frontend, g *generator) {
	answered := &r.udp
	if g.resp {
		answered = &r.resp
	}
	for !r.over.Load() {
		if !d.ready() {
			pause()
			continue
		}
		note := func(is outcome) {
			if is == refused {
				r.refused.Add(1)
			} else if is != unknown {
				answered.Add(1)
			}
		}
		turn := r.batch
		if r.transactions {
			turn = r.transaction
		}
		if err := turn(number, d, g, note); err != nil {
			select {
			case r.errors <- fmt.Errorf("client %d: %w", number, err):
			default:
			}
			r.over.Store(true)
		}
	}
}

// batch has a client ask for some operations on single keys.
func (r *run) batch(number int, d frontend, g *generator, note func(outcome)) error {
	batch := g.batch(r.keys)
	err := d.do(batch)
	for _, o := range batch {
		if r.front { // versions are the cache's, and it rounds what is left down
			o.tellsMeta, o.version = false, 0
		}
		note(o.outcome)
		r.keys.done(o.key, o.entry(number), o.outcome, o.kind == opGet)
		o.key.tell(o.version)
	}
	return err
}

// transaction has it ask for one.
func (r *run) transaction(number int, d frontend, g *generator, note func(outcome)) error {
	group := r.groups.take(g.rng)
	t := g.txn(group)
	err := d.run(t)
	note(t.outcome)
	if t.fillers >= largeFillers && t.outcome == done {
		r.largest.Add(1)
	}
	for _, p := range t.parts {
		p.key.tell(p.version)
	}
	r.groups.done(group, t.entry(number), t.outcome, t.reads())
	return err
}

func (r *run) spawn(f func()) {
	r.workers.Add(1)
	go func() {
		defer r.workers.Done()
		f()
	}()
}

// known finds out which operations the server has; both front ends need not be of one age.
func (r *run) known() (udp, resp [kinds]bool, err error) {
	u, err := r.dialUDP(-1, r.timeout)
	if err != nil {
		return udp, resp, err
	}
	c := r.dialRESP()
	for k := kind(0); k < opCheck; k++ {
		if k != opPersist { // over UDP an EXPIRE
			if udp[k], err = u.knows(k); err != nil {
				return udp, resp, err
			}
		}
		if resp[k], err = c.knows(k); err != nil {
			return udp, resp, err
		}
		if !resp[k] {
			fmt.Fprintf(os.Stderr, "%s is not known over RESP, left out\n", kindNames[k])
		}
		if !udp[k] && k != opPersist {
			fmt.Fprintf(os.Stderr, "%s is not known over UDP, left out\n", kindNames[k])
		}
	}
	return udp, resp, nil
}

// begin starts clients and churners.
func (r *run) begin() error {
	udp, resp, err := r.known()
	if err != nil {
		return err
	}
	chance := func(n int) *rand.Rand { return rand.New(rand.NewSource(r.seed + int64(n))) }
	for i := 0; i < r.clients+r.respClients; i++ {
		i := i
		if i >= r.clients {
			r.spawn(func() {
				d := r.dialRESP()
				d.raw = i < r.clients+r.raw
				r.client(i, d, &generator{rng: chance(i), resp: true,
					front: r.front, cluster: r.cluster,
					large: r.large, knows: resp})
			})
			continue
		}
		d, err := r.dialUDP(i, r.timeout)
		if err != nil {
			return err
		}
		g := &generator{rng: chance(i), front: r.front, skewed: r.skewed, knows: udp}
		r.spawn(func() { r.client(i, d, g) })
	}
	return r.beginChurn(chance)
}

func (r *run) beginChurn(chance func(int) *rand.Rand) error {
	for i := 0; i < 3 && r.neighbours > 0; i++ {
		c := &churn{rng: chance(1000 + i), neighbours: r.neighbours, prefix: fmt.Sprintf("n:%x:%d", r.seed, i),
			over: &r.over, ops: &r.churned}
		if i == 0 {
			c.frontend, c.atOnce, c.sizes = r.dialRESP(), 16, []int{30, 200, 1300, 20000}
		} else {
			d, err := r.dialUDP(1000+i, 50*time.Millisecond)
			if err != nil {
				return err
			}
			c.frontend, c.atOnce, c.sizes = d, 1, []int{16, 100, 250, 700, 1300}
		}
		r.spawn(c.run)
	}
	return nil
}

// ends tells whether the clients have worked long enough, which takes longer on a busy machine.
func (r *run) ends(seconds float64) bool {
	if r.udp.Load() < r.leastUDP || r.resp.Load() < r.leastRESP {
		return seconds > r.seconds+r.patience
	}
	return seconds > r.seconds
}

// finish waits for the time to be over, and for the last operations.
func (r *run) finish() {
	for begin := time.Now(); !r.over.Load() && !r.ends(time.Since(begin).Seconds()); {
		time.Sleep(20 * time.Millisecond)
	}
	r.over.Store(true)
	fmt.Fprintln(os.Stderr, "clients have worked")
	r.workers.Wait()
	if r.transactions {
		r.groups.close()
	} else {
		r.keys.close()
	}
}

func (r *run) result(c *checker) map[string]interface{} {
	kinds, outcomes := make(map[string]int), make(map[string]int)
	for k, n := range c.kinds {
		kinds[kindNames[k]] = n
	}
	for h, n := range c.hows {
		kinds[howNames[h]] += n
	}
	for o, n := range c.outcomes {
		outcomes[outcomeNames[o]] = n
	}
	return map[string]interface{}{
		"seed": r.seed, "keys": c.keys, "operations": c.operations, "concurrent": c.concurrent,
		"lost": c.outcomes[unknown], "outcomes": outcomes, "frontends": c.frontends,
		"refused": r.refused.Load(), "neighbours": r.churned.Load(), "kinds": kinds, "illegal": c.illegal,
		"large":     r.largest.Load(),
		"undecided": c.undecided, "longest_check_ms": c.longest.Milliseconds(),
	}
}

func main() {
	r := &run{options: parseOptions(), errors: make(chan error, 1)}
	if r.relay != "" {
		fmt.Fprintln(os.Stderr, "linear:", relay(r.relay, r.behind, r.seed))
		os.Exit(2)
	}
	os.Exit(r.main())
}

func (r *run) main() int {
	if r.transactions {
		r.groups = newBook(r.options.keys, r.operations, func(id int64, _ int) *group {
			return newGroup(id, fmt.Sprintf("t:%x", r.seed))
		})
	} else {
		r.keys = newBook(r.options.keys, r.operations, func(id int64, place int) *key {
			return newKey(id, place, fmt.Sprintf("l:%x", r.seed))
		})
	}
	c := &checker{evictions: r.evictions, timeout: r.checkTimeout, reports: r.reports, out: os.Stderr,
		frontends: make(map[string]int)}
	if err := r.begin(); err != nil {
		fmt.Fprintln(os.Stderr, "linear:", err)
		return 2
	}
	fmt.Fprintf(os.Stderr, "clients work, seed %d\n", r.seed)
	go r.finish()
	r.judge(c)
	json.NewEncoder(os.Stdout).Encode(r.result(c))
	return r.status(c)
}

// judge has every history checked that is finished, until there are no more.
func (r *run) judge(c *checker) {
	enough := func() {
		if c.illegal >= reportsMax {
			r.over.Store(true)
		}
	}
	if r.transactions {
		for g := range r.groups.finished {
			c.checkGroup(g)
			enough()
		}
		return
	}
	for k := range r.keys.finished {
		c.check(k)
		enough()
	}
}

func (r *run) status(c *checker) int {
	drift := wallDrift()
	select {
	case err := <-r.errors:
		fmt.Fprintln(os.Stderr, "linear:", err)
		return 1
	default:
	}
	switch {
	case drift > time.Duration(slack)/2 || drift < -time.Duration(slack)/2:
		fmt.Fprintf(os.Stderr, "linear: the wall clock moved by %v, so expiry cannot be judged\n", drift)
		return 2
	case c.illegal > 0:
		return 1
	case c.undecided > 0:
		return 2
	}
	return 0
}
