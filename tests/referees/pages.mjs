// The pages of the authorization server in Chromium, as people see them: log-in, consent, account, errors; light
// and dark, on a desktop and on a phone, and without JavaScript. Each is looked over by axe-core, kept
// as a picture, and works to its end: the answer reaches a client that listens on loopback.
// pages.mjs URL PROVIDER_URL CONNECTED_URL: a server of a tenant with passwords, one with the provider "people", and
// one of the first tenant that needs an account at the upstream "people".
// CHROMIUM (default: chromium), REFEREE_SCREENSHOTS (default: a folder that is named at the end).
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync } from 'node:fs';
import { createHash, randomBytes } from 'node:crypto';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import axe from 'axe-core';
import { chromium } from 'playwright-core';
import { main } from './common.mjs';

const [url, providerUrl, connectedUrl] = process.argv.slice(2);
const SHAPES = {
  desktop: { viewport: { width: 1280, height: 800 } },
  phone: { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true },
};
// Pages that ask others for something would be found; and no name is looked up for long.
const NOWHERE_ELSE = '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1';
const HOSTILE = '<script>alert(1)</script><b>"Claude"</b>\u202Egro.elpmaxe \u0007'.padEnd(120, '!');
const folder = process.env.REFEREE_SCREENSHOTS ?? mkdtempSync(path.join(os.tmpdir(), 'lockgate-pages-'));
const found = [];

main(async () => {
  mkdirSync(folder, { recursive: true });
  const listener = await listening();
  const plain = await registered(url, { client_name: 'Referee', redirect_uris: [listener.url] });
  const hostile = await registered(url, { client_name: HOSTILE, redirect_uris: ['https://client.example/cb'] });
  const there = await registered(providerUrl, { client_name: 'Referee', redirect_uris: [listener.url] });
  // Root has no sandbox of Chromium's own; the pages are ours.
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--disable-gpu', NOWHERE_ELSE, ...(process.getuid() === 0 ? ['--no-sandbox'] : [])],
  });
  const whole = async (settings, name) => {
    // axe-core runs in the page: it cannot where nothing runs.
    const look = async (page, what) => {
      const file = `${what}-${name}`;
      await pictured(page, file);
      if (settings.javaScriptEnabled !== false) await judged(page, file);
    };
    for (const story of [
      (page) => passwords(page, look, plain, listener),
      (page) => strangers(page, look, hostile),
      (page) => account(page, look),
      (page) => mistakes(page, look, plain),
      (page) => provider(page, look, there, listener),
      (page) => connecting(page, look, plain, listener),
    ]) {
      const context = await browser.newContext(settings);
      await story(await opened(context));
      await context.close();
    }
  };
  try {
    for (const [shape, size] of Object.entries(SHAPES)) {
      for (const colorScheme of ['light', 'dark']) {
        await whole({ ...size, colorScheme }, `${shape}-${colorScheme}`);
      }
    }
    await whole({ ...SHAPES.desktop, javaScriptEnabled: false }, 'plain');
    await framed(browser, plain);
    await onward(browser, listener);
  } finally {
    await browser.close();
    listener.close();
  }
  console.log(`${found.length} pages in ${folder}`);
});

/** A page that notes what a page of ours must not do. */
async function opened(context) {
  const page = await context.newPage();
  page.complaints = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) page.complaints.push(message.text());
  });
  page.on('pageerror', (error) => page.complaints.push(String(error)));
  page.on('dialog', (dialog) => page.complaints.push(`dialog: ${dialog.message()}`));
  return page;
}

async function pictured(page, name) {
  await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true });
  found.push(name);
  // A status of ours that is an error is one of Chromium's own complaints.
  const complaints = page.complaints.filter((one) => !/status of 4\d\d/.test(one));
  assert.deepEqual(complaints, [], name);
}

