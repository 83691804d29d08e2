// After a call that errors over SSE and after one that is cancelled, the client falls silent.
// SDK 1.32 takes only a *result* for the end of a primed stream, so behind an error or a
// cancellation it comes back exactly once with its cursor whatever a server does; the 204 it then
// gets must be the end. Thus: each cursor is asked for at most once, only within SETTLE_MS, and
// nothing within the ten seconds after. QUIET_STRICT=1 allows no GET beyond the listener at all.
import assert from 'node:assert/strict';
import { call, connect, main, open, options, proxy, sleep, until } from './common.mjs';

const WINDOW_MS = 10_000;
const SETTLE_MS = 2_500;

main(async () => {
  const { url, backend } = options();
  const between = await proxy(url);
  const transport = open('streamable', between.url);
  const { client, transcript } = await connect(transport);
  await until('the listener', () => between.state.gets === 1);
  await sleep(200);

  if (backend.fail) {
    await assert.rejects(call(client, backend.fail), { code: backend.fail.code });
    const seen = transcript.notifications('notifications/progress').length;
    assert.equal(seen, 1, 'the error came over SSE, behind a progress notification');
  }

  const before = transcript.notifications('notifications/progress').length;
  const cancel = new AbortController();
  const cancelled = call(client, backend.slow(40, 250), { signal: cancel.signal });
  const rejected = assert.rejects(cancelled);
  const reported = () => transcript.notifications('notifications/progress').length;
  await until('two steps', () => reported() >= before + 2);
  cancel.abort('enough');
  await rejected;

  await sleep(SETTLE_MS);
  const settled = between.state.gets;
  const { cursors } = between.state;
  assert.ok(settled <= (process.env.QUIET_STRICT ? 1 : 3), `${settled} GETs: listener + one each`);
  assert.equal(new Set(cursors).size, cursors.length, `a cursor was asked for twice: ${cursors}`);
  await sleep(WINDOW_MS);
  assert.equal(between.state.gets, settled, 'GETs within the ten seconds');
  await client.ping(); // the session still lives
  transcript.checkOnce();
  assert.ok(reported() <= before + 4, `progress after the cancellation: ${reported() - before}`);
  await transport.terminateSession();
  await client.close();
  between.close();
});
