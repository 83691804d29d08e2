#!/usr/bin/env node
// A browser without a screen, for what people do while a client waits: it keeps cookies, logs in,
// picks an identity provider, says yes or no to consent, and follows redirects. It sends what a real
// one sends (Origin, Sec-Fetch-*), refuses what a real one refuses, and checks on each page of the
// authorization server what CONTRACT P81 to P83 ask.
//
// As a program, browser.mjs URL does all of it and ends at the client's own page; --until PREFIX
// prints the redirect there instead of following it. BROWSER_USERNAME, BROWSER_PASSWORD,
// BROWSER_PROVIDER and BROWSER_DECISION say who sits before it; BROWSER_TRACE names a file, to which
// one line of JSON is added. Others start it as $BROWSER.
import assert from 'node:assert/strict';
import { appendFileSync, realpathSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { fileURLToPath } from 'node:url';

const STEPS = 24;

export class Browser {
  constructor({ username, password, provider, decision } = {}) {
    this.username = username ?? 'ada';
    this.password = password ?? 'correct horse battery';
    this.provider = provider;
    this.decision = decision ?? 'allow';
    this.cookies = new Map(); // by host and name: a browser's cookies know no ports
    this.trace = [];
  }

  /**
   * Opens a page and does what it asks for. Ends with the redirect whose address begins with `until`,
   * which is not followed, or with the first page that asks for nothing.
   */
  async visit(url, { until } = {}) {
    const server = new URL(url).origin;
    let step = { method: 'GET', url: String(url) };
    const seen = new Map();
    for (let count = 0; count < STEPS; count += 1) {
      if (until && step.url.startsWith(until)) {
        assert.equal(step.method, 'GET', 'a redirect to a client is a GET');
        this.trace.push('to the client');
        return { landed: step.url, status: 0, body: '' };
      }
      const answer = await this.#exchange(step);
      const { pathname, origin } = new URL(step.url);
      const place = origin === server ? pathname : `provider ${pathname.replace(/[\w-]{20,}/, '…')}`;
      this.trace.push(`${step.method} ${place} ${answer.status}`);
      if (origin === server) checkPage(step, answer);
      const location = answer.headers.location;
      if (answer.status >= 300 && answer.status < 400) {
        assert.ok(location, `${answer.status} without Location from ${step.url}`);
        assert.ok(
          step.method === 'GET' || answer.status === 302 || answer.status === 303,
          `${answer.status} behind a POST sends the form on`,
        );
        step = { method: 'GET', url: new URL(location, step.url).href, from: step.from };
        continue;
      }
      const form = answer.status < 400 ? this.#fill(answer.body) : undefined;
      if (!form) return { landed: step.url, status: answer.status, body: answer.body };
      const key = JSON.stringify([form.action, form.what]);
      seen.set(key, (seen.get(key) ?? 0) + 1);
      assert.ok(seen.get(key) < 3, `asked again and again: ${text(answer.body)}`);
      const next = new URL(form.action || step.url, step.url);
      if (form.method === 'GET') {
        for (const [name, value] of form.fields) next.searchParams.append(name, value);
        step = { method: 'GET', url: next.href, from: step.url };
      } else {
        const policy = answer.headers['referrer-policy'];
        const body = new URLSearchParams(form.fields).toString();
        step = { method: 'POST', url: next.href, body, from: step.url, policy };
      }
    }
    throw new Error(`no end after ${STEPS} steps: ${this.trace.join(', ')}`);
  }

  /** What this person does on a page: the fields of the form to send, or nothing. */
  #fill(page) {
    const forms = formsOf(page);
    const named = (form, name) => form.controls.find((one) => one.name === name);
    const fixed = (form) =>
      form.controls
        .filter((one) => one.type === 'hidden' || (one.type === 'checkbox' && one.checked))
        .map((one) => [one.name, one.value]);
    for (const form of forms) {
      const choice = form.controls.find(
        (one) => one.name === 'decision' && one.type === 'submit' && one.value === this.decision,
      );
      if (choice) {
        const fields = [...fixed(form), ['decision', this.decision]];
        return { ...form, what: 'consent', fields };
      }
    }
    if (this.provider) {
      for (const form of forms) {
        const button = named(form, 'provider');
        const chosen = form.controls.find((o) => o.name === 'provider' && o.value === this.provider);
        if (!button || !chosen) continue;
        const fields = fixed(form).filter(([name]) => name !== 'provider');
        return { ...form, what: 'provider', fields: [...fields, ['provider', this.provider]] };
      }
    }
    for (const form of forms) {
      const secret = form.controls.find((one) => one.type === 'password');
      if (!secret) continue;
      const name = named(form, 'username') ?? named(form, 'login');
      assert.ok(name, 'a form with a password asks for a name too');
      const fields = [...fixed(form), [name.name, this.username], [secret.name, this.password]];
      return { ...form, what: 'log-in', fields };
    }
    // The provider's own question, which knows only yes.
    const other = forms.find((form) => named(form, 'prompt')?.value === 'consent');
    return other && { ...other, what: "provider's consent", fields: fixed(other) };
  }

  #exchange({ method, url, body, from, policy }) {
    const target = new URL(url);
    const headers = {
      host: target.host,
      accept: 'text/html,application/xhtml+xml,*/*;q=0.8',
      'accept-language': 'en',
      'user-agent': 'Mozilla/5.0 (X11; Linux x86_64) referee',
      'upgrade-insecure-requests': '1',
      'sec-fetch-dest': 'document',
      'sec-fetch-mode': 'navigate',
      'sec-fetch-site': !from ? 'none' : sameOrigin(from, url) ? 'same-origin' : 'same-site',
    };
    if (from || method === 'GET') headers['sec-fetch-user'] = '?1';
    const cookie = this.#cookies(target);
    if (cookie) headers.cookie = cookie;
    if (method === 'POST') {
      headers['content-type'] = 'application/x-www-form-urlencoded';
      headers['content-length'] = Buffer.byteLength(body);
      // Fetch, "append a request Origin header": under no-referrer a form's origin is "null".
      headers.origin = policy === 'no-referrer' ? 'null' : new URL(from).origin;
    }
    return new Promise((resolve, reject) => {
      const { request: send } = target.protocol === 'https:' ? https : http;
      const request = send(url, { method, headers, agent: false }, (response) => {
        const chunks = [];
        response.on('data', (chunk) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          for (const one of response.headers['set-cookie'] ?? []) this.#keep(target, one);
          const text = Buffer.concat(chunks).toString('utf8');
          resolve({ status: response.statusCode, headers: response.headers, body: text });
        });
      });
      request.setTimeout(30_000, () => request.destroy(new Error(`no answer from ${url}`)));
      request.on('error', reject);
      request.end(body);
    });
  }

  #cookies({ hostname, pathname }) {
    const fits = (one) => one.host === hostname && below(pathname, one.path);
    const found = [...this.cookies.values()].filter(fits);
    return found.map(({ name, value }) => `${name}=${value}`).join('; ');
  }

  #keep(target, line) {
    const [pair, ...attributes] = line.split(';').map((part) => part.trim());
    const at = pair.indexOf('=');
    const cookie = { name: pair.slice(0, at), value: pair.slice(at + 1), host: target.hostname };
    cookie.path = target.pathname.replace(/\/[^/]*$/, '') || '/';
    let gone = false;
    for (const attribute of attributes) {
      const [name, value = ''] = attribute.split('=');
      if (/^path$/i.test(name)) cookie.path = value || '/';
      if (/^domain$/i.test(name)) assert.equal(value.replace(/^\./, ''), target.hostname);
      if (/^max-age$/i.test(name)) gone ||= Number(value) <= 0;
      if (/^expires$/i.test(name)) gone ||= Date.parse(value) <= Date.now();
    }
    const key = `${cookie.host} ${cookie.path} ${cookie.name}`;
    if (gone) this.cookies.delete(key);
    else this.cookies.set(key, cookie);
  }
}