/** What axe-core says of the page, and whether it fits. */
async function judged(page, name) {
  await page.evaluate(axe.source);
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document));
  assert.ok(passes.length > 10, `axe-core looked at ${passes.length} rules of ${name}`);
  const nodes = (one) => one.nodes.map((node) => node.html).join(' ');
  const wrong = violations.map((one) => `${one.impact} ${one.id}: ${nodes(one)}`);
  assert.deepEqual(wrong, [], name);
  const { wide, room } = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    room: window.innerWidth,
  }));
  assert.ok(wide <= room, `${name} is ${wide} wide in ${room}`);
}

/** Does what sends a form, and waits for what comes of it. */
async function sent(page, does) {
  const [answer] = await Promise.all([page.waitForNavigation(), does()]);
  return answer;
}

async function passwords(page, look, client, listener) {
  const answer = listener.next();
  await page.goto(client.ask());
  await look(page, 'log-in');
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('wrong');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'log-in-wrong');
  const body = await page.innerText('body');
  assert.ok(!body.includes('wrong password for'), 'nobody learns which users there are');
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('correct horse battery');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'consent');
  const said = await page.innerText('body');
  assert.ok(said.includes('Referee') && said.includes('127.0.0.1') && said.includes(url), said);
  assert.match(said, /this computer|this machine/i, 'a warning for loopback');
  await sent(page, () => page.getByRole('button', { name: /^allow/i }).click());
  const parameters = await answer;
  assert.deepEqual([...parameters.keys()].sort(), ['code', 'iss', 'state']);
}

/** A client that calls itself what it likes, and is told apart by the host its answers go to. */
async function strangers(page, look, client) {
  await page.goto(client.ask());
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('correct horse battery');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'consent-hostile');
  const said = await page.innerText('body');
  assert.ok(said.includes('client.example'), said);
  assert.ok(!/[\u202A-\u202E\u2066-\u2069\u0007]/.test(said), 'control characters of the name');
  assert.equal(await page.locator('b, script').count(), 0, 'markup of the name');
  const [request] = await Promise.all([
    page.waitForRequest((one) => one.url().startsWith('https://client.example/cb?')),
    page.getByRole('button', { name: /^deny/i }).click().catch(() => {}),
  ]);
  const parameters = new URL(request.url()).searchParams;
  assert.equal(parameters.get('error'), 'access_denied');
  assert.equal(parameters.get('state'), 'referee');
}

/** What a person has here: a secret that is set, replaced and removed, without a mouse, and a log-in that ends. */
async function account(page, look) {
  const { origin, pathname } = new URL(url);
  await page.goto(`${origin}/t/${pathname.split('/')[2]}/account`);
  await look(page, 'account-log-in');
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('correct horse battery');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'account');
  const secret = page.getByLabel('Token of the service', { exact: true });
  await secret.focus();
  await page.keyboard.type('a secret of the referee');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'account-set');
  assert.match(await page.innerText('[role=status]'), /saved/);
  assert.ok(!(await page.content()).includes('a secret of the referee'), 'the page shows the secret');
  await secret.focus();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.innerText), 'Replace');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.innerText), 'Remove');
  await sent(page, () => page.keyboard.press('Enter'));
  assert.match(await page.innerText('[role=status]'), /removed/);
  await keys(page, look);
  await sent(page, () => page.getByRole('button', { name: /^sign out/i }).click());
  assert.match(await page.innerText('h1'), /sign in/i);
}

