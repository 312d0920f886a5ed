// What a user sees of the dashboard, in headless Chromium: node dashboard.mjs URL SCREENSHOTS PLAYWRIGHT.
// The mesh has the workloads client and plain in namespace front, which call web in namespace shop, and a path that looks like HTML.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';

const [url, screenshots, playwright] = process.argv.slice(2);
const { chromium } = createRequire(path.join(playwright, 'package.json'))('./index.js');
const HTML = '<img src=x onerror=alert(1)>';
const WEB = '[data-key="shop/web"]';
const PATIENCE = 60_000;

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
const problems = [];

/** A page whose errors, dialogs and requests to others are problems. */
async function open(viewport) {
  const context = await browser.newContext({ viewport, colorScheme: 'light' });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on('console', (message) => message.type() === 'error' && !message.text().includes('ERR_FAILED') && problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(error.stack));
  page.on('dialog', (dialog) => problems.push(`a dialog: ${dialog.message()}`));
  page.on('request', (request) => request.url().startsWith(url) || problems.push(`a request to ${request.url()}`));
  await page.goto(url);
  return page;
}

const picture = (page, name) => page.screenshot({ path: path.join(screenshots, `${name}.png`) });
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

const steps = {
  async 'the graph has the calls, with their locks'(page) {
    await page.waitForSelector('[data-key="front/client > shop/web"] [data-lock="mutual"]');
    await page.waitForSelector('[data-key="front/plain > shop/web"] [data-lock="plain"]');
    await page.waitForFunction(() => document.querySelector('[data-key="front/client > shop/web"]').textContent.includes('/s'));
    assert.match(await page.textContent('#live'), /live on 2 of 2/);
    await picture(page, 'graph-light');
  },
  async 'a click leads to a workload'(page) {
    await page.click(WEB);
    await page.waitForSelector('#panel .chart canvas');
    assert.equal(await page.textContent('#panel h2'), 'web');
    const text = await page.textContent('#panel');
    for (const part of ['Replicas', 'certificate', 'spiffe://cluster.local/ns/shop/sa/default', 'configuration is live', 'mutual TLS', 'plain text']) {
      assert.ok(text.includes(part), `${part}: ${text}`);
    }
    await picture(page, 'workload-light');
    await page.keyboard.press('Escape');
    await page.waitForSelector('#panel', { state: 'hidden' });
  },
  async 'keys do what the mouse does'(page) {
    await page.focus('[data-key="front/client"]');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('#panel h2')?.textContent === 'client');
    await page.keyboard.press('Escape');
    await page.focus('[data-key="front/client"]');
    for (const key of ['ArrowRight', 'ArrowDown']) await page.keyboard.press(key);
    assert.notEqual(await page.evaluate(() => document.activeElement.dataset.key), 'front/client');
    await page.keyboard.press('/');
    await page.keyboard.type('client');
    await page.waitForSelector(`${WEB}.dimmed`);
    await page.keyboard.press('Escape');
    await page.waitForSelector(`${WEB}:not(.dimmed)`);
  },
  async 'it is light or dark as the system, or as chosen'(page) {
    const light = await background(page);
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.waitForSelector('html[data-theme="dark"]');
    assert.notEqual(await background(page), light);
    await page.click(WEB);
    await page.waitForSelector('#panel .chart canvas');
    await picture(page, 'workload-dark');
    await page.keyboard.press('Escape');
    await page.click('#theme');
    assert.equal(await background(page), light);
    await page.emulateMedia({ colorScheme: 'light' });
  },
  async 'names are text'(page) {
    await page.route('**/api/graph', async (route) => {
      const response = await route.fetch();
      const graph = await response.json();
      graph.nodes.find((node) => node.id === 'shop/web').name = HTML;
      await route.fulfill({ response, json: graph });
    });
    await page.waitForFunction(([web, html]) => document.querySelector(web)?.querySelector('title').textContent.startsWith(html), [WEB, HTML]);
    await page.goto(`${url}#requests`);
    await page.waitForFunction(() => document.querySelector('#requests').textContent.includes('/<img/src=x/onerror=alert(1)>'));
    assert.equal(await page.locator('main img').count(), 0);
    await picture(page, 'requests-light');
    await page.unroute('**/api/graph');
  },
  async 'findings name their files'(page) {
    await page.goto(`${url}#configuration`);
    await page.waitForFunction(() => /objects\.yaml:\d+/.test(document.querySelector('#configuration').textContent));
    await picture(page, 'configuration-light');
  },
  async 'a mesh that does not answer is named'(page) {
    await page.goto(`${url}#graph`);
    await page.route('**/api/*', (route) => route.abort());
    await page.waitForSelector('#banner:not([hidden])');
    assert.match(await page.textContent('#banner'), /does not answer since/);
    await page.unroute('**/api/*');
    await page.waitForSelector('#banner', { state: 'hidden' });
  },
  async 'a mesh without traffic explains itself'(page) {
    await page.route('**/api/graph', async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...(await response.json()), edges: [] } });
    });
    await page.waitForSelector('#empty:not([hidden])');
    assert.match(await page.textContent('#empty'), /No traffic yet/);
    await page.unroute('**/api/graph');
  },
};

const desk = await open({ width: 1440, height: 860 });
for (const [name, step] of Object.entries(steps)) {
  await step(desk);
  console.log(`ok: ${name}`);
}
const phone = await open({ width: 390, height: 844 });
await phone.waitForSelector(WEB);
const overflow = () => phone.evaluate(() => document.documentElement.scrollWidth);
assert.equal(await overflow(), 390);
await picture(phone, 'phone-graph');
await phone.focus(WEB);
await phone.keyboard.press('Enter');
await phone.waitForSelector('#panel .chart canvas');
assert.equal(await overflow(), 390);
await picture(phone, 'phone-workload');
console.log('ok: it fits a phone');
await browser.close();
assert.deepEqual(problems, []);
