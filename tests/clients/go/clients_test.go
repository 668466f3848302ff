// SPDX-License-Identifier: BSD-2-Clause

// go-redis, and two libraries that stand on it, against the server at port XKV_PORT: what
// programs use them for, with replies as Redis 7.0 gives them.  XKV_CLUSTER says that it emulates a
// cluster.
package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

var address = "127.0.0.1:" + os.Getenv("XKV_PORT")

func options() *redis.Options {
	return &redis.Options{Addr: address, ClientName: "go-clients", PoolSize: 20,
		ContextTimeoutEnabled: true}
}

// connect gives an empty server.
func connect(t *testing.T) *redis.Client {
	t.Helper()
	if os.Getenv("XKV_CLUSTER") != "" {
		t.Skip("for a server without cluster mode")
	}
	r := redis.NewClient(options())
	t.Cleanup(func() { r.Close() })
	must(t, r.FlushAll(ctx).Err())
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%v, not %v", got, want)
	}
}

// gives compares the value of a command that has to succeed.
func gives[T any](t *testing.T, command interface{ Result() (T, error) }, want T) {
	t.Helper()
	got, err := command.Result()
	must(t, err)
	equal(t, got, want)
}

// many compares the list that a command gives, in any order.
func many(t *testing.T, command interface{ Result() ([]string, error) }, want ...string) {
	t.Helper()
	got, err := command.Result()
	must(t, err)
	sort.Strings(got)
	equal(t, strings.Join(got, " "), strings.Join(want, " "))
}

func TestStrings(t *testing.T) {
	r := connect(t)
	gives[string](t, r.Set(ctx, "a", "1", 0), "OK")
	gives[string](t, r.Get(ctx, "a"), "1")
	equal(t, r.Get(ctx, "nothing").Err(), redis.Nil)
	gives[bool](t, r.SetNX(ctx, "a", "2", 0), false)
	gives[bool](t, r.SetNX(ctx, "b", "2", time.Minute), true)
	gives[bool](t, r.SetXX(ctx, "b", "3", redis.KeepTTL), true)
	gives[time.Duration](t, r.TTL(ctx, "b"), time.Minute)
	gives[string](t, r.SetArgs(ctx, "b", "4", redis.SetArgs{Get: true, KeepTTL: true}), "3")
	gives[string](t, r.GetSet(ctx, "a", "5"), "1")
	gives[string](t, r.GetEx(ctx, "a", time.Hour), "5")
	gives[string](t, r.GetDel(ctx, "a"), "5")
	gives[int64](t, r.Incr(ctx, "n"), 1)
	gives[int64](t, r.DecrBy(ctx, "n", 11), -10)
	gives[float64](t, r.IncrByFloat(ctx, "n", 0.5), -9.5)
	gives[int64](t, r.Append(ctx, "s", "hello"), 5)
	gives[int64](t, r.SetRange(ctx, "s", 5, " world"), 11)
	gives[string](t, r.GetRange(ctx, "s", -5, -1), "world")
	gives[int64](t, r.StrLen(ctx, "s"), 11)
	gives[string](t, r.MSet(ctx, "x", 1, "y", 2), "OK")
	gives[bool](t, r.MSetNX(ctx, "y", 1, "z", 2), false)
	values, err := r.MGet(ctx, "x", "none", "y").Result()
	must(t, err)
	equal(t, fmt.Sprint(values), "[1 <nil> 2]")
	gives[int64](t, r.SetBit(ctx, "bits", 7, 1), 0)
	gives[int64](t, r.BitCount(ctx, "bits", nil), 1)
	gives[int64](t, r.BitOpNot(ctx, "not", "bits"), 1)
	gives[int64](t, r.BitPos(ctx, "not", 0), 7)
	fields, err := r.BitField(ctx, "field", "INCRBY", "u8", 0, 255, "GET", "u4", 0).Result()
	must(t, err)
	equal(t, fmt.Sprint(fields), "[255 15]")
	gives[int64](t, r.PFAdd(ctx, "log", "a", "b", "a"), 1)
	gives[int64](t, r.PFCount(ctx, "log"), 2)
	big := strings.Repeat("x", 1<<20)
	gives[string](t, r.Set(ctx, "big", big, 0), "OK")
	gives[string](t, r.Get(ctx, "big"), big)
}

