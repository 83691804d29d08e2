// A machine with the client credentials of the SDKs, and nothing else but a URL: no browser, no registration.
//   oauth-machine.mjs SDK URL SECRET          as the client machine, by its secret
//   oauth-machine.mjs SDK URL --key FILE      as the client signer, by its private key (JWK)
// SDK: 1 or 2.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { main } from './common.mjs';
import { claimsOf, recorder, server } from './oauth.mjs';

const [version, url, ...credential] = process.argv.slice(2);
const modules =
  version === '1'
    ? ['client/index.js', 'client/streamableHttp.js', 'client/auth-extensions.js'].map((name) => `@modelcontextprotocol/sdk/${name}`)
    : ['@modelcontextprotocol/client'];
const sdk = Object.assign({}, ...(await Promise.all(modules.map((name) => import(name)))));

main(async () => {
  const { pathname: path, origin } = new URL(url);
  const tenant = path.match(/^\/t\/([^/]+)\//)?.[1];
  const { issuer, resource, metadata } = server({ origin, path, tenant });
  const isKey = credential[0] === '--key';
  const expectedIssuer = issuer;
  const authProvider = isKey
    ? new sdk.PrivateKeyJwtProvider({
        clientId: 'signer',
        privateKey: JSON.parse(readFileSync(credential[1], 'utf8')),
        algorithm: 'ES256',
        expectedIssuer,
      })
    : new sdk.ClientCredentialsProvider({ clientId: 'machine', clientSecret: credential[0], expectedIssuer });
  const { fetch, since } = recorder();
  const client = new sdk.Client({ name: 'referee', version: '1.0.0' });
  const transport = new sdk.StreamableHTTPClientTransport(new URL(url), { authProvider, fetch });
  await client.connect(transport);
  const begun = since();
  const token = `POST /t/${tenant}/oauth/token 200`;
  assert.deepEqual(begun.slice(0, 4), [`POST ${path} 401`, `GET ${resource} 200`, `GET ${metadata} 200`, token], begun.join());
  const claims = claimsOf((await authProvider.tokens()).access_token);
  const id = isKey ? 'signer' : 'machine';
  assert.deepEqual([claims.sub, claims.client_id, claims.aud], [`client#${id}`, id, url]);
  assert.equal((await authProvider.tokens()).refresh_token, undefined);
  const { tools } = await client.listTools();
  assert.ok(tools.some((tool) => tool.name === 'echo' || tool.name === 'test_simple_text'), JSON.stringify(tools));
  await client.close();
});
