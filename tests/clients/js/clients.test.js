// SPDX-License-Identifier: BSD-2-Clause

// ioredis, node-redis, and libraries that stand on them, against the server at port XKV_PORT: what
// programs use them for, with replies as Redis 7.0 gives them.  XKV_CLUSTER says that it emulates a
// cluster.
"use strict";

const assert = require("node:assert/strict");
const { after, before, describe, test } = require("node:test");
const Redis = require("ioredis");
const nodeRedis = require("redis");
const { default: Redlock } = require("redlock");
const { RateLimiterRedis } = require("rate-limiter-flexible");

const port = Number(process.env.XKV_PORT);
const cluster = Boolean(process.env.XKV_CLUSTER);
const alone = { skip: cluster && "for a server without cluster mode" };

describe("ioredis", alone, () => {
  let r;
  before(async () => {
    r = new Redis({ port, connectionName: "ioredis-test" });
    await r.flushall();
  });
  after(() => r.quit());

  test("strings", async () => {
    assert.equal(await r.set("a", "1", "EX", 100, "NX"), "OK");
    assert.equal(await r.set("a", "2", "NX"), null);
    assert.equal(await r.set("a", "2", "GET"), "1");
    assert.equal(await r.getex("a", "PERSIST"), "2");
    assert.equal(await r.ttl("a"), -1);
    assert.equal(await r.incrbyfloat("a", 0.5), "2.5");
    assert.deepEqual(await r.getBuffer("a"), Buffer.from("2.5"));
    assert.equal(await r.mset({ x: 1, y: 2 }), "OK");
    assert.deepEqual(await r.mget("x", "none", "y"), ["1", null, "2"]);
    const bytes = Buffer.from(Array.from({ length: 70000 }, (_, i) => i & 255));
    assert.equal(await r.setBuffer("bytes", bytes).then(String), "OK");
    assert.deepEqual(await r.getBuffer("bytes"), bytes);
    assert.deepEqual(await r.bitfield("f", "SET", "u8", 0, 200, "INCRBY", "u8", 0, 100), [0, 44]);
    await assert.rejects(r.lpush("l", "1"), /xkv holds strings only/);
  });

  test("pipelines and transactions", async () => {
    const pipeline = r.pipeline();
    for (let i = 0; i < 2000; i++) pipeline.set(`p:${i}`, i);
    pipeline.incr("bytes").get("p:1999");
    const replies = await pipeline.exec();
    assert.equal(replies.length, 2002);
    assert.match(String(replies[2000][0]), /not an integer/);
    assert.deepEqual(replies[2001], [null, "1999"]);
    assert.deepEqual(await r.multi().set("t", 1).incr("t").get("t").exec(),
                     [[null, "OK"], [null, 2], [null, "2"]]);
    await r.watch("t");
    const other = r.duplicate();
    await other.set("t", "changed");
    await other.quit();
    assert.equal(await r.multi().set("t", "mine").exec(), null);
    await assert.rejects(r.multi({ pipeline: true }).set("t").exec(), /EXECABORT/);
  });

  test("streams of keys", async () => {
    const seen = new Set();
    for await (const keys of r.scanStream({ match: "p:*", count: 100 }))
      for (const key of keys) seen.add(key);
    assert.equal(seen.size, 2000);
  });

  test("scripts", async () => {
    r.defineCommand("double", { numberOfKeys: 1,
      lua: "local v = redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], v * 2) and v" });
    await r.set("n", 21);
    await r.script("FLUSH");
    assert.equal(await r.double("n"), "21"); // EVALSHA, NOSCRIPT, EVAL
    assert.equal(await r.double("n"), "42");
    assert.equal(await r.get("n"), "84");
    assert.deepEqual(await r.pipeline().double("n").get("n").exec(), [[null, "84"], [null, "168"]]);
  });

  test("messages", async () => {
    const sub = r.duplicate();
    assert.equal(await sub.subscribe("one", "two"), 2);
    assert.equal(await sub.psubscribe("t*"), 3);
    const got = [];
    const all = new Promise((resolve) => {
      const note = (...what) => got.push(what) === 3 && resolve();
      sub.on("message", (channel, text) => note(channel, text));
      sub.on("pmessage", (pattern, channel, text) => note(pattern, channel, text));
    });
    assert.equal(await r.publish("one", "1"), 1);
    assert.equal(await r.publish("two", "2"), 2);
    await all;
    assert.deepEqual(got, [["one", "1"], ["two", "2"], ["t*", "two", "2"]]);
    await sub.quit();
  });

  test("a connection that was closed comes back", async () => {
    const killed = r.duplicate({ db: 5 });
    await killed.set("here", "1");
    await r.client("KILL", "ID", await killed.client("ID"));
    assert.equal(await killed.get("here"), "1"); // in the same database
    await killed.quit();
  });

  test("redlock", async () => {
    const locks = new Redlock([r], { retryCount: -1, retryDelay: 2, retryJitter: 1 });
    let inside = 0, rounds = 0;
    await Promise.all(Array.from({ length: 8 }, async () => {
      for (let i = 0; i < 3; i++)
        await locks.using(["resource"], 60000, async () => {
          assert.equal(++inside, 1);
          await r.ping();
          rounds++;
          inside--;
        });
    }));
    assert.equal(rounds, 24);
    assert.equal(await r.exists("resource"), 0);
  });

  test("a rate limiter", async () => {
    const limiter = new RateLimiterRedis({ storeClient: r, points: 5, duration: 3600 });
    const results = await Promise.allSettled(Array.from({ length: 9 }, () => limiter.consume("u")));
    assert.equal(results.filter((one) => one.status === "fulfilled").length, 5);
    assert.equal((await limiter.get("u")).consumedPoints, 9);
  });

  test("the server", async () => {
    assert.match(await r.info("server"), /redis_version:7\./);
    assert.match(await r.client("LIST"), /name=ioredis-test/);
    assert.equal((await r.config("GET", "databases"))[1], "16");
    assert.equal((await r.command("INFO", "get"))[0][0], "get");
  });
});

