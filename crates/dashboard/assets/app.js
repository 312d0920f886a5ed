// The page: what is shown, how often it is read, keys, and light or dark.

import { byId, clock, el, icon, load, lock, mark, svg } from './dom.js';
import { Panel } from './panel.js';
import { Picture, around, matching, namespaces, select } from './picture.js';
import { configuration, live, requests } from './tables.js';

const GRAPH_MS = 1000;
const STATUS_MS = 2000;
const PANEL_MS = 2000;
/** With more nodes, namespaces are folded at first. */
const MANY_NODES = 80;
/** Of a large mesh so many of the nodes that are searched for are shown. */
const MANY_FOUND = 20;

const state = {
  graph: null, status: null, objects: null, objectsOf: null, view: 'graph', node: null, chosen: null, pair: null, find: '',
  hidden: new Set(), folded: new Set(), hasFolded: false, failed: new Map(),
};

const panel = new Panel(byId('panel'), () => close());
const picture = new Picture((chosen) => choose(chosen), (namespace) => fold(namespace));
const names = (id) => state.graph?.nodes.find((node) => node.id === id)?.name ?? id.replace(/^namespace:/, '');

function close() {
  const before = state.chosen;
  [state.chosen, state.pair] = [null, null];
  panel.clear();
  if (location.hash.startsWith('#graph/')) history.replaceState(null, '', '#graph');
  state.node = null;
  draw();
  if (before) document.querySelector(`[data-key="${CSS.escape(before)}"]`)?.focus();
}

function choose({ node, edge }) {
  if (edge) {
    [state.chosen, state.pair, state.node] = [edge.key, edge, null];
    panel.edge(edge, names);
    byId('panel').focus();
    draw();
  } else if (node.kind === 'folded') {
    fold(node.name);
  } else {
    location.hash = `graph/${encodeURIComponent(node.id)}`;
  }
}

function fold(namespace) {
  if (!state.folded.delete(namespace)) state.folded.add(namespace);
  draw();
}

function draw() {
  const { graph } = state;
  if (!graph || state.view !== 'graph') return;
  const all = namespaces(graph);
  if (!state.hasFolded && graph.nodes.length > MANY_NODES) all.forEach((name) => state.folded.add(name));
  state.hasFolded ||= graph.nodes.length > 0;
  drawNamespaces(all);
  const found = state.find.trim() ? matching(graph.nodes, state.find) : [];
  // What is searched for may be in a folded namespace. Of a large mesh only it and its neighbours are shown.
  const part = found.length && graph.nodes.length > MANY_NODES ? around(graph, found.slice(0, MANY_FOUND)) : graph;
  const view = select(part, { hidden: state.hidden, folded: found.length ? new Set() : state.folded, idle: byId('idle').checked });
  picture.show(view, { labels: byId('labels').checked, find: state.find, chosen: state.chosen });
  if (state.pair) {
    const pair = view.edges.find((edge) => edge.key === state.pair.key);
    if (pair) panel.edge(pair, names);
  }
  drawEmpty(graph);
}

function drawNamespaces(all) {
  const holder = byId('namespaces');
  const key = JSON.stringify([all, [...state.hidden]]);
  if (holder.dataset.key === key) return;
  holder.dataset.key = key;
  holder.replaceChildren(...all.map((name) => el('button', { type: 'button', class: 'chip', 'aria-pressed': String(!state.hidden.has(name)),
    title: `Show or hide namespace ${name}`, onclick: () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      draw();
    } }, name)));
}

function drawEmpty(graph) {
  const empty = byId('empty');
  const show = (title, text) => {
    empty.hidden = false;
    if (empty.dataset.key !== title) empty.replaceChildren(el('b', {}, title), el('span', {}, text));
    empty.dataset.key = title;
  };
  if (!graph.nodes.length) show('Nothing runs yet.', 'Workloads appear here as soon as they start.');
  else if (!graph.edges.length && !graph.proxies) show('No proxy answers yet.', 'Workloads are starting, or none of them has a proxy. Without a proxy there is nothing to see of their traffic.');
  else if (!graph.edges.length) show('No traffic yet.', 'Workloads run, and nobody has called one through its proxy. Call a gateway or a Service, and the call appears here within two seconds.');
  else empty.hidden = true;
}

function drawLegend() {
  const sign = (shape) => icon(shape);
  const line = (kind) => svg('svg', { viewBox: '0 0 30 10', width: 30, height: 10, 'aria-hidden': 'true' }, svg('g', { class: `edge ${kind}` }, svg('path', { class: 'line', d: 'M0 5H30', 'stroke-width': 2 })));
  const entries = [[sign(mark('healthy')), 'healthy'], [sign(mark('degraded')), 'degraded'], [sign(mark('failing')), 'failing'],
    [sign(lock('mutual')), 'mutual TLS'], [sign(lock('mixed')), 'partly plain text'], [sign(lock('plain')), 'plain text'],
    [line('good'), 'traffic'], [line('failing'), 'failures'], [line('idle'), 'idle']];
  for (const [shape] of entries) shape.setAttribute('width', shape.getAttribute('width') ?? 14);
  byId('legend').replaceChildren(...entries.map(([shape, text]) => el('li', {}, shape, text)));
}

