// A call that is cut behind its first event is resumed by Last-Event-ID: nothing lost, nothing
// twice, run once; also when the answer came while nobody was connected, and for the listener.
import assert from 'node:assert/strict';
import { RECONNECT, call, connect, main, open, options, proxy, sleep, steps, textOf, until } from './common.mjs';

const STEPS = 6;

/** One slow call, cut behind its first message; `away` keeps the client out meanwhile. */
async function cutCall({ client, transcript, between, backend, away }) {
  const slow = backend.slow(STEPS, 250);
  const cutsBefore = between.state.cuts;
  const getsBefore = between.state.gets;
  between.cutAfterCall();
  const running = call(client, slow);
  running.catch(() => {}); // awaited below; a failure must not be unhandled meanwhile
  await until('the cut', () => between.state.cuts > cutsBefore);
  if (away) {
    between.state.refuse = true;
    between.cutAll(); // the listener too: nobody at all is there when the answer comes
    await sleep(STEPS * 250 + 700);
    between.state.refuse = false;
  }
  const { result, token } = await running;
  const answer = textOf(result);
  assert.match(answer, slow.answer);
  await sleep(700);
  assert.deepEqual(transcript.progress(token), steps(STEPS));
  assert.ok(between.state.gets > getsBefore, 'the client came back by GET');
  return Number(/^run (\d+)/.exec(answer)?.[1] ?? 0);
}

main(async () => {
  const { url, backend } = options();
  const between = await proxy(url);
  const transport = open('streamable', between.url, { reconnectionOptions: RECONNECT });
  const { client, transcript } = await connect(transport);
  await until('the listener', () => between.state.gets > 0);

  const runs = [];
  for (const away of [false, true, false]) {
    runs.push(await cutCall({ client, transcript, between, backend, away }));
  }
  if (runs[0]) assert.deepEqual(runs, [runs[0], runs[0] + 1, runs[0] + 2], 'each call ran once');
  transcript.checkOnce();
  await transport.terminateSession();
  await client.close();
  between.close();
});
