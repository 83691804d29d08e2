// A client that forgives nothing (oauth4webapi), against the authorization server behind a URL: each
// way of authenticating, and everything that must be refused. oauth-strict.mjs URL, where the URL
// is that of server `one` of tenant `acme`, which has a server `two` beside it.
import assert from 'node:assert/strict';
import * as oauth from 'oauth4webapi';
import { Browser, text } from './browser.mjs';
import { main, until } from './common.mjs';
import { options, server } from './oauth.mjs';

const REDIRECT = 'http://127.0.0.1:33421/callback';
const http = { [oauth.allowInsecureRequests]: true };

let as;
let given;

main(async () => {
  given = options();
  as = await discovered(new URL(given.url), server(given).issuer);
  await metadataElsewhere();
  await eachMethod();
  await wrongExchanges();
  await wrongRequests();
  await wrongRedirects();
  await answersToClients();
  await refreshing();
  await revoking();
  await audiences();
  await anotherTenant();
  await theOldPaths();
  await managing();
});

/** From the 401 of a resource to the metadata of its authorization server. */
async function discovered(resource, issuer) {
  const challenged = await fetch(resource, { method: 'POST', body: '{}' });
  assert.equal(challenged.status, 401);
  const challenge = challenged.headers.get('www-authenticate');
  const named = challenge.match(/resource_metadata="([^"]+)"/)[1];
  const answer = await oauth.resourceDiscoveryRequest(resource, http);
  assert.equal(answer.url, named, 'the challenge names the place of RFC 9728');
  const described = await oauth.processResourceDiscoveryResponse(resource, answer);
  assert.equal(described.resource, resource.href);
  assert.deepEqual(described.authorization_servers, [issuer]);
  assert.ok(!(described.scopes_supported ?? []).includes('offline_access'));
  const [only] = described.authorization_servers;
  const from = new URL(only);
  const found = await oauth.discoveryRequest(from, { ...http, algorithm: 'oauth2' });
  // A root issuer has no slash at its end, and URLs of JavaScript have one: compare as text.
  const metadata = await found.json();
  assert.equal(metadata.issuer, issuer);
  assert.deepEqual(metadata.code_challenge_methods_supported, ['S256']);
  assert.deepEqual(metadata.response_types_supported, ['code']);
  assert.equal(metadata.authorization_response_iss_parameter_supported, true);
  assert.equal(metadata.client_id_metadata_document_supported, true);
  // One of its declared clients is a machine.
  const grants = ['authorization_code', 'client_credentials', 'refresh_token'];
  assert.deepEqual([...metadata.grant_types_supported].sort(), grants);
  return metadata;
}

/** The OpenID form of the metadata, and nothing at places that another issuer would have. */
async function metadataElsewhere() {
  const issuer = new URL(as.issuer);
  const openid = await oauth.discoveryRequest(issuer, { ...http, algorithm: 'oidc' });
  const same = await oauth.processDiscoveryResponse(issuer, openid);
  assert.equal(same.token_endpoint, as.token_endpoint);
  const { origin, pathname } = issuer;
  for (const path of [`/.well-known/openid-configuration${pathname}`]) {
    assert.equal((await fetch(origin + path)).status, 200, path);
  }
  for (const path of [`${pathname}/.well-known/oauth-authorization-server`, '/.well-known/oauth-authorization-server/t/nobody']) {
    assert.equal((await fetch(origin + path)).status, 404, path);
  }
  const keys = await (await fetch(as.jwks_uri)).json();
  for (const key of keys.keys) {
    assert.equal(key.kty, 'OKP');
    assert.equal(key.d, undefined, 'a private key is published');
  }
}

async function register(metadata = {}) {
  const asked = {
    client_name: 'strict',
    redirect_uris: [REDIRECT],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    ...metadata,
  };
  const answer = await oauth.dynamicClientRegistrationRequest(as, asked, http);
  stored(answer);
  const client = await oauth.processDynamicClientRegistrationResponse(answer);
  assert.ok(!client.client_id.startsWith('https://'));
  assert.equal(client.token_endpoint_auth_method, asked.token_endpoint_auth_method);
  return client;
}

function stored(answer) {
  assert.equal(answer.headers.get('cache-control'), 'no-store');
  assert.equal(answer.headers.get('pragma'), 'no-cache');
}

