// A proxy that adds an access token to each request, for suites that know none: it gets in like any
// client, prints the URL to use instead, and renews its token before that ends.
// bearer-proxy.mjs URL [--provider NAME]; ends with its standard input.
import http from 'node:http';
import { auth } from '@modelcontextprotocol/sdk/client/auth.js';
import { Memory, options, server } from './oauth.mjs';

const given = options();
const { issuer } = server(given);
const memory = new Memory();

await auth(memory, { serverUrl: given.url });
await auth(memory, { serverUrl: given.url, authorizationCode: memory.code(issuer) });
const renew = async () => {
  await auth(memory, { serverUrl: given.url });
  setTimeout(renew, (memory.held.expires_in * 1000) / 2).unref();
};
setTimeout(renew, (memory.held.expires_in * 1000) / 2).unref();

const target = new URL(given.url);
const proxy = http.createServer((near, answer) => {
  // The gateway compares Host exactly; everything else, as Origin, goes on as it came.
  const own = `127.0.0.1:${proxy.address().port}`;
  const host = near.headers.host === own ? target.host : near.headers.host;
  const headers = { ...near.headers, host, authorization: `Bearer ${memory.held.access_token}` };
  if (headers.origin === `http://${own}`) headers.origin = target.origin;
  const far = http.request(target.origin + near.url, { method: near.method, headers }, (response) => {
    answer.writeHead(response.statusCode, response.headers);
    answer.flushHeaders(); // a stream may have nothing to say for long
    response.pipe(answer);
  });
  far.on('error', () => answer.destroy());
  answer.on('close', () => far.destroy());
  near.pipe(far);
});
proxy.listen(0, '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${proxy.address().port}${target.pathname}`);
});
process.stdin.resume().on('end', () => process.exit(0));
