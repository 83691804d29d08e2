// A strict WHATWG EventSource on GET /mcp and on /sse: message events once each and never an empty
// one, also across a cut connection, after which it comes back by itself with Last-Event-ID.
import assert from 'node:assert/strict';
import { EventSource } from 'eventsource';
import { main, options, proxy, sleep, until } from './common.mjs';

const PROTOCOL = '2025-11-25';
const INITIALIZE = {
  protocolVersion: PROTOCOL,
  capabilities: {},
  clientInfo: { name: 'lockgate-eventsource', version: '1.0.0' },
};

let ids = 0;
const request = (method, params) => ({ jsonrpc: '2.0', id: ++ids, method, params });
const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };

/** Collects what an EventSource dispatches; an empty message event may only be a priming one. */
function listen(url, headers, whenEndpoint) {
  const seen = { messages: [], ids: [], opens: 0 };
  const source = new EventSource(url, {
    fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, ...headers } }),
  });
  source.addEventListener('open', () => (seen.opens += 1));
  source.addEventListener('endpoint', (event) => whenEndpoint?.(event.data));
  source.addEventListener('message', (event) => {
    if (event.data === '') {
      // 2025-11-25 transports: the priming event, which a strict client dispatches as a message.
      assert.notEqual(event.lastEventId, '', 'an empty message event without an id');
      return;
    }
    seen.messages.push(JSON.parse(event.data));
    seen.ids.push(event.lastEventId);
  });
  return { source, seen };
}

/** Makes the server say the backend's unsolicited notifications; the methods that must come. */
async function provoke(post, backend) {
  const methods = [];
  for (const { name, arguments: args, methods: named } of backend.unsolicited) {
    await post(request('tools/call', { name, arguments: args }));
    methods.push(...named);
  }
  return methods;
}

async function story({ between, post, seen, backend, method }) {
  const count = (wanted) => seen.messages.filter((one) => one.method === wanted).length;
  const check = async (rounds) => {
    for (const wanted of method) await until(wanted, () => count(wanted) >= rounds, 8000);
    await sleep(500);
    for (const wanted of method) assert.equal(count(wanted), rounds, `${wanted} ${rounds} times`);
  };
  await provoke(post, backend);
  await check(1);
  if (between.name === 'everything') return; // its updates come from a timer: not countable
  between.cutAll();
  await until('the new connection', () => seen.opens >= 2, 8000);
  await provoke(post, backend);
  await check(2);
  const unique = seen.ids.filter((id) => id !== '');
  assert.equal(new Set(unique).size, unique.length, 'event ids are unique');
}

async function overListener({ url, backend, name }) {
  const between = { ...(await proxy(url)), name };
  const headers = { 'mcp-protocol-version': PROTOCOL };
  const post = async (body) => {
    const accept = 'application/json, text/event-stream';
    const sent = { ...headers, accept, 'content-type': 'application/json' };
    const response = await fetch(url, { method: 'POST', headers: sent, body: JSON.stringify(body) });
    assert.ok(response.ok, `${body.method}: ${response.status}`);
    await response.text();
    return response;
  };
  const response = await post(request('initialize', INITIALIZE));
  headers['mcp-session-id'] = response.headers.get('mcp-session-id');
  await post(initialized);
  const { source, seen } = listen(between.url, headers);
  await until('the listener', () => seen.opens === 1);
  if (backend.subscribe) await post(request('resources/subscribe', { uri: backend.subscribe }));
  const method = backend.unsolicited.flatMap((one) => one.methods);
  await story({ between, post, seen, backend, method });
  source.close();
  between.close();
}

async function overSse({ url, backend, name }) {
  const between = { ...(await proxy(url.replace(/\/mcp$/, '/sse'))), name };
  const endpoints = [];
  const { source, seen } = listen(between.url, {}, (data) => endpoints.push(data));
  await until('the endpoint event', () => endpoints.length === 1);
  const target = new URL(endpoints[0], url).href;
  const answered = (id) => seen.messages.filter((one) => one.id === id && !one.method);
  const post = async (body) => {
    const sent = { 'content-type': 'application/json' };
    const response = await fetch(target, { method: 'POST', headers: sent, body: JSON.stringify(body) });
    assert.ok(response.ok, `${body.method}: ${response.status}`);
    await response.text();
    if (body.id !== undefined) await until(`answer ${body.id}`, () => answered(body.id).length > 0);
  };
  await post(request('initialize', { ...INITIALIZE, protocolVersion: '2024-11-05' }));
  await post(initialized);
  if (backend.subscribe) await post(request('resources/subscribe', { uri: backend.subscribe }));
  const method = backend.unsolicited.flatMap((one) => one.methods);
  await story({ between, post, seen, backend, method });
  for (const one of seen.messages) if (!one.method) assert.equal(answered(one.id).length, 1);
  assert.equal(new Set(endpoints).size, 1, 'the endpoint stays the same after a new connection');
  source.close();
  between.close();
}

main(async () => {
  const target = options();
  await overListener(target);
  await overSse(target);
});