/** An authorization request, its answer as the browser saw it, and what belongs to both. */
async function asked(client, changes = {}, browser = new Browser()) {
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const request = new URL(as.authorization_endpoint);
  const parameters = {
    response_type: 'code',
    client_id: client.client_id,
    redirect_uri: REDIRECT,
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    resource: given.url,
    ...changes,
  };
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) if (one !== undefined) request.searchParams.append(name, one);
  }
  const redirect = parameters.redirect_uri ?? REDIRECT;
  const page = await browser.visit(request.href, { until: redirect });
  return { page, verifier, state: parameters.state, redirect, browser };
}

/** The answer's parameters, as a strict client takes them. */
function answered({ page, state, redirect }, client) {
  assert.ok(page.landed.startsWith(redirect), `${page.landed}: ${text(page.body)}`);
  return oauth.validateAuthResponse(as, client, new URL(page.landed), state);
}

async function exchange(client, authentication, parameters, redirect, verifier, more = {}) {
  const answer = await oauth.authorizationCodeGrantRequest(
    as, client, authentication, parameters, redirect, verifier,
    { ...http, additionalParameters: { resource: given.url, ...more } },
  );
  stored(answer);
  return oauth.processAuthorizationCodeResponse(as, client, answer);
}

async function granted(client, authentication = oauth.None(), changes = {}) {
  const step = await asked(client, changes);
  return exchange(client, authentication, answered(step, client), step.redirect, step.verifier);
}

async function renew(client, authentication, token, more = {}) {
  const options = { ...http, additionalParameters: more };
  const answer = await oauth.refreshTokenGrantRequest(as, client, authentication, token, options);
  stored(answer);
  return oauth.processRefreshTokenResponse(as, client, answer);
}

/** How a resource answers to a token: an initialize, whose session ends at once. */
async function use(token, url = given.url) {
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
  };
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'strict', version: '1' } };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
  const answer = await fetch(url, { method: 'POST', headers, body });
  const session = answer.headers.get('mcp-session-id');
  await answer.text();
  if (session) await fetch(url, { method: 'DELETE', headers: { ...headers, 'mcp-session-id': session } });
  return answer;
}

/** The same without a session: 400 for a token that is good, and no child is started. */
async function probe(token) {
  const headers = { authorization: `Bearer ${token}`, accept: 'text/event-stream' };
  const answer = await fetch(given.url, { headers });
  await answer.body?.cancel();
  assert.ok(answer.status === 400 || answer.status === 401, `${answer.status}`);
  return answer;
}

/** A refusal of RFC 6749, 5.2, with the status and code wanted. */
async function refused(promise, error, status = 400) {
  await assert.rejects(promise, (found) => {
    assert.ok(!(found instanceof assert.AssertionError), found);
    // A 401 that carries a challenge (RFC 6749, 5.2, invalid_client) is another class.
    const code = found instanceof oauth.WWWAuthenticateChallengeError ? 'invalid_client' : found.error;
    assert.equal(code, error, `${found.stack} ${JSON.stringify(found.cause)}`);
    assert.equal(found.status, status);
    return true;
  });
}

/** A refusal in the redirect, with the request's state and the issuer (P85). */
function refusedThere(step, client, error) {
  assert.throws(
    () => answered(step, client),
    (found) => {
      assert.ok(found instanceof oauth.AuthorizationResponseError, found);
      assert.equal(found.error, error);
      return true;
    },
  );
}

/** A page that says what is wrong and sends nobody anywhere. */
function refusedHere({ page }, what) {
  assert.equal(page.status, 400, `${what}: ${page.landed}`);
  assert.ok(text(page.body).length > 40, `${what}: ${page.body}`);
}

