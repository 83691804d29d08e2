// After a call that errors over SSE and after one that is cancelled, the client asks for nothing
// within ten seconds. SDK 1.32 takes only a *result* for the end of a primed stream and comes back
// behind an error or a cancellation; when, the server says.
import assert from 'node:assert/strict';
import { call, connect, main, open, options, proxy, sleep, until } from './common.mjs';

const WINDOW_MS = 10_000;

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
  await transport.terminateSession();
  await client.close();
  between.close();
});
