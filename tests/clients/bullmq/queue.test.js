// SPDX-License-Identifier: BSD-2-Clause

// BullMQ, which stands on hashes, lists, sorted sets, streams, blocking commands and scripts,
// against the server at port XKV_PORT.
"use strict";

const assert = require("node:assert/strict");
const { after, before, test } = require("node:test");
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");

const connection = { port: Number(process.env.XKV_PORT), maxRetriesPerRequest: null };
const open = [];

function opened(thing) {
  open.push(thing);
  return thing;
}

let queue, events;

before(async () => {
  queue = opened(new Queue("jobs", { connection }));
  events = opened(new QueueEvents("jobs", { connection }));
  await Promise.all([queue.waitUntilReady(), events.waitUntilReady()]);
});

after(() => Promise.all(open.map((thing) => thing.close())));

test("jobs of several workers, each done once", async () => {
  const done = [];
  for (let i = 0; i < 3; i++)
    opened(new Worker("jobs", async (job) => {
      if (job.name === "fails" && job.attemptsMade === 0) throw new Error("once");
      await job.updateProgress(50);
      done.push(job.data.n);
      return job.data.n * 2;
    }, { connection, concurrency: 5 }));
  const jobs = await queue.addBulk(Array.from({ length: 200 }, (_, n) => ({
    name: "job", data: { n }, opts: { priority: n % 3, removeOnComplete: n % 2 === 0 },
  })));
  const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 20000)));
  assert.deepEqual(results, jobs.map((_, n) => 2 * n));
  assert.equal(new Set(done).size, 200);
  assert.equal(done.length, 200);
  assert.equal((await queue.getJobCounts("completed")).completed, 100);
});

test("delayed jobs, and jobs that are tried again", async () => {
  const late = await queue.add("late", { n: 1000 }, { delay: 100 });
  const fails = await queue.add("fails", { n: 1001 }, { attempts: 2, backoff: 50 });
  assert.equal(await late.waitUntilFinished(events, 20000), 2000);
  assert.equal(await fails.waitUntilFinished(events, 20000), 2002);
  assert.ok(Date.now() - late.timestamp >= 100);
});

test("a job waits for those that it consists of", async () => {
  const flow = opened(new FlowProducer({ connection }));
  opened(new Worker("sums", async (job) => {
    const parts = Object.values(await job.getChildrenValues());
    return parts.reduce((sum, part) => sum + part, 0);
  }, { connection }));
  const sums = opened(new QueueEvents("sums", { connection }));
  await sums.waitUntilReady();
  const { job } = await flow.add({ name: "sum", queueName: "sums", children: [1, 2, 3].map((n) =>
    ({ name: "part", queueName: "jobs", data: { n } })) });
  assert.equal(await job.waitUntilFinished(sums, 20000), 12);
});