async function eachMethod() {
  const pair = await oauth.generateKeyPair('ES256', { extractable: true });
  const jwk = { ...(await crypto.subtle.exportKey('jwk', pair.publicKey)), kid: 'one', alg: 'ES256', use: 'sig' };
  const key = { key: pair.privateKey, kid: 'one' };
  for (const [method, metadata, authentication] of [
    ['none', {}, () => oauth.None()],
    ['client_secret_basic', {}, (secret) => oauth.ClientSecretBasic(secret)],
    ['client_secret_post', {}, (secret) => oauth.ClientSecretPost(secret)],
    ['private_key_jwt', { jwks: { keys: [jwk] } }, () => oauth.PrivateKeyJwt(key)],
  ]) {
    const client = await register({ token_endpoint_auth_method: method, ...metadata });
    const authenticated = authentication(client.client_secret);
    const tokens = await granted(client, authenticated);
    assert.equal(tokens.token_type, 'bearer');
    assert.ok(tokens.expires_in > 0 && tokens.expires_in <= 900);
    const request = new Request(given.url, { headers: { authorization: `Bearer ${tokens.access_token}` } });
    const claims = await oauth.validateJwtAccessToken(as, request, given.url, http);
    assert.equal(claims.aud, given.url);
    assert.equal(claims.client_id, client.client_id);
    assert.equal(claims.sub, 'ada');
    assert.ok(Math.abs(claims.exp - claims.iat - tokens.expires_in) <= 2);
    assert.equal((await use(tokens.access_token)).status, 200, method);
    const next = await renew(client, authenticated, tokens.refresh_token);
    assert.notEqual(next.refresh_token, tokens.refresh_token);
    assert.equal((await use(next.access_token)).status, 200, method);
    if (method === 'none') continue;
    const step = await asked(client);
    const parameters = answered(step, client);
    const wrong = method === 'client_secret_basic' ? oauth.ClientSecretBasic('lgs_wrong') : oauth.ClientSecretPost('lgs_wrong');
    await refused(exchange(client, wrong, parameters, step.redirect, step.verifier), 'invalid_client', 401);
    await refused(exchange(client, oauth.None(), parameters, step.redirect, step.verifier), 'invalid_client', 401);
    await secretInTheUrl(client);
  }
}

async function secretInTheUrl(client) {
  if (!client.client_secret) return;
  const url = new URL(as.token_endpoint);
  url.searchParams.set('client_id', client.client_id);
  url.searchParams.set('client_secret', client.client_secret);
  const body = new URLSearchParams({ grant_type: 'refresh_token', refresh_token: 'lgr_none' });
  const answer = await fetch(url, { method: 'POST', body });
  const { error } = await answer.json();
  assert.ok(['invalid_client', 'invalid_request'].includes(error), error);
  assert.ok(answer.status === 401 || answer.status === 400);
}

async function wrongExchanges() {
  const client = await register();
  const other = await register();
  const none = oauth.None();

  // A wrong verifier: refused, and the code is worth nothing afterwards.
  let step = await asked(client);
  let parameters = answered(step, client);
  const wrong = oauth.generateRandomCodeVerifier();
  await refused(exchange(client, none, parameters, step.redirect, wrong), 'invalid_grant');
  await refused(exchange(client, none, parameters, step.redirect, step.verifier), 'invalid_grant');

  // Another client, another redirect URI: the same.
  step = await asked(client);
  parameters = answered(step, client);
  await refused(exchange(other, none, parameters, step.redirect, step.verifier), 'invalid_grant');
  step = await asked(client);
  parameters = answered(step, client);
  const elsewhere = 'http://127.0.0.1:33421/elsewhere';
  await refused(exchange(client, none, parameters, elsewhere, step.verifier), 'invalid_grant');
  await refused(exchange(client, none, parameters, step.redirect, step.verifier), 'invalid_grant');

  // Once, and not again.
  step = await asked(client);
  parameters = answered(step, client);
  const tokens = await exchange(client, none, parameters, step.redirect, step.verifier);
  await refused(exchange(client, none, parameters, step.redirect, step.verifier), 'invalid_grant');
  assert.equal((await use(tokens.access_token)).status, 200, 'a replay at once may be a lost answer');

  for (const [body, error] of [
    [{ grant_type: 'password', username: 'ada', password: 'correct horse battery' }, 'unsupported_grant_type'],
    [{ grant_type: 'client_credentials' }, 'unauthorized_client'],
    [{}, 'invalid_request'],
    [{ grant_type: 'authorization_code' }, 'invalid_request'],
    [{ grant_type: 'authorization_code', code: 'lgc_none', redirect_uri: REDIRECT, code_verifier: wrong }, 'invalid_grant'],
    [{ grant_type: 'refresh_token', refresh_token: 'lgr_none' }, 'invalid_grant'],
  ]) {
    const answer = await fetch(as.token_endpoint, {
      method: 'POST',
      body: new URLSearchParams({ client_id: client.client_id, ...body }),
    });
    assert.equal(answer.status, 400, JSON.stringify(body));
    assert.equal((await answer.json()).error, error, JSON.stringify(body));
    stored(answer);
  }
  const twice = new URLSearchParams([['client_id', client.client_id], ['grant_type', 'refresh_token'], ['grant_type', 'refresh_token'], ['refresh_token', 'x']]);
  const repeated = await fetch(as.token_endpoint, { method: 'POST', body: twice });
  assert.equal((await repeated.json()).error, 'invalid_request');
  const unknown = await fetch(as.token_endpoint, {
    method: 'POST',
    body: new URLSearchParams({ grant_type: 'refresh_token', refresh_token: 'x', client_id: 'c_nobody' }),
  });
  assert.equal(unknown.status, 401);
  assert.equal((await unknown.json()).error, 'invalid_client');
}

