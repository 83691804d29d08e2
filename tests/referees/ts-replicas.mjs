// A replica that is killed costs nothing but the calls that its own children had: this client, which
// knows nothing of replicas, calls on in the same session. CONTROL is the URL of what can kill one.
import assert from 'node:assert/strict';
import { RECONNECT, call, connect, main, open, options, steps, textOf, until } from './common.mjs';

const STEPS = 20;

async function control(method, path) {
  const answer = await fetch(`${process.env.CONTROL}${path}`, { method });
  assert.equal(answer.status, 200);
  return answer.json();
}

/** Two calls at once, by way of both replicas, one of which is killed meanwhile. */
async function killed(url, backend, who) {
  const before = await control('GET', '/sessions');
  const transport = open('streamable', url, { reconnectionOptions: RECONNECT });
  const { client, transcript } = await connect(transport);
  const { sessionId } = transport;
  const running = [call(client, backend.slow(STEPS, 100)), call(client, backend.slow(STEPS, 100))];
  const outcomes = Promise.allSettled(running);
  const progress = () => transcript.notifications('notifications/progress');
  await until('two steps of both', () => progress().filter((one) => one.params.progress === 2).length === 2);
  await control('POST', `/kill?who=${who}`);
  const killedAt = Date.now();
  for (const { status, value, reason } of await outcomes) {
    if (who === 'owner') {
      assert.equal(reason?.code, -31001, `${status} ${reason}`);
    } else {
      assert.equal(status, 'fulfilled', `${reason}`);
      assert.match(textOf(value.result), /^run [12]: 20 steps$/);
      assert.deepEqual(transcript.progress(value.token), steps(STEPS));
    }
  }
  const took = Date.now() - killedAt;
  const { result } = await call(client, backend.slow(2, 10));
  assert.match(textOf(result), who === 'owner' ? /^run 1: 2 steps$/ : /^run 3: 2 steps$/);
  assert.equal(transport.sessionId, sessionId);
  assert.equal((await control('GET', '/sessions')).sessions, before.sessions + 1, 'one session');
  transcript.checkOnce();
  await transport.terminateSession();
  await client.close();
  await control('POST', '/start');
  console.log(`${who}: both calls had ended ${took} ms after the kill`);
}

main(async () => {
  const { url, backend } = options();
  await killed(url, backend, 'other');
  await killed(url, backend, 'owner');
});