/** A key of one's own, made by the keyboard alone, shown once, rotated and removed. */
async function keys(page, look) {
  await page.getByLabel('What it is for').focus();
  await page.keyboard.type(HOSTILE.slice(0, 60).replace('\u0007', ''));
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.name), 'all-servers');
  await page.keyboard.press('Space');
  const life = page.getByLabel('Good for');
  await life.selectOption({ label: '7 days' });
  await life.focus();
  await page.keyboard.press('Tab');
  const made = await sent(page, () => page.keyboard.press('Enter'));
  assert.equal(made.status(), 200);
  assert.equal(made.headers()['cache-control'], 'no-store');
  await look(page, 'account-key');
  const shown = await page.innerText('[role=status] code');
  assert.match(shown, /^lgk_[0-9A-Za-z]{49}$/);
  assert.equal(await page.locator('b, script').count(), 0, 'markup of the label');
  await page.goto(page.url());
  assert.ok(!(await page.content()).includes('lgk_'), 'the page shows the key again');
  await sent(page, () => page.getByRole('button', { name: /^rotate/i }).click());
  await look(page, 'account-key-rotated');
  assert.notEqual(await page.innerText('[role=status] code'), shown);
  await sent(page, () => page.getByRole('button', { name: /^remove the api key/i }).click());
  assert.match(await page.innerText('[role=status]'), /removed/);
}

async function mistakes(page, look, client) {
  const cases = {
    'error-client': { client_id: 'c_nobody' },
    'error-redirect': { redirect_uri: 'https://evil.example/cb' },
  };
  for (const [name, changes] of Object.entries(cases)) {
    const answer = await page.goto(client.ask(changes));
    assert.equal(answer.status(), 400, name);
    await look(page, name);
  }
  // A form of another browser, or of a browser that lost its cookies.
  await page.goto(client.ask());
  await page.context().clearCookies();
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('correct horse battery');
  const answer = await sent(page, () => page.keyboard.press('Enter'));
  assert.equal(answer.status(), 400, 'a form without its cookie');
  await look(page, 'error-form');
}

async function provider(page, look, client, listener) {
  const answer = listener.next();
  await page.goto(client.ask());
  await look(page, 'log-in-provider');
  await sent(page, () => page.getByRole('button', { name: /people/i }).click());
  await look(page, 'consent-provider');
  await sent(page, () => page.getByRole('button', { name: /^allow/i }).click());
  // Theirs: a name, then their own question.
  await page.locator('input[name=login]').fill('grace');
  await page.locator('input[name=password]').fill('x');
  await sent(page, () => page.locator('button[type=submit]').click());
  await sent(page, () => page.locator('button[type=submit]').click());
  const parameters = await answer;
  assert.deepEqual([...parameters.keys()].sort(), ['code', 'iss', 'state']);
}

/** An account at another service that is connected at consent, without a mouse, and disconnected on the account page. */
async function connecting(page, look, client, listener) {
  const answer = listener.next();
  await page.goto(client.ask({ resource: connectedUrl }));
  await page.getByLabel(/user ?name/i).fill('ada');
  await page.getByLabel(/password/i).fill('correct horse battery');
  await sent(page, () => page.keyboard.press('Enter'));
  await look(page, 'consent-connect');
  assert.match(await page.innerText('[role=group]'), /People is not connected/);
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.innerText), 'Connect People');
  await sent(page, () => page.keyboard.press('Enter'));
  // Theirs: a name, then their own question.
  await page.locator('input[name=login]').fill('grace');
  await page.locator('input[name=password]').fill('x');
  await sent(page, () => page.locator('button[type=submit]').click());
  await sent(page, () => page.locator('button[type=submit]').click());
  // Their pages want fonts from elsewhere.
  page.complaints.length = 0;
  await look(page, 'consent-connected');
  assert.match(await page.innerText('[role=group]'), /People is connected/);
  assert.equal(await page.getByRole('button', { name: /^connect/i }).count(), 0);
  await sent(page, () => page.getByRole('button', { name: /^allow/i }).click());
  const parameters = await answer;
  assert.deepEqual([...parameters.keys()].sort(), ['code', 'iss', 'state']);
  const { origin, pathname } = new URL(connectedUrl);
  await page.goto(`${origin}/t/${pathname.split('/')[2]}/account`);
  await look(page, 'account-connected');
  await sent(page, () => page.getByRole('button', { name: /^disconnect/i }).click());
  assert.match(await page.innerText('[role=status]'), /not connected/);
}

