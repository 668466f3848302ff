// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math/rand"
	"net"
	"os"
	"time"
)

// A relay between xkvd and the Redis behind it, on Unix sockets.  What one connection says keeps
// its order, but is late now and then, for itself: so what is said on several comes in any order.

const lateMax = 3 * time.Millisecond

func relay(at, behind string, seed int64) error {
	listener, err := net.Listen("unix", at)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "listens")
	for {
		down, err := listener.Accept()
		if err != nil {
			return err
		}
		up, err := net.Dial("unix", behind)
		if err != nil {
			down.Close()
			continue
		}
		seed += 2
		go pump(down, up, rand.New(rand.NewSource(seed)))
		go pump(up, down, rand.New(rand.NewSource(seed+1)))
	}
}

func pump(from, to net.Conn, rng *rand.Rand) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if rng.Intn(3) == 0 {
			time.Sleep(time.Duration(rng.Int63n(int64(lateMax))))
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
