// A machine whose tokens are bound to its key (oauth4webapi): with each kind of key it gets a token, uses it, and finds it
// worth nothing without the key.
//   oauth-dpop.mjs URL SECRET          as the client machine, by its secret
import assert from 'node:assert/strict';
import * as oauth from 'oauth4webapi';
import { main } from './common.mjs';
import { claimsOf, server } from './oauth.mjs';

const [url, secret] = process.argv.slice(2);
const http = { [oauth.allowInsecureRequests]: true };
const HEADERS = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
const OPENING = JSON.stringify({
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'referee', version: '1.0.0' } },
});

main(async () => {
  const { pathname: path, origin } = new URL(url);
  const tenant = path.match(/^\/t\/([^/]+)\//)?.[1];
  const from = new URL(server({ origin, path, tenant }).issuer);
  const as = await oauth.processDiscoveryResponse(from, await oauth.discoveryRequest(from, { ...http, algorithm: 'oauth2' }));
  const described = await oauth.resourceDiscoveryRequest(new URL(url), http);
  const resource = await oauth.processResourceDiscoveryResponse(new URL(url), described);
  assert.deepEqual(resource.dpop_signing_alg_values_supported, as.dpop_signing_alg_values_supported);
  const client = { client_id: 'machine' };
  const token = async (more) => {
    const basic = oauth.ClientSecretBasic(secret);
    const given = await oauth.clientCredentialsGrantRequest(as, client, basic, { resource: url }, { ...http, ...more });
    return oauth.processClientCredentialsResponse(as, client, given);
  };
  const call = (access, more) =>
    oauth.protectedResourceRequest(access, 'POST', new URL(url), new Headers(HEADERS), OPENING, { ...http, ...more });
  const refused = async (access, more, scheme) => {
    const error = await call(access, more).then(() => assert.fail('it is taken'), (error) => error);
    assert.ok(error instanceof oauth.WWWAuthenticateChallengeError, error);
    assert.equal(error.status, 401);
    const errors = error.cause.filter(({ parameters }) => parameters.error).map(({ scheme, parameters }) => [scheme, parameters.error]);
    assert.deepEqual(errors, [[scheme, 'invalid_token']]);
    const [dpop] = error.cause.filter(({ scheme }) => scheme === 'dpop');
    assert.equal(dpop.parameters.algs, as.dpop_signing_alg_values_supported.join(' '));
  };
  for (const alg of as.dpop_signing_alg_values_supported) {
    const DPoP = oauth.DPoP(client, await oauth.generateKeyPair(alg));
    const tokens = await token({ DPoP });
    assert.equal(tokens.token_type, 'dpop');
    const access = tokens.access_token;
    assert.deepEqual(claimsOf(access).cnf, { jkt: await DPoP.calculateThumbprint() });
    for (let time = 0; time < 2; time++) {
      assert.equal((await call(access, { DPoP })).status, 200, alg);
    }
    await refused(access, {}, 'bearer');
    const plain = await token({});
    assert.equal(plain.token_type, 'bearer');
    await refused(plain.access_token, { DPoP }, 'dpop');
    // The key of another.
    const stranger = oauth.DPoP(client, await oauth.generateKeyPair('ES256'));
    const error = await call(access, { DPoP: stranger }).then(() => assert.fail('it is taken'), (error) => error);
    const stolen = error.cause.find(({ scheme }) => scheme === 'dpop');
    assert.equal(stolen.parameters.error, 'invalid_dpop_proof', alg);
  }
});