/** The callback of a client redirects on, as that of a site to its application; from both pages that lead there (A8f). */
async function onward(browser, listener) {
  const callback = http.createServer((request, answer) => {
    answer.writeHead(307, { location: listener.url + new URL(request.url, 'http://127.0.0.1').search });
    answer.end();
  });
  await new Promise((resolve) => callback.listen(0, '127.0.0.1', resolve));
  // With a secret its consent is remembered, so that the log-in leads to it at once.
  const client = await registered(url, {
    client_name: 'Referee',
    redirect_uris: [`http://127.0.0.1:${callback.address().port}/callback`],
    token_endpoint_auth_method: 'client_secret_basic',
  });
  const page = await browser.newPage();
  const logIn = async (request) => {
    await page.goto(request);
    await page.getByLabel(/user ?name/i).fill('ada');
    await page.getByLabel(/password/i).fill('correct horse battery');
    await sent(page, () => page.keyboard.press('Enter'));
  };
  const reached = async (how) => {
    const answer = listener.next();
    await how();
    assert.deepEqual([...(await answer).keys()].sort(), ['code', 'iss', 'state']);
    assert.ok(page.url().startsWith(listener.url), page.url());
  };
  await logIn(client.ask());
  await reached(() => sent(page, () => page.getByRole('button', { name: /^allow/i }).click()));
  await reached(() => logIn(client.ask({ prompt: 'login' })));
  await page.close();
  callback.close();
}

/** No page shows itself inside another (P82). */
async function framed(browser, client) {
  const trap = http.createServer((_, answer) => {
    answer.setHeader('content-type', 'text/html');
    answer.end(`<!doctype html><title>x</title><iframe src="${client.ask().replaceAll('&', '&amp;')}"></iframe>`);
  });
  await new Promise((resolve) => trap.listen(0, '127.0.0.1', resolve));
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${trap.address().port}/`);
  await page.waitForTimeout(500);
  const [, frame] = page.frames();
  assert.ok(!frame.url().startsWith(new URL(url).origin), `framed: ${frame.url()}`);
  await page.close();
  trap.close();
}

async function registered(resource, metadata) {
  const described = await (await fetch(wellKnown(resource, 'oauth-protected-resource'))).json();
  const [issuer] = described.authorization_servers;
  const as = await (await fetch(wellKnown(issuer, 'oauth-authorization-server'))).json();
  const answer = await fetch(as.registration_endpoint, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ token_endpoint_auth_method: 'none', ...metadata }),
  });
  const client = await answer.json();
  assert.equal(answer.status, 201, JSON.stringify(client));
  const challenge = createHash('sha256').update(randomBytes(32)).digest('base64url');
  const ask = (changes = {}) => {
    const request = new URL(as.authorization_endpoint);
    request.search = new URLSearchParams({
      response_type: 'code',
      client_id: client.client_id,
      redirect_uri: metadata.redirect_uris[0],
      state: 'referee',
      code_challenge: challenge,
      code_challenge_method: 'S256',
      prompt: 'consent',
      resource,
      ...changes,
    });
    return request.href;
  };
  return { ask };
}

function wellKnown(identifier, name) {
  const { origin, pathname } = new URL(identifier);
  return `${origin}/.well-known/${name}${pathname.replace(/\/$/, '')}`;
}

/** A client that waits on loopback. */
async function listening() {
  let heard;
  const server = http.createServer((request, answer) => {
    answer.setHeader('content-type', 'text/plain');
    answer.end('done');
    heard?.(new URL(request.url, 'http://127.0.0.1').searchParams);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const next = () =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error('no answer reached the client')), 20_000);
      heard = (parameters) => {
        if (!parameters.has('state')) return; // a browser asks for an icon, too
        clearTimeout(timer);
        resolve(parameters);
      };
    });
  return { url: `http://127.0.0.1:${server.address().port}/callback`, next, close: () => server.close() };
}
