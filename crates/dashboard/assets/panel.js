// The panel beside the graph: a workload, or the calls between two nodes.

import { bytes, clock, duration, el, icon, load, lock, mark, percent, plural, rate, secured, span } from './dom.js';

const KINDS = {
  workload: 'workload', gateway: 'gateway', without_proxy: 'workload without a proxy', service: 'Service without an endpoint',
  external: 'host outside the mesh', outside: 'clients outside the mesh', unrouted: 'requests that no route matched',
};

const tile = (value, name, kind = '') => el('div', { class: `tile ${kind}` }, el('b', {}, value), el('span', {}, name));
const kindOf = (share) => (share >= 0.05 ? 'bad' : share > 0 ? 'warn' : 'good');

function heading(title, sub, close) {
  return [el('div', { class: 'heading' }, el('h2', {}, title), el('button', { type: 'button', 'aria-label': 'Close', onclick: close }, '✕')),
    el('p', { class: 'sub' }, sub)];
}

function tiles(traffic) {
  const rows = [];
  const tcp = traffic.bytes_received + traffic.bytes_sent;
  if (traffic.requests || !tcp) {
    rows.push(tile(rate(traffic.requests), 'requests'), tile(percent(traffic.error_share), 'failed', traffic.requests ? kindOf(traffic.error_share) : ''));
    if (traffic.client_error_share > 0) rows.push(tile(percent(traffic.client_error_share), '4xx'));
    rows.push(tile(duration(traffic.p50_ms), 'p50'), tile(duration(traffic.p95_ms), 'p95'), tile(duration(traffic.p99_ms), 'p99'));
  }
  if (tcp) rows.push(tile(bytes(traffic.bytes_received), 'received'), tile(bytes(traffic.bytes_sent), 'sent'));
  return el('div', { class: 'tiles' }, ...rows);
}

function figures(edge) {
  const { traffic } = edge;
  if (!edge.active) return [edge.total ? 'idle' : 'refused'];
  if (!traffic.requests) return [bytes(traffic.bytes_received + traffic.bytes_sent)];
  const bad = traffic.error_share > 0 ? el('span', { class: 'bad' }, ` ✕ ${percent(traffic.error_share)}`) : null;
  return [[rate(traffic.requests), traffic.p50_ms === null ? '' : duration(traffic.p50_ms)].filter(Boolean).join(' · '), bad];
}

/** Edges of a node, as links to the node at the other end. */
function edgeRows(edges, other, names) {
  if (!edges.length) return el('p', { class: 'none' }, 'none');
  const row = (edge) => {
    const more = [edge.protocol, edge.service, secured(edge.security.mode), edge.last_error && `last error: ${edge.last_error}`];
    return el('li', {}, el('a', { href: `#graph/${encodeURIComponent(edge[other])}` }, icon(lock(edge.security.mode)),
      el('span', {}, names(edge[other])), el('span', { class: 'figures' }, ...figures(edge)), el('span', { class: 'more' }, more.filter(Boolean).join(' · '))));
  };
  return el('ul', { class: 'rows' }, ...edges.map(row));
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { text: of('--dim'), grid: of('--line'), accent: of('--accent'), bad: of('--bad'), warn: of('--warn'), good: of('--good') };
}

/** A chart of some columns of a history. */
function chart(holder, history, columns) {
  const look = colours();
  const axis = { stroke: look.text, grid: { stroke: look.grid, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  const series = columns.map(({ label, colour, dash, value }) => ({
    label, stroke: look[colour], width: 1.6, dash, points: { show: false }, value: (_, raw) => (raw === null ? '–' : value(raw)),
  }));
  const { value } = columns[0];
  return new uPlot({
    width: Math.max(240, holder.clientWidth),
    height: 150,
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [{ ...axis, space: 76, values: (_, times) => times.map((time) => (history.step_s === 1 ? clock(time * 1000) : clock(time * 1000).slice(0, 5))) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? '0' : value(tick))) }],
    series: [{ label: 'at', value: (_, raw) => (raw === null ? '–' : clock(raw * 1000)) }, ...series],
  }, [history.time, ...columns.map(({ name }) => history[name])], holder);
}

