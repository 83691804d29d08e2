// The command line of MCP Inspector with nothing but a URL: a browser opens once, what is stored does
// for the next commands, and logging in again revokes first. oauth-inspector.mjs URL
import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { BACKENDS, main } from './common.mjs';
import { answer, inspect } from './inspector.mjs';
import { options, walked } from './oauth.mjs';

const BROWSER = fileURLToPath(new URL('./browser.mjs', import.meta.url));

main(async () => {
  const given = options();
  const home = mkdtempSync(path.join(os.tmpdir(), 'lockgate-inspector-'));
  const trace = path.join(home, 'browser');
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    MCP_STORAGE_DIR: path.join(home, 'storage'),
    MCP_INSPECTOR_SECRET_STORE: 'file',
    MCP_AUTO_OPEN_ENABLED: 'true',
    BROWSER,
    BROWSER_TRACE: trace,
  };
  const visits = () =>
    existsSync(trace) ? readFileSync(trace, 'utf8').trim().split('\n').map((line) => JSON.parse(line)) : [];
  const sse = given.url.replace(/\/mcp$/, '/sse');
  try {
    // Without a login it says so, and nobody is asked.
    const before = await inspect(env, given.url, '--method', 'tools/list', '--stored-auth-only');
    assert.notEqual(before.code, 0);
    assert.match(before.said, /auth_required/);
    assert.equal(visits().length, 0);

    const first = answer(await inspect(env, given.url, '--method', 'tools/list'));
    assert.equal(first.tools.length, BACKENDS.fixture.tools);
    const [visit, ...more] = visits();
    assert.deepEqual(more, [], 'one browser');
    assert.equal(visit.error, undefined);
    const steps = walked(given).slice(0, -1);
    assert.deepEqual(visit.trace.slice(0, steps.length), steps);

    const called = answer(
      await inspect(env, given.url, '--stored-auth-only', '--method', 'tools/call', '--tool-name', 'test_simple_text'),
    );
    assert.match(called.content[0].text, /^This is a simple text response/);
    assert.equal(visits().length, 1, 'what is stored does');

    const again = answer(await inspect(env, given.url, '--relogin', '--method', 'tools/list'));
    assert.equal(again.tools.length, BACKENDS.fixture.tools);
    assert.equal(visits().length, 2, 'logging in again asks again');

    const old = answer(await inspect(env, sse, '--method', 'tools/list'));
    assert.equal(old.tools.length, BACKENDS.fixture.tools);
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
});
