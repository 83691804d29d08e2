// The command line of MCP Inspector in each of its eras: what it prints is the same in all of them.
// inspector-eras.mjs URL
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { main, options, proxy } from './common.mjs';
import { answer, inspect } from './inspector.mjs';

// What each era settles on.
const ERAS = { legacy: '2025-11-25', auto: '2026-07-28', modern: '2026-07-28' };

async function story(era, url, backend) {
  const between = await proxy(url);
  const home = mkdtempSync(path.join(os.tmpdir(), 'lockgate-inspector-'));
  const env = { PATH: process.env.PATH, HOME: home };
  const run = async (...args) => answer(await inspect(env, between.url, '--protocol-era', era, ...args));
  try {
    const { tools } = await run('--method', 'tools/list');
    const called = await run('--method', 'tools/call', '--tool-name', 'test_tool_with_progress');
    const read = await run('--method', 'resources/read', '--uri', backend.read.uri);
    const { prompts } = await run('--method', 'prompts/list');
    assert.equal(tools.length, backend.tools);
    assert.notEqual(called.isError, true);
    assert.match(read.contents[0].text, backend.read.text);
    assert.ok(prompts.some(({ name }) => name === backend.prompt.name));
    assert.deepEqual([...between.state.versions], [ERAS[era]]);
  } finally {
    between.close();
    rmSync(home, { recursive: true, force: true });
  }
}

main(async () => {
  const { url, backend } = options();
  await Promise.all(Object.keys(ERAS).map((era) => story(era, url, backend)));
});