const LATENCY = [
  { name: 'p50_ms', label: 'p50', colour: 'accent', value: duration }, { name: 'p95_ms', label: 'p95', colour: 'warn', dash: [6, 3], value: duration },
  { name: 'p99_ms', label: 'p99', colour: 'bad', dash: [2, 3], value: duration },
];
const REQUESTS = [
  { name: 'requests', label: 'requests', colour: 'accent', value: rate }, { name: 'errors', label: 'failed', colour: 'bad', dash: [5, 3], value: rate },
];
const BYTES = [{ name: 'bytes', label: 'bytes of TCP', colour: 'accent', value: bytes }];

function replica(one) {
  const busiest = Math.max(1, ...one.workers.map((worker) => worker.connections_active));
  const mean = one.workers.reduce((sum, worker) => sum + worker.connections_active, 0) / Math.max(1, one.workers.length);
  const bars = one.workers.map((worker) => {
    const bar = el('i', { title: `worker ${worker.worker}: ${plural(worker.connections_active, 'connection')}, ${percent(worker.busy_share)} busy` });
    bar.style.height = `${Math.round((worker.connections_active / busiest) * 100)}%`;
    return bar;
  });
  const live = { true: 'configuration is live', false: 'configuration is not live yet' }[one.live] ?? 'no stream to the control plane';
  const lines = [`${one.address} · ${live}${one.generation ? ` (generation ${one.generation})` : ''}`];
  if (!one.ready) lines.unshift(one.detail || 'not ready');
  if (one.restarts) lines.push(`restarted ${plural(one.restarts, 'time')}`);
  if (one.workers.length) {
    const open = one.workers.reduce((sum, worker) => sum + worker.connections_active, 0);
    lines.push(`${plural(one.workers.length, 'worker')}, ${plural(open, 'connection')}, busiest worker has ${(busiest / Math.max(mean, 1 / one.workers.length)).toFixed(1)} × the mean`);
  }
  for (const certificate of one.certificates) {
    const [age, left] = [Date.now() - Date.parse(certificate.valid_from), Date.parse(certificate.expires) - Date.now()];
    lines.push(`certificate ${certificate.name}: ${certificate.identities.join(', ')}, ${span(age / 1000)} old, ${left > 0 ? `expires in ${span(left / 1000)}` : 'expired'}`);
  }
  return el('li', {}, el('div', {}, icon(mark(one.ready ? 'healthy' : 'failing')), el('span', {}, one.pod), el('span', { class: 'bars' }, ...bars),
    ...lines.map((text) => el('span', { class: 'more' }, text))));
}

/** An object in force, with its place in the user's files. */
const object = (one) => el('li', {}, el('div', {}, el('span'), el('span', {}, `${one.kind} ${one.name}`), el('span', { class: 'figures' }, one.namespace),
  el('span', { class: 'more' }, el('code', {}, one.origin))));

export const finding = (one) => el('div', { class: `finding ${one.severity}` }, el('b', {}, `${one.severity}: `), one.message,
  el('p', {}, el('code', {}, `${one.file}${one.line ? `:${one.line}` : ''}`), ` ${one.code}`), one.help ? el('p', {}, one.help) : null);

export class Panel {
  constructor(root, close) {
    this.root = root;
    this.close = close;
    this.charts = [];
    this.range = 'recent';
    this.shown = null;
  }

  clear() {
    this.shown = null;
    this.destroyCharts();
    this.root.hidden = true;
    this.root.replaceChildren();
  }

  /** Redraws the charts, whose colours and widths are fixed when they are made. */
  redraw() {
    if (this.page) this.workload(this.page, this.names);
  }

  destroyCharts() {
    for (const one of this.charts) one.destroy();
    this.charts = [];
    this.page = null;
  }

  /** Shows a workload; keeps the scroll position when it is shown again. */
  async load(id, names) {
    this.shown = id;
    let page;
    try {
      page = await load(`/api/workload?id=${encodeURIComponent(id)}`);
    } catch (error) {
      if (this.shown !== id) return;
      this.destroyCharts();
      this.root.hidden = false;
      this.root.replaceChildren(...heading(id, '', this.close), el('p', { class: 'none' }, error.message));
      return;
    }
    if (this.shown === id) this.workload(page, names);
  }