func TestKeys(t *testing.T) {
	r := connect(t)
	for i := 0; i < 1000; i++ {
		must(t, r.Set(ctx, fmt.Sprintf("key:%d", i), i, 0).Err())
	}
	gives[int64](t, r.DBSize(ctx), 1000)
	seen := map[string]bool{}
	for all := r.Scan(ctx, 0, "key:*", 100).Iterator(); all.Next(ctx); {
		seen[all.Val()] = true
	}
	equal(t, len(seen), 1000)
	many(t, r.Keys(ctx, "key:99?"), "key:990", "key:991", "key:992", "key:993", "key:994",
		"key:995", "key:996", "key:997", "key:998", "key:999")
	gives[int64](t, r.Exists(ctx, "key:1", "key:1", "none"), 2)
	gives[string](t, r.Type(ctx, "key:1"), "string")
	gives[string](t, r.Type(ctx, "none"), "none")
	gives[string](t, r.Rename(ctx, "key:1", "renamed"), "OK")
	gives[bool](t, r.RenameNX(ctx, "renamed", "key:2"), false)
	gives[int64](t, r.Copy(ctx, "renamed", "copy", 0, false), 1)
	gives[int64](t, r.Copy(ctx, "renamed", "copy", 3, false), 1)
	gives[bool](t, r.Move(ctx, "renamed", 3), true)
	gives[bool](t, r.Expire(ctx, "copy", time.Hour), true)
	gives[bool](t, r.ExpireNX(ctx, "copy", time.Hour), false)
	gives[bool](t, r.ExpireGT(ctx, "copy", 2*time.Hour), true)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	gives[bool](t, r.ExpireAt(ctx, "copy", at), true)
	gives[time.Duration](t, r.ExpireTime(ctx, "copy"), time.Duration(at.Unix())*time.Second)
	gives[bool](t, r.Persist(ctx, "copy"), true)
	gives[time.Duration](t, r.TTL(ctx, "copy"), -1)
	gives[time.Duration](t, r.PTTL(ctx, "none"), -2)
	dump, err := r.Dump(ctx, "copy").Result()
	must(t, err)
	gives[string](t, r.Restore(ctx, "restored", 0, dump), "OK")
	gives[string](t, r.Get(ctx, "restored"), "1")
	gives[string](t, r.ObjectEncoding(ctx, "restored"), "int")
	gives[int64](t, r.Touch(ctx, "copy", "none"), 1)
	gives[int64](t, r.Unlink(ctx, "copy", "restored", "none"), 2)
	must(t, r.RandomKey(ctx).Err())
	other := options()
	other.DB = 3
	three := redis.NewClient(other)
	defer three.Close()
	gives[int64](t, three.DBSize(ctx), 2)
	gives[string](t, three.FlushDB(ctx), "OK")
	gives[int64](t, r.DBSize(ctx), 999)
}

func TestPipelines(t *testing.T) {
	r := connect(t)
	type send func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error)
	for _, pipelined := range []send{r.Pipelined, r.TxPipelined} {
		must(t, r.FlushDB(ctx).Err())
		replies, err := pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "text", "t", 0)
			p.Incr(ctx, "text")
			p.Get(ctx, "none")
			for i := 0; i < 1000; i++ {
				p.Incr(ctx, "n")
			}
			return nil
		})
		equal(t, len(replies), 1003)
		equal(t, err.Error(), "ERR value is not an integer or out of range")
		equal(t, replies[2].Err(), redis.Nil)
		equal(t, replies[1002].(*redis.IntCmd).Val(), 1000)
	}
}

