// What the referees of the authorization server share: a client's store of tokens, a recorder of
// every exchange, and what the exchanges must be.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { Browser, text } from './browser.mjs';

/** Where a client says that it listens. Nothing does: the browser hands the address over. */
export const REDIRECT = 'http://127.0.0.1:33419/callback';

/** `SCRIPT URL [--provider NAME]`: the URL is all that a client has. */
export function options() {
  const args = process.argv.slice(2);
  const at = args.indexOf('--provider');
  const provider = at < 0 ? undefined : args.splice(at, 2)[1];
  if (args.length !== 1) {
    console.error('usage: SCRIPT URL [--provider NAME]');
    process.exit(2);
  }
  const url = new URL(args[0]);
  const tenant = url.pathname.match(/^\/t\/([^/]+)\//)?.[1];
  return { url: args[0], path: url.pathname, origin: url.origin, tenant, provider };
}

/** The issuer of a tenant and the paths of its endpoints, as CONTRACT and DESIGN have them. */
export function server({ origin, path, tenant }) {
  const issuer = tenant ? `${origin}/t/${tenant}` : origin;
  const inserted = tenant ? `/t/${tenant}` : '';
  return {
    issuer,
    resource: `/.well-known/oauth-protected-resource${path}`,
    metadata: `/.well-known/oauth-authorization-server${inserted}`,
  };
}

/** A fetch that writes down what it did: method, path and status; and all of it, in `whole`. */
export function recorder() {
  const trace = [];
  const whole = [];
  const recorded = async (input, init = {}) => {
    const url = new URL(input?.url ?? input);
    const method = init.method ?? input?.method ?? 'GET';
    const slot = trace.push(`${method} ${url.pathname} …`) - 1;
    const answer = await fetch(input, init);
    trace[slot] = `${method} ${url.pathname} ${answer.status}`;
    whole.push({ method, url, init, status: answer.status, headers: answer.headers });
    return answer;
  };
  return { fetch: recorded, trace, whole, since: () => trace.splice(0) };
}

/** What an SDK wants of a program that uses it: memory, and a person with a browser. */
export class Memory {
  constructor({ browser = new Browser(), scope, method = 'none' } = {}) {
    this.browser = browser;
    this.asked = 0;
    this.clientMetadata = {
      client_name: 'referee',
      redirect_uris: [REDIRECT],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: method,
      ...(scope ? { scope } : {}),
    };
  }

  get redirectUrl() {
    return REDIRECT;
  }

  state() {
    this.sent = randomUUID();
    return this.sent;
  }

  clientInformation() {
    return this.client;
  }

  saveClientInformation(client) {
    this.client = client;
  }

  tokens() {
    return this.held;
  }

  saveTokens(tokens) {
    this.held = tokens;
  }

  discoveryState() {
    return this.discovered;
  }

  saveDiscoveryState(state) {
    this.discovered = state;
  }

  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }

  codeVerifier() {
    return this.verifier;
  }

  async redirectToAuthorization(url) {
    this.asked += 1;
    this.request = url;
    const { landed, body, status } = await this.browser.visit(url.href, { until: REDIRECT });
    assert.ok(landed.startsWith(REDIRECT), `the browser ended at ${landed} (${status}): ${text(body)}`);
    this.answer = new URL(landed).searchParams;
  }

  /** The code of the answer, which must be one of this issuer to this request. */
  code(issuer) {
    assert.equal(this.answer.get('error'), null, `${this.answer}`);
    assert.equal(this.answer.get('state'), this.sent);
    assert.deepEqual(this.answer.getAll('iss'), [issuer]);
    assert.deepEqual([...this.answer.keys()].sort(), ['code', 'iss', 'state']);
    return this.answer.get('code');
  }
}

/** What a person's browser does: with a password, or by way of a provider. */
export function walked({ tenant, provider }) {
  const of = (name) => `/t/${tenant ?? 'main'}/oauth/${name}`;
  if (!provider) {
    return [
      `GET ${of('authorize')} 200`,
      `POST ${of('login')} 303`,
      `GET ${of('authorize')} 200`,
      `POST ${of('consent')} 303`,
      'to the client',
    ];
  }
  // Consent comes before anybody is sent on.
  return [
    `GET ${of('authorize')} 200`,
    `POST ${of('login')} 200`,
    `POST ${of('consent')} 303`,
    'GET provider /auth 303',
    'GET provider /interaction/… 200',
    'POST provider /interaction/… 303',
    'GET provider /auth/… 303',
    'GET provider /interaction/… 200',
    'POST provider /interaction/… 303',
    'GET provider /auth/… 303',
    `GET ${of(`callback/${provider}`)} 302`,
    'to the client',
  ];
}

/** What an access token says (RFC 9068); its signature is the server's and the strict client's affair. */
export function claimsOf(token) {
  const [head, body] = token.split('.').slice(0, 2).map((part) => JSON.parse(Buffer.from(part, 'base64url')));
  assert.equal(head.typ, 'at+jwt');
  assert.equal(head.alg, 'EdDSA');
  return body;
}
