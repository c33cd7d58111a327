// Does the usual work with pgmq-js, and prints how each case ended. `node npm_client.mjs HOST PORT DATABASE USER`
import assert from "node:assert/strict";
import { Pgmq } from "pgmq-js";

const [host, port, database, user] = process.argv.slice(2);
const pgmq = await Pgmq.new({ host, port: Number(port), database, user, ssl: false }, { skipExtensionCreation: true });
const body = { order_id: 7 };
const q = "orders";
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const cases = {
  async send_and_read() {
    const id = await pgmq.msg.send(q, body);
    const read = await pgmq.msg.read(q, 20);
    assert.deepEqual([read.msgId, read.message, read.readCount], [id, body, 1]);
    assert.ok(read.vt > new Date() && read.enqueuedAt <= new Date());
    assert.equal(await pgmq.msg.read(q, 20), undefined);
  },
  async every_kind_of_json() {
    for (const value of [1, 1.5, "text", true, ["a"], null]) {
      await pgmq.msg.send(q, value);
      assert.deepEqual((await pgmq.msg.read(q, 20)).message, value);
    }
  },
  async delay() {
    const id = await pgmq.msg.send(q, body, 1);
    assert.equal(await pgmq.msg.read(q, 20), undefined);
    let read;
    for (const ends = Date.now() + 20000; read === undefined && Date.now() < ends; await pause(100)) read = await pgmq.msg.read(q, 20);
    assert.equal(read.msgId, id);
  },
  async batch() {
    const ids = await pgmq.msg.sendBatch(q, [1, 2, 3]);
    assert.deepEqual((await pgmq.msg.readBatch(q, 20, 5)).map((one) => [one.msgId, one.message]), ids.map((id, n) => [id, n + 1]));
    assert.deepEqual(await pgmq.msg.sendBatch(q, []), []);
    assert.deepEqual(await pgmq.msg.readBatch(q, 20, 5), []);
  },
  async archive_and_delete() {
    const ids = await pgmq.msg.sendBatch(q, [1, 2, 3, 4, 5, 6]);
    await pgmq.msg.readBatch(q, 20, 3);
    assert.equal(await pgmq.msg.archive(q, ids[0]), true);
    assert.equal(await pgmq.msg.archive(q, ids[0]), false);
    assert.equal(await pgmq.msg.delete(q, ids[1]), true);
    assert.deepEqual((await pgmq.msg.archiveBatch(q, ids.slice(2, 4))).sort(), ids.slice(2, 4));
    assert.deepEqual((await pgmq.msg.deleteBatch(q, ids.slice(4))).sort(), ids.slice(4));
    assert.equal(await pgmq.msg.read(q, 20), undefined);
  },
  async pop() {
    await pgmq.msg.send(q, body);
    assert.deepEqual((await pgmq.msg.pop(q)).message, body);
    assert.equal(await pgmq.msg.pop(q), undefined);
  },
  async queues() {
    assert.ok((await pgmq.queue.list()).some((one) => one.name === q && !one.isUnlogged));
    await pgmq.msg.send(q, body);
    const metrics = await pgmq.queue.getMetrics(q);
    assert.deepEqual([metrics.queueName, metrics.queueLength, metrics.totalMessages], [q, 1, 1]);
    assert.ok((await pgmq.queue.getAllMetrics()).length >= 2);
    await pgmq.queue.purge(q);
    await pgmq.queue.detachArchive(q);
  },
  async set_vt() {
    const id = await pgmq.msg.send(q, body);
    await pgmq.msg.setVt(q, id, 60);
  },
  async unlogged_queue() {
    await pgmq.queue.createUnlogged("another");
  },
};

const ended = {};
for (const [name, run] of Object.entries(cases)) {
  await pgmq.queue.create(q);
  try {
    await run();
    ended[name] = "passed";
  } catch (error) {
    ended[name] = `${error.name}: ${error.message}`;
  }
  await pgmq.queue.drop(q);
}
console.log(JSON.stringify(ended));
await pgmq.close();
