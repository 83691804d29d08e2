// The documentation site in Chromium, opened from its files without a server: every page at the widths of a desktop
// and a phone, light and dark; no request goes elsewhere, nothing is wider than the window, the search finds, and
// axe-core has no complaint. docs.mjs FOLDER
// CHROMIUM (default: chromium), REFEREE_SCREENSHOTS (default: none are kept).
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import axe from 'axe-core';
import { chromium } from 'playwright-core';
import { main } from './common.mjs';

const folder = path.resolve(process.argv[2]);
const pictures = process.env.REFEREE_SCREENSHOTS;
const SHAPES = {
  'desktop-light': { viewport: { width: 1280, height: 900 }, colorScheme: 'light' },
  'phone-dark': { viewport: { width: 360, height: 740 }, colorScheme: 'dark', isMobile: true, hasTouch: true },
};
// Pages with every kind of part: their pictures are kept, and axe-core reads them, which takes seconds for each.
const LOOKED_AT = {
  'desktop-light': ['index', 'quickstart', 'concepts', 'tutorial-team', 'deploying', 'manifest-reference'],
  'phone-dark': ['index', 'concepts', 'tutorial-team', 'troubleshooting'],
};

main(async () => {
  const pages = readdirSync(folder).filter((name) => name.endsWith('.html') && !['404.html', 'toc.html'].includes(name));
  assert.ok(pages.length > 30, `${pages.length} pages`);
  if (pictures) mkdirSync(pictures, { recursive: true });
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--disable-gpu', '--allow-file-access-from-files', ...(process.getuid() === 0 ? ['--no-sandbox'] : [])],
  });
  const wrong = [];
  try {
    for (const [shape, settings] of Object.entries(SHAPES)) {
      const context = await browser.newContext(settings);
      const page = await context.newPage();
      page.on('request', (request) => {
        if (!/^(file|data):/.test(request.url())) wrong.push(`${shape}: a request to ${request.url()}`);
      });
      page.on('console', (message) => {
        if (message.type() === 'error') wrong.push(`${page.url()}: ${message.text()}`);
      });
      page.on('pageerror', (error) => wrong.push(`${page.url()}: ${error}`));
      for (const name of pages) {
        await page.goto(pathToFileURL(path.join(folder, name)).href);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        if (wide > 0) wrong.push(`${shape}: ${name} is ${wide} px too wide`);
        const broken = await page.evaluate(() =>
          [...document.images].filter((one) => one.complete && one.naturalWidth === 0).map((one) => one.src),
        );
        if (broken.length) wrong.push(`${name}: pictures that do not show: ${broken}`);
        const plain = name.replace('.html', '');
        if (!LOOKED_AT[shape].includes(plain)) continue;
        if (pictures) await page.screenshot({ path: path.join(pictures, `docs-${plain}-${shape}.png`), fullPage: true });
        await page.evaluate(axe.source);
        const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document));
        assert.ok(passes.length > 10, `axe-core looked at ${passes.length} rules`);
        for (const { id, nodes } of violations) {
          wrong.push(`${shape}: ${name}: ${id}: ${nodes.length}: ${nodes[0].html.slice(0, 160)} ${nodes[0].failureSummary?.slice(0, 200)}`);
        }
      }
      await searched(page, wrong);
      await context.close();
    }
  } finally {
    await browser.close();
  }
  assert.deepEqual(wrong, []);
  console.log(`${pages.length} pages in ${Object.keys(SHAPES).length} shapes`);
});

/** The search finds words of every kind of page, without a server; and the button of the navigation works. */
async function searched(page, wrong) {
  for (const [words, target] of [
    ['http.max_connections', 'configuration-reference.html'],
    ['no such session', 'troubleshooting.html'],
    ['haproxy', 'tutorial-replicas.html'],
  ]) {
    await page.goto(`${pathToFileURL(path.join(folder, 'index.html')).href}?search=${encodeURIComponent(words)}`);
    const hit = page.locator(`#mdbook-searchresults a[href*="${target}"]`).first();
    await hit.waitFor({ timeout: 20_000 }).catch(() => wrong.push(`the search for ${words} does not find ${target}`));
  }
  await page.goto(pathToFileURL(path.join(folder, 'index.html')).href);
  const shown = () => page.locator('#mdbook-sidebar').evaluate((one) => one.getBoundingClientRect().right > 0);
  const before = await shown();
  await page.locator('#mdbook-sidebar-toggle').click();
  await page.waitForTimeout(600);
  if ((await shown()) === before) wrong.push('the button of the navigation does nothing');
}