// Optimistic locking: each of many increments is seen.
func TestWatch(t *testing.T) {
	const adders, each = 8, 25
	r := connect(t)
	var wait sync.WaitGroup
	add := func() error {
		return r.Watch(ctx, func(tx *redis.Tx) error {
			n, err := tx.Get(ctx, "n").Int()
			if err != nil && err != redis.Nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "n", n+1, 0)
				return nil
			})
			return err
		}, "n")
	}
	for i := 0; i < adders; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for done := 0; done < each; {
				err := add()
				if err == nil {
					done++
				} else if err != redis.TxFailedErr {
					t.Error(err)
					return
				}
			}
		}()
	}
	wait.Wait()
	gives[string](t, r.Get(ctx, "n"), fmt.Sprint(adders*each))
}

func TestScripts(t *testing.T) {
	r := connect(t)
	must(t, r.ScriptFlush(ctx).Err())
	script := redis.NewScript(`local n = redis.call('INCRBY', KEYS[1], ARGV[1])
		return {n, redis.call('GET', KEYS[1]), false, redis.status_reply('FINE')}`)
	for i := 1; i <= 2; i++ { // by EVAL the first time, then by EVALSHA
		reply, err := script.Run(ctx, r, []string{"n"}, 5).Slice()
		must(t, err)
		equal(t, fmt.Sprint(reply), fmt.Sprintf("[%d %d <nil> FINE]", 5*i, 5*i))
	}
	exists, err := r.ScriptExists(ctx, script.Hash(), strings.Repeat("0", 40)).Result()
	must(t, err)
	equal(t, fmt.Sprint(exists), "[true false]")
	write := redis.NewScript(`return redis.call('SET', KEYS[1], '')`)
	err = write.RunRO(ctx, r, []string{"n"}).Err()
	if err == nil || !strings.Contains(err.Error(), "Write commands are not allowed") {
		t.Fatal(err)
	}
}

func TestPubSub(t *testing.T) {
	r := connect(t)
	sub := r.PSubscribe(ctx, "new*")
	defer sub.Close()
	must(t, sub.Subscribe(ctx, "exact"))
	for i := 0; i < 2; i++ {
		_, err := sub.Receive(ctx)
		must(t, err)
	}
	gives[int64](t, r.Publish(ctx, "news", "one"), 1)
	gives[int64](t, r.Publish(ctx, "exact", "two"), 1)
	gives[int64](t, r.Publish(ctx, "other", "three"), 0)
	many(t, r.PubSubChannels(ctx, "*"), "exact")
	gives[int64](t, r.PubSubNumPat(ctx), 1)
	for _, want := range []string{"Message<news: one>", "Message<exact: two>"} {
		message, err := sub.ReceiveMessage(ctx)
		must(t, err)
		equal(t, message.String(), want)
	}
	must(t, sub.Ping(ctx, "alive"))
	pong, err := sub.Receive(ctx)
	must(t, err)
	equal(t, pong.(*redis.Pong).Payload, "alive")
}

