// A child that is killed in the middle of a call costs that call and nothing else: this client, which
// knows nothing of children, calls on in the same session. The gateway's child has MARKER in its
// environment; no other session of it may be open.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { call, connect, main, open, options, textOf, until } from './common.mjs';

/** Processes with the marker in their environment. */
function children() {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const environ = readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0');
        return environ.includes(`RESTORE=${process.env.MARKER}`);
      } catch {
        return false;
      }
    });
}

main(async () => {
  const { url, backend } = options();
  const transport = open('streamable', url);
  const { client, transcript } = await connect(transport);
  const { sessionId } = transport;
  const [first, ...others] = children();
  assert.ok(first && others.length === 0, `one child: ${first} ${others}`);
  const cut = assert.rejects(call(client, backend.slow(100, 100)), { code: -31001 });
  await until('two steps', () => transcript.notifications('notifications/progress').length >= 2);
  process.kill(Number(first), 'SIGKILL');
  const killed = Date.now();
  await cut;
  const took = Date.now() - killed;
  assert.ok(took < 250 * 5, `the error came after ${took} ms`);
  const { result } = await call(client, backend.slow(2, 10));
  assert.match(textOf(result), backend.slow(2, 10).answer);
  assert.equal(transport.sessionId, sessionId);
  assert.notEqual(children()[0], first);
  transcript.checkOnce();
  console.log(`error after ${took} ms`);
  await transport.terminateSession();
  await client.close();
});
