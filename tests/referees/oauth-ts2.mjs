// TypeScript SDK 2.x with nothing but a URL, like oauth-ts1.mjs; it checks `iss` by itself.
import assert from 'node:assert/strict';
import {
  Client,
  SSEClientTransport,
  StreamableHTTPClientTransport,
  UnauthorizedError,
} from '@modelcontextprotocol/client';
import { Browser } from './browser.mjs';
import { BACKENDS, main, steps, Transcript } from './common.mjs';
import { claimsOf, Memory, options, recorder, server, walked } from './oauth.mjs';

const told = { name: 'referee', version: '2.0.0' };

main(async () => {
  const given = options();
  const { url, path } = given;
  const { issuer, resource, metadata } = server(given);
  const Transport = path.endsWith('/sse') ? SSEClientTransport : StreamableHTTPClientTransport;
  const browser = new Browser({ provider: given.provider, username: given.provider ? 'grace' : 'ada' });
  const authProvider = new Memory({ browser });
  const { fetch, since } = recorder();
  const transport = () => new Transport(new URL(url), { authProvider, fetch });
  const of = (name) => `${new URL(issuer).pathname.replace(/\/$/, '') || '/t/main'}/oauth/${name}`;

  const first = transport();
  await assert.rejects(new Client(told).connect(first), UnauthorizedError);
  assert.deepEqual(since(), [
    `${path.endsWith('/sse') ? 'GET' : 'POST'} ${path} 401`,
    `GET ${resource} 200`,
    `GET ${metadata} 200`,
    `POST ${of('register')} 201`,
  ]);
  assert.deepEqual(browser.trace, walked(given));
  assert.equal(authProvider.request.searchParams.get('resource'), url);

  // Somebody else's issuer in the answer ends it (RFC 9207); the true one goes on.
  const forged = new URLSearchParams(authProvider.answer);
  forged.set('iss', 'https://attacker.example');
  await assert.rejects(first.finishAuth(forged));
  assert.ok(!since().some((line) => line.includes('/token')), 'the code went nowhere');
  authProvider.code(issuer);
  await first.finishAuth(authProvider.answer);
  assert.equal(since().at(-1), `POST ${of('token')} 200`);
  assert.equal(claimsOf(authProvider.held.access_token).aud, url);

  const client = new Client(told);
  const used = transport();
  await client.connect(used);
  const transcript = new Transcript();
  transcript.tap(used);
  const { tools } = await client.listTools();
  assert.equal(tools.length, BACKENDS.fixture.tools);
  // A token of our own: the SDK drops progress that the answer overtakes on its way through it.
  const slow = { name: 'slow', arguments: { steps: 3, ms: 50 }, _meta: { progressToken: 'ours' } };
  const result = await client.callTool(slow);
  assert.match(result.content[0].text, /^run \d+: 3 steps$/);
  assert.deepEqual(transcript.progress('ours'), steps(3));
  transcript.checkOnce();
  await client.close();
  const unwanted = since().filter((line) => /oauth|well-known/.test(line));
  assert.deepEqual(unwanted, [], 'a good token leads to no other exchange');

  const old = authProvider.held;
  authProvider.held = { ...old, access_token: `${old.access_token.slice(0, -8)}AAAAAAAA` };
  const again = new Client(told);
  await again.connect(transport());
  await again.ping();
  const renewed = since();
  assert.ok(renewed.includes(`POST ${of('token')} 200`), renewed.join(', '));
  assert.equal(authProvider.asked, 1, 'nobody was asked again');
  assert.notEqual(authProvider.held.refresh_token, old.refresh_token);
  await again.close();
});