async function wrongRequests() {
  const client = await register();
  // Nobody is sent to a client that registered itself before they have logged in (RFC 9700, 4.11.2).
  refusedHere(await asked(client, { response_type: 'token' }), 'a wrong request');
  refusedHere(await asked(client, { prompt: 'none' }), 'a silent request');
  const { browser } = await asked(client, {}, new Browser({ decision: 'deny' }));
  for (const [changes, error] of [
    [{ code_challenge: undefined, code_challenge_method: undefined }, 'invalid_request'],
    [{ code_challenge_method: 'plain' }, 'invalid_request'],
    [{ response_type: 'token' }, 'unsupported_response_type'],
    [{ response_type: undefined }, 'invalid_request'],
    [{ resource: 'https://other.example/mcp' }, 'invalid_target'],
    [{ resource: `${given.url}/` }, 'invalid_target'],
    [{ resource: [given.url, given.url.replace('/one/', '/two/')] }, 'invalid_target'],
    [{ prompt: 'none' }, 'consent_required'],
  ]) {
    refusedThere(await asked(client, changes, browser), client, error);
  }
  const denied = await asked(client, {}, new Browser({ decision: 'deny' }));
  refusedThere(denied, client, 'access_denied');

  // The issuer in the answer: present, once, and the right one (RFC 9207).
  const step = await asked(client);
  const landed = new URL(step.page.landed);
  assert.deepEqual(landed.searchParams.getAll('iss'), [as.issuer]);
  const elsewhere = { ...as, issuer: `${as.issuer}/` };
  assert.throws(() => oauth.validateAuthResponse(elsewhere, client, landed, step.state), /iss/);

  // What was sent as state comes back as it was.
  const state = `ünï %00 & = + ${'x'.repeat(1900)}`;
  const echoed = await asked(client, { state });
  assert.equal(new URL(echoed.page.landed).searchParams.get('state'), state);
}

async function wrongRedirects() {
  const client = await register({ redirect_uris: ['https://client.example/cb', 'http://localhost:1/cb', REDIRECT] });
  for (const redirect_uri of [
    'https://client.example/cb/',
    'https://client.example/CB',
    'https://CLIENT.example/cb',
    'https://client.example/cb?x=1',
    'https://client.example/cb#x',
    'https://client.example:8443/cb',
    'https://user@client.example/cb',
    'https://client.example/%63b',
    'https://client.example\\@evil.example/cb',
    'http://client.example/cb',
    'http://localhost:1/other',
    'http://127.0.0.1:33421/callback/',
    'http://127.0.0.1.evil.example/callback',
    '',
    'javascript:alert(1)',
    'https://evil.example/cb',
  ]) {
    const verifier = oauth.generateRandomCodeVerifier();
    const request = new URL(as.authorization_endpoint);
    const parameters = {
      response_type: 'code',
      client_id: client.client_id,
      redirect_uri,
      state: 's',
      code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    };
    request.search = new URLSearchParams(parameters);
    const answer = await fetch(request, { redirect: 'manual' });
    assert.equal(answer.status, 400, redirect_uri);
    assert.equal(answer.headers.get('location'), null, redirect_uri);
  }
  // The port of a loopback address is the one thing that may differ (RFC 8252, 7.3).
  for (const redirect_uri of ['http://127.0.0.1:44444/callback', 'http://localhost:55555/cb']) {
    const step = await asked(client, { redirect_uri });
    answered(step, client);
  }
  refusedHere(await asked({ client_id: 'c_nobody' }), 'an unknown client');

  for (const redirect_uris of [
    ['http://client.example/cb'],
    ['https://client.example/cb#x'],
    ['javascript:alert(1)'],
    ['data:text/html,x'],
    ['https://*.client.example/cb'],
    ['not a url'],
    [],
  ]) {
    const body = JSON.stringify({ client_name: 'x', redirect_uris });
    const headers = { 'content-type': 'application/json' };
    const answer = await fetch(as.registration_endpoint, { method: 'POST', headers, body });
    assert.equal(answer.status, 400, `${redirect_uris}`);
    const { error } = await answer.json();
    assert.ok(['invalid_redirect_uri', 'invalid_client_metadata'].includes(error), `${redirect_uris}: ${error}`);
  }
}

