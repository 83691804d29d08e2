// mcp-remote between a client that knows only stdio and a URL: a browser opens once, and the second
// start needs none. oauth-remote.mjs URL [--provider NAME]
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { BACKENDS, call, connect, fullStory, main, textOf } from './common.mjs';
import { options, walked } from './oauth.mjs';

const PROGRAM = fileURLToPath(new URL('./node_modules/mcp-remote/dist/proxy.js', import.meta.url));
const BROWSER = fileURLToPath(new URL('./browser.mjs', import.meta.url));

main(async () => {
  const given = options();
  const home = mkdtempSync(path.join(os.tmpdir(), 'lockgate-remote-'));
  const trace = path.join(home, 'browser');
  const kind = given.path.endsWith('/sse') ? 'sse-only' : 'http-only';
  const remote = () =>
    new StdioClientTransport({
      command: process.execPath,
      args: [PROGRAM, given.url, '--transport', kind, '--host', '127.0.0.1', '--debug'],
      env: {
        PATH: process.env.PATH,
        HOME: home,
        MCP_REMOTE_CONFIG_DIR: path.join(home, 'auth'),
        BROWSER,
        BROWSER_TRACE: trace,
        ...(given.provider ? { BROWSER_PROVIDER: given.provider, BROWSER_USERNAME: 'grace' } : {}),
      },
      stderr: 'inherit',
    });
  const visits = () =>
    existsSync(trace) ? readFileSync(trace, 'utf8').trim().split('\n').map((line) => JSON.parse(line)) : [];
  try {
    await fullStory(remote(), BACKENDS.fixture);
    const [visit, ...more] = visits();
    assert.deepEqual(more, [], 'one browser');
    assert.equal(visit.error, undefined);
    const steps = walked(given).slice(0, -1);
    assert.deepEqual(visit.trace.slice(0, steps.length), steps);
    assert.equal(visit.status, 200, 'the page of mcp-remote');
    assert.match(visit.landed, /^http:\/\/127\.0\.0\.1:\d+\/oauth\/callback\?/);

    const { client } = await connect(remote());
    const { result } = await call(client, BACKENDS.fixture.echo);
    assert.match(textOf(result), BACKENDS.fixture.echo.answer);
    await client.close();
    assert.equal(visits().length, 1, 'the second start opens no browser');
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
});