describe("node-redis", alone, () => {
  let r;
  before(async () => {
    r = nodeRedis.createClient({ socket: { port }, name: "node-redis-test" });
    await r.connect();
    await r.flushAll();
  });
  after(() => r.quit());

  test("strings", async () => {
    assert.equal(await r.set("a", "1", { EX: 100, NX: true }), "OK");
    assert.equal(await r.set("a", "2", { XX: true, GET: true, KEEPTTL: true }), "1");
    assert.equal(await r.ttl("a"), 100);
    assert.equal(await r.getDel("a"), "2");
    assert.equal(await r.get("a"), null);
    assert.equal(await r.incrByFloat("n", 1.5), "1.5");
    assert.deepEqual(await r.mGet(["n", "none"]), ["1.5", null]);
    assert.equal(await r.lcs("n", "n"), "1.5");
    const bytes = Buffer.from([0, 255, 13, 10]);
    await r.set("bytes", bytes);
    assert.deepEqual(await r.get(nodeRedis.commandOptions({ returnBuffers: true }), "bytes"), bytes);
    await assert.rejects(r.hSet("h", "a", 1), /xkv holds strings only/);
  });

  test("one pipeline of all that is asked in a tick", async () => {
    await Promise.all(Array.from({ length: 1000 }, (_, i) => r.set(`k:${i}`, String(i))));
    assert.deepEqual(await Promise.all(["k:0", "k:999"].map((key) => r.get(key))), ["0", "999"]);
    let count = 0;
    for await (const key of r.scanIterator({ MATCH: "k:*", COUNT: 50 })) count += key.length > 0;
    assert.equal(count, 1000);
  });

  test("transactions", async () => {
    assert.deepEqual(await r.multi().set("t", "1").incr("t").exec(), ["OK", 2]);
    await r.executeIsolated(async (one) => {
      await one.watch("t");
      await r.set("t", "changed");
      await assert.rejects(one.multi().set("t", "mine").exec(), nodeRedis.WatchError);
    });
    assert.equal(await r.get("t"), "changed");
  });

  test("functions and scripts", async () => {
    assert.equal(await r.eval("return ARGV[1]..KEYS[1]", { keys: ["k"], arguments: ["a"] }), "ak");
    const code = "#!lua name=lib\nredis.register_function('put', function(keys, args) " +
      "return redis.call('SET', keys[1], args[1]) end)";
    assert.equal(await r.functionLoad(code, { REPLACE: true }), "lib");
    assert.equal(await r.fCall("put", { keys: ["f"], arguments: ["v"] }), "OK");
    assert.equal(await r.get("f"), "v");
    assert.equal((await r.functionList())[0].libraryName, "lib");
    assert.equal(await r.functionFlush(), "OK");
  });

  test("messages", async () => {
    const sub = r.duplicate();
    await sub.connect();
    const got = [];
    await new Promise((resolve, reject) => {
      sub.subscribe("news", (text, channel) => { got.push([channel, text]); resolve(); })
        .then(() => r.publish("news", "one")).catch(reject);
    });
    assert.deepEqual(got, [["news", "one"]]);
    await sub.unsubscribe();
    await sub.quit();
  });
});

describe("a cluster", { skip: !cluster && "for a server that emulates one" }, () => {
  test("ioredis", async () => {
    const r = new Redis.Cluster([{ host: "127.0.0.1", port }]);
    await Promise.all(Array.from({ length: 100 }, (_, i) => r.set(`k:${i}`, i)));
    assert.equal(await r.get("k:42"), "42");
    assert.equal(r.nodes("master").length, 1);
    assert.equal(await r.mset("{t}a", 1, "{t}b", 2), "OK");
    await assert.rejects(r.mset("a", 1, "b", 2), /CROSSSLOT/);
    await r.quit();
  });

  test("node-redis", async () => {
    const r = nodeRedis.createCluster({ rootNodes: [{ socket: { host: "127.0.0.1", port } }] });
    await r.connect();
    await r.set("k", "v");
    assert.equal(await r.get("k"), "v");
    assert.equal(r.masters.length, 1);
    await r.quit();
  });
});