/**
 * One browser: consent is remembered until anything in the request changes, and prompt is obeyed. Each request of a
 * public client that any program on the machine can imitate is asked about.
 */
async function answersToClients() {
  const [site, otherPage] = ['https://client.example/cb', 'https://client.example/other'];
  const client = await register({ redirect_uris: [site, otherPage, REDIRECT] });
  const browser = new Browser();
  const pages = async (changes) => {
    browser.trace.length = 0;
    const step = await asked(client, { redirect_uri: site, ...changes }, browser);
    answered(step, client);
    return browser.trace.map((line) => line.replace(/\/t\/acme\/oauth\//, ''));
  };
  const whole = ['GET authorize 200', 'POST login 303', 'GET authorize 200', 'POST consent 303', 'to the client'];
  const consent = ['GET authorize 200', 'POST consent 303', 'to the client'];
  const nothing = ['GET authorize 302', 'to the client'];
  assert.deepEqual(await pages(), whole);
  assert.deepEqual(await pages(), nothing, 'remembered');
  assert.deepEqual(await pages({ prompt: 'none' }), nothing);
  assert.deepEqual(await pages({ prompt: 'consent' }), consent);
  assert.deepEqual(await pages({ redirect_uri: otherPage }), consent);
  for (const _ of [1, 2]) assert.deepEqual(await pages({ redirect_uri: REDIRECT }), consent);
  assert.deepEqual(await pages({ resource: given.url.replace('/one/', '/two/') }), consent);
  assert.deepEqual(await pages(), nothing);
  const other = await register();
  const unasked = await asked(other, { prompt: 'none' }, browser);
  refusedThere(unasked, other, 'consent_required');
  browser.trace.length = 0;
  const again = await asked(client, { prompt: 'login' }, browser);
  answered(again, client);
  assert.match(browser.trace.join(), /POST \S+login/);
}

async function refreshing() {
  const client = await register();
  const other = await register();
  const none = oauth.None();
  const first = await granted(client, none, { scope: 'extra offline_access' });
  assert.equal(first.scope?.split(' ').includes('extra'), true, `granted ${first.scope}`);
  await refused(renew(client, none, first.refresh_token, { scope: 'extra admin:everything' }), 'invalid_scope');
  await refused(renew(other, none, first.refresh_token), 'invalid_grant');

  // Whoever comes again within the grace gets the same successor; ten at once are one family.
  const many = await Promise.all(Array.from({ length: 10 }, () => renew(client, none, first.refresh_token)));
  const successors = new Set(many.map((one) => one.refresh_token));
  assert.equal(successors.size, 1, 'one successor for all');
  const [second] = successors;
  assert.notEqual(second, first.refresh_token);
  const third = await renew(client, none, second);
  assert.equal((await use(third.access_token)).status, 200);
  // Its successor was used: refused, and nothing is lost by that.
  await refused(renew(client, none, first.refresh_token), 'invalid_grant');
  assert.equal((await use(third.access_token)).status, 200);
  await renew(client, none, third.refresh_token, { resource: given.url });
}

async function revoking() {
  const client = await register();
  const other = await register();
  const none = oauth.None();
  const tokens = await granted(client, none);
  const revoke = async (who, token, more = {}) => {
    const options = { ...http, additionalParameters: more };
    const answer = await oauth.revocationRequest(as, who, none, token, options);
    await oauth.processRevocationResponse(answer);
  };
  await revoke(client, 'lgr_unknown');
  await revoke(client, 'nonsense', { token_type_hint: 'nonsense' });
  await revoke(other, tokens.refresh_token);
  await revoke(other, tokens.access_token);
  assert.equal((await use(tokens.access_token)).status, 200, "somebody else's revocation");
  await revoke(client, tokens.refresh_token, { token_type_hint: 'refresh_token' });
  await refused(renew(client, none, tokens.refresh_token), 'invalid_grant');
  // Within a second (CONTRACT 4.4), and another because other referees run beside this one.
  await until('the access token is refused', async () => (await probe(tokens.access_token)).status === 401, 2000);
  const answer = await use(tokens.access_token);
  assert.match(answer.headers.get('www-authenticate'), /error="invalid_token"/);

  // By the access token, too.
  const more = await granted(client, none);
  await revoke(client, more.access_token, { token_type_hint: 'access_token' });
  await until('it is refused', async () => (await probe(more.access_token)).status === 401, 2000);
  await refused(renew(client, none, more.refresh_token), 'invalid_grant');
}

async function audiences() {
  const client = await register();
  const tokens = await granted(client);
  const two = given.url.replace('/one/', '/two/');
  assert.equal((await use(tokens.access_token)).status, 200);
  assert.equal((await use(tokens.access_token, two)).status, 401, 'a token of another server');
  const none = oauth.None();
  await refused(renew(client, none, tokens.refresh_token, { resource: two }), 'invalid_target');
  // In the query it is no token at all.
  const asked = await fetch(`${given.url}?access_token=${tokens.access_token}`, { method: 'POST', body: '{}' });
  assert.equal(asked.status, 401);
  const [head, body] = tokens.access_token.split('.');
  const plain = Buffer.from(JSON.stringify({ typ: 'at+jwt', alg: 'none' })).toString('base64url');
  for (const forged of [`${plain}.${body}.`, `${head}.${body}.`, `${head}.${body}.AAAA`, tokens.refresh_token]) {
    assert.equal((await use(forged)).status, 401, forged.slice(0, 40));
  }
}

/** What tenant `acme` gave is worth nothing at `main`, which is the root. */
async function anotherTenant() {
  const client = await register();
  const step = await asked(client);
  const parameters = answered(step, client);
  const root = await (await fetch(`${given.origin}/.well-known/oauth-authorization-server`)).json();
  assert.equal(root.issuer, given.origin);
  assert.throws(() => oauth.validateAuthResponse(root, client, new URL(step.page.landed), step.state), /iss/);
  const mine = as;
  as = root;
  await refused(exchange(client, oauth.None(), parameters, step.redirect, step.verifier), 'invalid_client', 401);
  const there = await register();
  await refused(exchange(there, oauth.None(), parameters, step.redirect, step.verifier), 'invalid_grant');
  as = mine;
  const tokens = await exchange(client, oauth.None(), parameters, step.redirect, step.verifier);
  assert.equal((await use(tokens.access_token, `${given.origin}/mcp`)).status, 401);
}

/** Clients of 2025-03-26: no resource, and /authorize, /token and /register of the origin. */
async function theOldPaths() {
  const { origin } = given;
  const mine = as;
  const url = given.url;
  const root = await (await fetch(`${origin}/.well-known/oauth-authorization-server`)).json();
  as = {
    ...root,
    authorization_endpoint: `${origin}/authorize`,
    token_endpoint: `${origin}/token`,
    registration_endpoint: `${origin}/register`,
  };
  given.url = `${origin}/mcp`;
  const client = await register();
  const step = await asked(client, { resource: undefined });
  const parameters = answered(step, client);
  const answer = await oauth.authorizationCodeGrantRequest(
    as, client, oauth.None(), parameters, step.redirect, step.verifier, http,
  );
  const tokens = await oauth.processAuthorizationCodeResponse(as, client, answer);
  const request = new Request(given.url, { headers: { authorization: `Bearer ${tokens.access_token}` } });
  const claims = await oauth.validateJwtAccessToken(root, request, `${origin}/mcp`, http);
  assert.equal(claims.aud, `${origin}/mcp`);
  assert.equal((await use(tokens.access_token)).status, 200);
  as = mine;
  given.url = url;
}

/** RFC 7592. */
async function managing() {
  const client = await register();
  const { registration_client_uri: place, registration_access_token: key } = client;
  const ask = (method, token, body) =>
    fetch(place, {
      method,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: body && JSON.stringify(body),
    });
  const read = await ask('GET', key);
  assert.equal(read.status, 200);
  stored(read);
  assert.equal((await read.json()).client_id, client.client_id);
  for (const method of ['GET', 'PUT', 'DELETE']) {
    const body = method === 'PUT' ? { client_id: client.client_id, redirect_uris: [REDIRECT] } : undefined;
    assert.equal((await ask(method, 'lga_wrong', body)).status, 401, method);
  }
  const changed = { client_id: client.client_id, client_name: 'renamed', redirect_uris: [REDIRECT], token_endpoint_auth_method: 'none' };
  const put = await ask('PUT', key, changed);
  assert.equal(put.status, 200);
  const now = await put.json();
  assert.equal(now.client_name, 'renamed');
  const tokens = await granted(client);
  const next = now.registration_access_token ?? key;
  assert.equal((await ask('DELETE', next)).status, 204);
  assert.equal((await ask('GET', next)).status, 401);
  await until('the tokens of a client that is gone', async () => (await probe(tokens.access_token)).status === 401, 2000);
  await refused(renew(client, oauth.None(), tokens.refresh_token), 'invalid_client', 401);
}
