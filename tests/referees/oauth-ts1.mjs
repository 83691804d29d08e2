// TypeScript SDK 1.x with nothing but a URL: discovery, registration, log-in, consent, tokens, the
// whole story of the other referees, and a new access token when the old one is refused.
import assert from 'node:assert/strict';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { Browser } from './browser.mjs';
import { BACKENDS, connect, fullStory, main, open } from './common.mjs';
import { claimsOf, Memory, options, recorder, server, walked } from './oauth.mjs';

main(async () => {
  const given = options();
  const { url, path } = given;
  const { issuer, resource, metadata } = server(given);
  const kind = path.endsWith('/sse') ? 'sse' : 'streamable';
  const browser = new Browser({ provider: given.provider, username: given.provider ? 'grace' : 'ada' });
  const authProvider = new Memory({ browser });
  const { fetch, since, whole } = recorder();
  const settings = { authProvider, fetch };

  // Nothing is known but the URL.
  const first = open(kind, url, settings);
  const client = new Client({ name: 'referee', version: '1.0.0' });
  await assert.rejects(client.connect(first), UnauthorizedError);
  const of = (name) => `${new URL(issuer).pathname.replace(/\/$/, '') || '/t/main'}/oauth/${name}`;
  assert.deepEqual(since(), [
    `${kind === 'sse' ? 'GET' : 'POST'} ${path} 401`,
    `GET ${resource} 200`,
    `GET ${metadata} 200`,
    `POST ${of('register')} 201`,
  ]);
  assert.deepEqual(browser.trace, walked(given));
  assert.equal(authProvider.request.searchParams.get('resource'), url);

  await first.finishAuth(authProvider.code(issuer));
  const exchanged = since();
  assert.equal(exchanged.at(-1), `POST ${of('token')} 200`);
  const answer = whole.at(-1);
  assert.equal(answer.headers.get('cache-control'), 'no-store');
  assert.equal(answer.headers.get('pragma'), 'no-cache');
  const claims = claimsOf(authProvider.held.access_token);
  assert.equal(claims.iss, issuer);
  assert.equal(claims.aud, url);
  assert.equal(claims.client_id, authProvider.client.client_id);
  assert.match(claims.sub, given.provider ? /#grace$/ : /^ada$/);
  assert.ok(authProvider.held.expires_in <= 900 && authProvider.held.expires_in > 0);
  assert.equal(authProvider.held.token_type.toLowerCase(), 'bearer');

  await fullStory(open(kind, url, settings), BACKENDS.fixture);
  const unwanted = since().filter((line) => /oauth|well-known/.test(line));
  assert.deepEqual(unwanted, [], 'a good token leads to no other exchange');

  // An access token that is refused: the refresh token gives another, and nobody is asked.
  const old = authProvider.held;
  authProvider.held = { ...old, access_token: `${old.access_token.slice(0, -8)}AAAAAAAA` };
  const again = await connect(open(kind, url, settings));
  const renewed = since();
  assert.ok(renewed.includes(`POST ${of('token')} 200`), renewed.join(', '));
  assert.ok(!renewed.some((line) => line.includes('/register')), renewed.join(', '));
  assert.equal(authProvider.asked, 1, 'nobody was asked again');
  assert.notEqual(authProvider.held.access_token, old.access_token);
  assert.notEqual(authProvider.held.refresh_token, old.refresh_token);
  assert.equal(claimsOf(authProvider.held.access_token).aud, url);
  await again.client.ping();
  await again.client.close();
});