func TestExpiredEvents(t *testing.T) {
	r := connect(t)
	must(t, r.ConfigSet(ctx, "notify-keyspace-events", "Ex").Err())
	defer r.ConfigSet(ctx, "notify-keyspace-events", "")
	sub := r.Subscribe(ctx, "__keyevent@0__:expired")
	defer sub.Close()
	_, err := sub.Receive(ctx)
	must(t, err)
	must(t, r.Set(ctx, "short", "", 10*time.Millisecond).Err())
	select {
	case message := <-sub.Channel():
		equal(t, message.Payload, "short")
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
}

// Redlock, by redsync: never two at the same time.
func TestRedsync(t *testing.T) {
	r := connect(t)
	locks := redsync.New(goredis.NewPool(r))
	var inside, rounds int32
	var wait sync.WaitGroup
	for i := 0; i < 6; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for n := 0; n < 5; n++ {
				lock := locks.NewMutex("lock", redsync.WithTries(10000),
					redsync.WithRetryDelay(time.Millisecond),
					redsync.WithExpiry(time.Minute))
				if err := lock.Lock(); err != nil {
					t.Error(err)
					return
				}
				if atomic.AddInt32(&inside, 1) != 1 {
					t.Error("two have the lock")
				}
				if ok, err := lock.Extend(); !ok {
					t.Error(err)
				}
				atomic.AddInt32(&rounds, 1)
				atomic.AddInt32(&inside, -1)
				if ok, err := lock.Unlock(); !ok {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
	equal(t, rounds, 30)
	gives[int64](t, r.Exists(ctx, "lock"), 0)
}

// A rate limiter that keeps its state in a string, by a script.
func TestRateLimiter(t *testing.T) {
	limiter := redis_rate.NewLimiter(connect(t))
	allowed := 0
	for i := 0; i < 20; i++ {
		result, err := limiter.Allow(ctx, "user", redis_rate.PerHour(10))
		must(t, err)
		allowed += result.Allowed
	}
	equal(t, allowed, 10)
}

func TestServer(t *testing.T) {
	r := connect(t)
	commands, err := r.Command(ctx).Result()
	must(t, err)
	equal(t, fmt.Sprint(commands["mset"].FirstKeyPos, commands["mset"].StepCount), "1 2")
	info, err := r.Info(ctx, "server").Result()
	must(t, err)
	if !strings.Contains(info, "redis_version:7.") {
		t.Fatal(info)
	}
	now, err := r.Time(ctx).Result()
	must(t, err)
	if d := time.Since(now); d > time.Minute || d < -time.Minute {
		t.Fatal(d)
	}
	list, err := r.ClientList(ctx).Result()
	must(t, err)
	if !strings.Contains(list, "name=go-clients") {
		t.Fatal(list)
	}
	config, err := r.ConfigGet(ctx, "maxmemory-p*").Result()
	must(t, err)
	equal(t, config["maxmemory-policy"], "noeviction")
	must(t, r.SlowLogGet(ctx, 10).Err())
	must(t, r.ClientID(ctx).Err())
	err = r.HSet(ctx, "h", "a", 1).Err()
	if err == nil || !strings.Contains(err.Error(), "xkv holds strings only") {
		t.Fatal(err)
	}
}

// More goroutines than connections, each with its own keys; RESP2 and RESP3, as the pool has them.
func TestManyAtOnce(t *testing.T) {
	r := connect(t)
	var wait sync.WaitGroup
	for i := 0; i < 100; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			for n := 0; n < 50; n++ {
				key, value := fmt.Sprintf("k:%d:%d", i, n%5), fmt.Sprint(i*1000+n)
				if err := r.Set(ctx, key, value, 0).Err(); err != nil {
					t.Error(err)
				}
				if got, err := r.Get(ctx, key).Result(); got != value {
					t.Error(key, got, err)
				}
			}
		}(i)
	}
	wait.Wait()
}

// A deadline that passes ends the command for the client only.
func TestDeadline(t *testing.T) {
	r := connect(t)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	must(t, r.Do(ctx, "CLIENT", "PAUSE", 500).Err())
	if err := r.Get(short, "a").Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	must(t, r.Do(ctx, "PING").Err())
}

func TestCluster(t *testing.T) {
	if os.Getenv("XKV_CLUSTER") == "" {
		t.Skip("for a server that emulates a cluster")
	}
	r := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	defer r.Close()
	must(t, r.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		return node.FlushAll(ctx).Err()
	}))
	replies, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i < 100; i++ {
			p.Set(ctx, fmt.Sprintf("key:%d", i), i, 0)
		}
		return nil
	})
	must(t, err)
	equal(t, len(replies), 100)
	gives[string](t, r.Get(ctx, "key:77"), "77")
	gives[string](t, r.MSet(ctx, "{tag}a", 1, "{tag}b", 2), "OK")
	err = r.MSet(ctx, "a", 1, "b", 2).Err()
	if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT") {
		t.Fatal(err)
	}
	gives[int64](t, r.DBSize(ctx), 102)
	sub := r.SSubscribe(ctx, "shard")
	defer sub.Close()
	_, err = sub.Receive(ctx)
	must(t, err)
	gives[int64](t, r.SPublish(ctx, "shard", "m"), 1)
	message, err := sub.ReceiveMessage(ctx)
	must(t, err)
	equal(t, message.Payload, "m")
}