const sameOrigin = (one, other) => new URL(one).origin === new URL(other).origin;
const below = (path, base) =>
  path === base || path.startsWith(base.endsWith('/') ? base : `${base}/`);

/** What holds of every page and redirect of an authorization server, on loopback http or with https. */
function checkPage(step, { status, headers, body }) {
  const where = `${step.method} ${step.url} ${status}`;
  for (const line of headers['set-cookie'] ?? []) {
    assert.doesNotMatch(line, /;\s*domain=/i, `${where}: ${line}`);
    if (step.url.startsWith('https:')) assert.match(line, /^__Host-.*;\s*secure/i, `${where}: ${line}`);
    else assert.doesNotMatch(line, /;\s*secure|^__(Host|Secure)-/i, `${where}: not over http: ${line}`);
    assert.match(line, /;\s*httponly/i, `${where}: ${line}`);
    assert.match(line, /;\s*samesite=lax/i, `${where}: ${line}`);
  }
  assert.match(headers['cache-control'] ?? '', /no-store/, `${where}: cache-control`);
  assert.equal(headers['referrer-policy'], 'no-referrer', `${where}: referrer-policy`);
  if (status >= 300 && status < 400) return;
  assert.match(headers['content-type'] ?? '', /^text\/html; ?charset=utf-8$/i, where);
  const policy = headers['content-security-policy'] ?? '';
  assert.match(policy, /frame-ancestors 'none'/, `${where}: ${policy}`);
  assert.match(policy, /default-src 'none'/, `${where}: ${policy}`);
  assert.doesNotMatch(policy, /unsafe-|\*/, `${where}: ${policy}`);
  assert.equal(headers['x-content-type-options'], 'nosniff', where);
  assert.doesNotMatch(body, /<script|\son\w+=|javascript:/i, `${where}: a script`);
  assert.doesNotMatch(body, /(src|href)=["']?(https?:)?\/\//i, `${where}: somebody else's resource`);
}

/** The forms of a page, as far as these pages go: no nesting, every value in quotes. */
export function formsOf(page) {
  return [...page.matchAll(/<form\b([^>]*)>([\s\S]*?)<\/form>/gi)].map(([, head, inside]) => {
    const own = attributesOf(head);
    const controls = [...inside.matchAll(/<(input|button|select)\b([^>]*)>/gi)].map((found) => {
      const { name, value = '', type, checked } = attributesOf(found[2]);
      const fallback = found[1].toLowerCase() === 'button' ? 'submit' : 'text';
      return { name, value, type: (type ?? fallback).toLowerCase(), checked: checked !== undefined };
    });
    return { action: own.action ?? '', method: (own.method ?? 'get').toUpperCase(), controls };
  });
}

function attributesOf(tag) {
  const found = tag.matchAll(/([\w-]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?/g);
  return Object.fromEntries([...found].map(([, k, a, b, c]) => [k.toLowerCase(), plain(a ?? b ?? c ?? '')]));
}

const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: ' ' };
const plain = (value) =>
  value.replace(/&(?:#x([0-9a-f]+)|#(\d+)|(\w+));/gi, (whole, hex, number, name) => {
    if (hex) return String.fromCodePoint(Number.parseInt(hex, 16));
    if (number) return String.fromCodePoint(Number(number));
    return ENTITIES[name.toLowerCase()] ?? whole;
  });

/** What somebody reads on a page. */
export const text = (page) =>
  plain(page.replace(/<(style|head)\b[\s\S]*?<\/\1>/gi, ' ').replace(/<[^>]*>/g, ' '))
    .replace(/\s+/g, ' ')
    .trim();

async function asProgram() {
  const args = process.argv.slice(2);
  const at = args.indexOf('--until');
  const until = at < 0 ? undefined : args.splice(at, 2)[1];
  const { BROWSER_USERNAME, BROWSER_PASSWORD, BROWSER_PROVIDER, BROWSER_DECISION } = process.env;
  const browser = new Browser({
    username: BROWSER_USERNAME,
    password: BROWSER_PASSWORD,
    provider: BROWSER_PROVIDER,
    decision: BROWSER_DECISION,
  });
  let outcome;
  try {
    const { landed, status, body } = await browser.visit(args[0], { until });
    outcome = { landed, status, said: until ? undefined : text(body).slice(0, 500) };
    if (until) console.log(landed);
  } catch (error) {
    outcome = { error: String(error.stack ?? error) };
    console.error(error);
    process.exitCode = 1;
  }
  if (process.env.BROWSER_TRACE) {
    const line = JSON.stringify({ ...outcome, trace: browser.trace });
    appendFileSync(process.env.BROWSER_TRACE, `${line}\n`);
  }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  await asProgram();
}