/** The view and the node that the address names. */
function route() {
  const [view = 'graph', node = ''] = location.hash.slice(1).split('/');
  state.view = ['graph', 'requests', 'configuration'].includes(view) ? view : 'graph';
  state.node = node ? decodeURIComponent(node) : null;
  for (const name of ['graph', 'requests', 'configuration']) byId(name).hidden = name !== state.view;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.dataset.view === state.view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (state.view === 'graph' && state.node) {
    [state.chosen, state.pair] = [state.node, null];
    panel.load(state.node, names).then(() => byId('panel').focus({ preventScroll: true }));
  } else if (!state.pair || state.view !== 'graph') {
    [state.chosen, state.pair] = [null, null];
    panel.clear();
  }
  draw();
  refresh();
}

/** Reads a page and uses it; what cannot be read is named until it can be again. */
async function read(name, path, use) {
  let page = null;
  try {
    page = await load(path);
    state.failed.delete(name);
  } catch (error) {
    if (!state.failed.has(name)) state.failed.set(name, { since: Date.now(), reason: error.message });
  }
  drawBanner();
  if (page) use(page);
}

function drawBanner() {
  const [first] = state.failed.values();
  const banner = byId('banner');
  banner.hidden = !first && !state.status?.unreachable;
  if (first) banner.textContent = `The mesh does not answer since ${clock(first.since)}: ${first.reason}. Does evenkeel up still run? This page shows what was known then, and goes on by itself.`;
  else if (state.status?.unreachable) banner.textContent = `The control plane cannot be reached since ${clock(state.status.unreachable_since_ms)}: ${state.status.unreachable}. Proxies keep the configuration that they have.`;
}

const readGraph = () => read('graph', '/api/graph', (graph) => {
  state.graph = graph;
  draw();
});

const readStatus = () => read('status', '/api/status', (status) => {
  state.status = status;
  live(byId('live'), status);
  if (state.view === 'configuration') configuration(byId('configuration'), status, state.objects);
});

/** What only some views need. */
async function refresh() {
  if (state.view === 'requests') {
    const query = state.node ? `?id=${encodeURIComponent(state.node)}` : '';
    await read('requests', `/api/requests${query}`, (page) => requests(byId('requests'), page, { node: state.node, names }));
  } else if (state.view === 'configuration' && state.status) {
    // They change with the generation.
    if (state.objectsOf !== state.status.generation) {
      await read('objects', '/api/objects', (objects) => {
        if (!objects.unreachable) [state.objects, state.objectsOf] = [objects, state.status.generation];
      });
    }
    configuration(byId('configuration'), state.status, state.objects);
  } else if (state.view === 'graph' && state.node) {
    await panel.load(state.node, names);
  }
}

/** Repeats work while the page is visible; the next time begins when the last has ended. */
function every(ms, work) {
  const turn = async () => {
    try {
      if (!document.hidden) await work();
    } finally {
      setTimeout(turn, ms);
    }
  };
  turn();
}

function theme(next) {
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const chosen = next ?? localStorage.getItem('theme') ?? 'auto';
  localStorage.setItem('theme', chosen);
  document.documentElement.dataset.theme = chosen === 'auto' ? (dark ? 'dark' : 'light') : chosen;
  byId('theme').textContent = { auto: '◐ Auto', light: '○ Light', dark: '● Dark' }[chosen];
  panel.redraw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') {
    if (document.activeElement === byId('find') && state.find) {
      byId('find').value = state.find = '';
      draw();
    } else {
      close();
    }
    return;
  }
  if (event.target instanceof HTMLInputElement && event.target.type === 'search') return;
  const keys = {
    '/': () => byId('find').focus(), 1: () => { location.hash = 'graph'; }, 2: () => { location.hash = 'requests'; }, 3: () => { location.hash = 'configuration'; },
    '+': () => picture.zoom(1.25), '-': () => picture.zoom(0.8), 0: () => picture.fit(), t: () => byId('theme').click(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

byId('find').addEventListener('input', (event) => {
  state.find = event.target.value;
  draw();
});
for (const id of ['idle', 'labels']) byId(id).addEventListener('change', draw);
byId('zoom-in').addEventListener('click', () => picture.zoom(1.25));
byId('zoom-out').addEventListener('click', () => picture.zoom(0.8));
byId('zoom-fit').addEventListener('click', () => picture.fit());
byId('theme').addEventListener('click', () => theme({ auto: 'light', light: 'dark', dark: 'auto' }[localStorage.getItem('theme') ?? 'auto']));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => theme());
addEventListener('hashchange', route);
addEventListener('keydown', onKey);

theme();
drawLegend();
route();
every(GRAPH_MS, readGraph);
every(STATUS_MS, readStatus);
every(PANEL_MS, refresh);
