// After a call that errors over SSE and after one that is cancelled, the client asks for nothing
// within ten seconds. SDK 1.32 takes only a *result* for the end of a primed stream and comes back
// behind an error or a cancellation; when, the server says. It holds that delay for all streams of the
// transport, and yet comes back soon to a listener that breaks afterwards.
import assert from 'node:assert/strict';
import { call, connect, main, open, options, proxy, sleep, until } from './common.mjs';

const WINDOW_MS = 10_000;
// A delay of 1.5 s at most, and time for a busy machine. The streams of the calls are asked for later.
const BACK_MS = 3_000;

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

  await sleep(WINDOW_MS);
  assert.equal(between.state.gets, 1, 'no GET but the listener');
  await client.ping(); // the session still lives
  transcript.checkOnce();
  assert.ok(reported() <= before + 4, `progress after the cancellation: ${reported() - before}`);

  const began = Date.now();
  between.cutAll();
  await until('the listener again', () => between.state.gets > 1, BACK_MS);
  console.log(`the listener was back after ${Date.now() - began} ms`);
  await transport.terminateSession();
  await client.close();
  between.close();
});