  workload(page, names) {
    const top = this.root.scrollTop;
    const focus = this.root.contains(document.activeElement) ? document.activeElement.getAttribute('data-range') : null;
    this.destroyCharts();
    [this.page, this.names] = [page, names];
    this.root.hidden = false;
    const { node } = page;
    const sub = [KINDS[node.kind], node.namespace && `namespace ${node.namespace}`, node.app && `app ${node.app}`, node.version && `version ${node.version}`,
      node.replicas ? `${node.ready} of ${node.replicas} ready` : ''].filter(Boolean).join(' · ');
    const incoming = page.edges.filter((edge) => edge.to === node.id);
    const outgoing = page.edges.filter((edge) => edge.from === node.id);
    const holders = el('div');
    this.root.replaceChildren(...heading(node.name, sub, this.close),
      node.reason ? el('p', { class: `why ${node.health}` }, node.reason) : '',
      node.inbound ? tiles(node.inbound) : '', holders,
      el('h3', {}, 'Called by'), edgeRows(incoming, 'from', names), el('h3', {}, 'Calls'), edgeRows(outgoing, 'to', names),
      ...(page.replicas.length ? [el('h3', {}, 'Replicas'), el('ul', { class: 'rows' }, ...page.replicas.map(replica))] : []),
      ...(page.objects.length ? [el('h3', {}, 'Configuration'), el('ul', { class: 'rows' }, ...page.objects.map(object))] : []),
      ...(page.findings.length ? [el('h3', {}, 'Findings'), ...page.findings.map(finding)] : []),
      ...page.notes.map((note) => el('p', { class: 'sub' }, `${note.subject}: ${note.message}`)),
      node.replicas ? el('p', {}, el('a', { href: `#requests/${encodeURIComponent(node.id)}` }, 'Its recent failed and slow requests')) : '');
    if (node.inbound) this.drawCharts(holders, page);
    this.root.scrollTop = top;
    if (focus) this.root.querySelector(`[data-range="${focus}"]`)?.focus();
  }

  drawCharts(holders, page) {
    const history = page[this.range];
    const button = (range, text) => el('button', { type: 'button', 'data-range': range, 'aria-pressed': String(this.range === range), onclick: () => {
      this.range = range;
      this.redraw();
    } }, text);
    holders.append(el('div', { class: 'heading' }, el('h3', {}, 'Over time'), el('span', { class: 'switch' }, button('recent', '10 min'), button('hour', '1 h'))));
    if (history.time.length < 2) {
      holders.append(el('p', { class: 'none' }, 'It is recorded while somebody looks: wait a moment.'));
      return;
    }
    const isTcp = history.bytes.some((value) => value > 0) && !history.requests.some((value) => value > 0);
    for (const columns of isTcp ? [BYTES] : [REQUESTS, LATENCY]) {
      const holder = el('div', { class: 'chart' });
      holders.append(holder);
      this.charts.push(chart(holder, history, columns));
    }
  }

  /** Shows the calls between two nodes. */
  edge(pair, names) {
    this.shown = pair.key;
    this.destroyCharts();
    this.root.hidden = false;
    const parts = pair.edges.flatMap((edge) => {
      const { security } = edge;
      const facts = [['Security', secured(security.mode)], ['Client', security.client_identities.join(', ')], ['Server', security.server_identities.join(', ')],
        ['TLS', security.parameters.join(', ')], ['Refused', security.refused ? plural(security.refused, 'connection') : ''],
        ['Last error', edge.last_error], ['Since the start', `${edge.total} ${edge.protocol === 'tcp' ? 'connections' : 'requests'}`]];
      return [el('h3', {}, `${edge.protocol}${edge.service ? ` · ${edge.service}` : ''}`), tiles(edge.traffic),
        el('p', {}), el('dl', {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]))];
    });
    const link = (id) => el('a', { href: `#graph/${encodeURIComponent(id)}` }, names(id));
    const inside = (id) => !id.startsWith('namespace:');
    this.root.replaceChildren(...heading(`${names(pair.from)} → ${names(pair.to)}`, '', this.close),
      el('p', { class: 'sub' }, ...[pair.from, pair.to].filter(inside).flatMap((id, at) => [at ? ' · ' : '', link(id)])), ...parts);
  }
}
