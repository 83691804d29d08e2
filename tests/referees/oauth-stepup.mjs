// A call whose scopes the token lacks: oauth-stepup.mjs VERSION URL TOOL, with VERSION 1 or 2 of the TypeScript SDK. The
// first log-in asks for the scopes to begin with; the call is refused with those that it needs, the SDK asks for them by
// itself, and the call succeeds. Version 1 does not: it refreshes its token, which gets no wider, and gives up.
import assert from 'node:assert/strict';
import { UnauthorizedError as UnauthorizedV1 } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as TransportV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';
import { Browser } from './browser.mjs';
import { main } from './common.mjs';
import { claimsOf, Memory, recorder } from './oauth.mjs';

main(async () => {
  const [version, url, tool] = process.argv.slice(2);
  const isV1 = version === '1';
  const path = new URL(url).pathname;
  const [AnyClient, Transport, Unauthorized] = isV1
    ? [ClientV1, TransportV1, UnauthorizedV1]
    : [Client, StreamableHTTPClientTransport, UnauthorizedError];
  const authProvider = new Memory({ browser: new Browser({ username: 'ada' }) });
  const { fetch, since } = recorder();
  const told = { name: 'referee', version: '1.0.0' };
  const open = () => new Transport(new URL(url), { authProvider, fetch });
  const scopes = () => claimsOf(authProvider.held.access_token).scope.split(' ');
  const asked = () => authProvider.request.searchParams.get('scope').split(' ');
  const logIn = (transport) => transport.finishAuth(isV1 ? authProvider.answer.get('code') : authProvider.answer);

  const first = open();
  await assert.rejects(new AnyClient(told).connect(first), Unauthorized);
  assert.ok(!asked().includes('extra'), `asked for ${asked()}`);
  await logIn(first);
  assert.ok(scopes().includes('mcp') && !scopes().includes('extra'), `got ${scopes()}`);

  const client = new AnyClient(told);
  const transport = open();
  await client.connect(transport);
  const call = { name: tool, arguments: {} };
  since();
  const refused = await client.callTool(call).then(() => null, (error) => error);
  if (isV1) {
    const exchanges = since().filter((line) => line.startsWith('POST'));
    assert.deepEqual(
      [refused?.message, exchanges, authProvider.asked],
      [
        'Streamable HTTP error: Server returned 403 after trying upscoping',
        [`POST ${path} 403`, 'POST /t/acme/oauth/token 200', `POST ${path} 403`],
        1,
      ],
      'it may have been mended: then mend this and docs/clients.md',
    );
    await client.close();
    return;
  }
  assert.ok(refused instanceof Unauthorized, `${refused}`);
  assert.equal(authProvider.asked, 2);
  assert.ok(asked().includes('extra') && asked().includes('mcp'), `asked for ${asked()}`);
  await logIn(transport);
  assert.deepEqual(scopes().filter((scope) => scope !== 'offline_access').sort(), ['extra', 'mcp']);
  const result = await client.callTool(call);
  assert.ok(Array.isArray(result.content), JSON.stringify(result));
  await client.close();
});
