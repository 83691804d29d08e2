// A client that the identity provider of an organization vouches for, with the provider of the SDK for it, and no
// log-in at the gateway: oauth-enterprise.mjs URL ISSUER SECRET
// The person logs in at the provider alone; its ID token becomes an ID-JAG there, and a token here.
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { Client, CrossAppAccessProvider, StreamableHTTPClientTransport, discoverAndRequestJwtAuthGrant } from '@modelcontextprotocol/client';
import { formsOf } from './browser.mjs';
import { main } from './common.mjs';
import { REDIRECT, claimsOf, recorder, server } from './oauth.mjs';

const [url, idp, clientSecret] = process.argv.slice(2);

/** The ID token of ada for the application "assistant", by the pages of the provider. */
async function idToken() {
  const { authorization_endpoint, token_endpoint } = await (await fetch(`${idp}/.well-known/openid-configuration`)).json();
  const code_verifier = randomBytes(32).toString('base64url');
  const query = new URLSearchParams({
    client_id: 'assistant',
    redirect_uri: REDIRECT,
    response_type: 'code',
    scope: 'openid email profile',
    code_challenge: createHash('sha256').update(code_verifier).digest('base64url'),
    code_challenge_method: 'S256',
  });
  const cookies = new Map();
  let [at, init] = [`${authorization_endpoint}?${query}`, {}];
  for (let step = 0; !at.startsWith(REDIRECT); step += 1) {
    assert.ok(step < 12, at);
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(at, { ...init, headers: { cookie }, redirect: 'manual' });
    for (const line of answer.headers.getSetCookie()) cookies.set(...line.split(';')[0].split(/=(.*)/).slice(0, 2));
    const location = answer.headers.get('location');
    if (location) {
      [at, init] = [new URL(location, at).href, {}];
      continue;
    }
    const page = await answer.text();
    const [form] = formsOf(page);
    assert.ok(form, `${at}: ${answer.status} ${page}`);
    const given = form.controls.filter(({ name }) => name).map(({ name, value }) => [name, value]);
    const fields = { ...Object.fromEntries(given), login: 'ada', password: 'x' };
    [at, init] = [new URL(form.action, at).href, { method: 'POST', body: new URLSearchParams(fields) }];
  }
  const body = new URLSearchParams({
    grant_type: 'authorization_code',
    code: new URL(at).searchParams.get('code'),
    redirect_uri: REDIRECT,
    code_verifier,
    client_id: 'assistant',
    client_secret: 'secret',
  });
  const answer = await (await fetch(token_endpoint, { method: 'POST', body })).json();
  assert.ok(answer.id_token, JSON.stringify(answer));
  return answer.id_token;
}

main(async () => {
  const { pathname: path, origin } = new URL(url);
  const tenant = path.match(/^\/t\/([^/]+)\//)?.[1];
  const { issuer, resource, metadata } = server({ origin, path, tenant });
  const token = await idToken();
  const asked = [];
  const { fetch: fetchFn, since } = recorder();
  const authProvider = new CrossAppAccessProvider({
    assertion: async (context) => {
      asked.push([String(context.authorizationServerUrl), String(context.resourceUrl)]);
      const grant = await discoverAndRequestJwtAuthGrant({
        idpUrl: idp,
        audience: context.authorizationServerUrl,
        resource: context.resourceUrl,
        idToken: token,
        clientId: 'assistant',
        clientSecret: 'secret',
        scope: context.scope ?? 'extra',
      });
      return grant.jwtAuthGrant;
    },
    clientId: 'assistant',
    clientSecret,
    expectedIssuer: issuer,
  });
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider, fetch: fetchFn });
  const client = new Client({ name: 'referee', version: '1.0.0' });
  await client.connect(transport);
  const begun = since();
  const exchanged = `POST /t/${tenant}/oauth/token 200`;
  assert.deepEqual(begun.slice(0, 4), [`POST ${path} 401`, `GET ${resource} 200`, `GET ${metadata} 200`, exchanged], begun.join());
  assert.deepEqual(asked, [[issuer, url]]);
  const described = await (await fetch(origin + metadata)).json();
  assert.ok(described.grant_types_supported.includes('urn:ietf:params:oauth:grant-type:jwt-bearer'));
  assert.deepEqual(described.authorization_grant_profiles_supported, ['urn:ietf:params:oauth:grant-profile:id-jag']);
  const tokens = await authProvider.tokens();
  const claims = claimsOf(tokens.access_token);
  assert.deepEqual([claims.sub, claims.client_id, claims.aud], [`${idp}#ada`, 'assistant', url]);
  assert.deepEqual([tokens.refresh_token, claims.groups], [undefined, ['staff']]);
  const { tools } = await client.listTools();
  assert.ok(tools.some((tool) => tool.name === 'test_simple_text'), JSON.stringify(tools));
  await client.close();
});
