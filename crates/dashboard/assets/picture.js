// The graph: what is shown of the mesh, where it is placed (dagre), and how it is drawn.

import { bytes, byId, duration, lock, mark, percent, plural, rate, secured, svg } from './dom.js';

const NODE_HEIGHT = 54;
const LABEL = { width: 116, height: 22 };
/** With more nodes only one direction is tried. */
const MAX_TRIED = 120;
const MAX_PULSES = 60;
/** Areas that are narrower, in pixels, show at least this scale. */
const NARROW = 700;
const READABLE = 0.68;
const ORDER = ['unknown', 'mutual', 'tls', 'mixed', 'plain'];
const HEALTH = ['unknown', 'healthy', 'degraded', 'failing'];
const KINDS = {
  external: 'outside the mesh', outside: 'clients outside the mesh', without_proxy: 'no proxy', service: 'no endpoint',
  unrouted: 'requests without a route',
};
// Shares of failures from which an edge is drawn as a warning and as failing.
const WARNED = 0.001;
const FAILING = 0.05;

const canvas = document.createElement('canvas').getContext('2d');

function width(text, font) {
  canvas.font = `${font} system-ui, sans-serif`;
  return canvas.measureText(text).width;
}

/** Text that is cut to fit. */
function cut(text, room, font) {
  if (width(text, font) <= room) return text;
  let end = text.length;
  while (end > 1 && width(`${text.slice(0, end)}…`, font) > room) end -= 1;
  return `${text.slice(0, end)}…`;
}

const worst = (values, order) => values.reduce((a, b) => (order.indexOf(b) > order.indexOf(a) ? b : a), order[0]);

/** Edges between the same two nodes as one. */
function merge(edges) {
  const sum = (of) => edges.reduce((total, edge) => total + of(edge), 0);
  const requests = sum((edge) => edge.traffic.requests);
  const most = (name) => {
    const values = edges.map((edge) => edge.traffic[name]).filter((value) => value !== null);
    return values.length ? Math.max(...values) : null;
  };
  return {
    edges,
    requests,
    errors: requests ? sum((edge) => edge.traffic.requests * edge.traffic.error_share) / requests : 0,
    refusals: requests ? sum((edge) => edge.traffic.requests * edge.traffic.client_error_share) / requests : 0,
    p50: most('p50_ms'),
    p95: most('p95_ms'),
    bytes: sum((edge) => edge.traffic.bytes_received + edge.traffic.bytes_sent),
    active: edges.some((edge) => edge.active),
    mode: worst(edges.map((edge) => edge.security.mode), ORDER),
  };
}

/** The namespaces of a graph, sorted. */
export const namespaces = (graph) => [...new Set(graph.nodes.map((node) => node.namespace).filter(Boolean))].sort();

/** The nodes whose name, namespace or app has this text in it. */
export function matching(nodes, find) {
  const text = find.trim().toLowerCase();
  return nodes.filter((node) => [node.name, node.namespace, node.app].some((part) => part?.toLowerCase().includes(text)));
}

/** Some nodes, and those that they call or that call them. */
export function around(graph, nodes) {
  const found = new Set(nodes.map((node) => node.id));
  const edges = graph.edges.filter((edge) => found.has(edge.from) || found.has(edge.to));
  const shown = new Set([...found, ...edges.flatMap((edge) => [edge.from, edge.to])]);
  return { ...graph, nodes: graph.nodes.filter((node) => shown.has(node.id)), edges };
}

/** What is shown of a graph: namespaces that are hidden or folded, and edges without traffic, change it. */
export function select(graph, { hidden, folded, idle }) {
  const nodes = new Map();
  const places = new Map();
  for (const node of graph.nodes) {
    if (node.namespace && hidden.has(node.namespace)) continue;
    if (!folded.has(node.namespace)) {
      places.set(node.id, node.id);
      nodes.set(node.id, { ...node, members: 1 });
      continue;
    }
    const id = `namespace:${node.namespace}`;
    places.set(node.id, id);
    const folder = nodes.get(id) ?? { id, name: node.namespace, namespace: '', kind: 'folded', health: 'unknown', reason: '', members: 0 };
    nodes.set(id, { ...folder, members: folder.members + 1, health: worst([folder.health, node.health], HEALTH) });
  }
  const pairs = new Map();
  for (const edge of graph.edges) {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    if (!from || !to || (!edge.active && !idle) || (from === to && edge.from !== edge.to)) continue;
    const key = `${from} > ${to}`;
    if (!pairs.has(key)) pairs.set(key, { key, from, to, edges: [] });
    pairs.get(key).edges.push(edge);
  }
  return { nodes: [...nodes.values()], edges: [...pairs.values()].map((pair) => ({ ...pair, ...merge(pair.edges) })) };
}

function figures(edge) {
  if (!edge.active) return [];
  if (!edge.requests) return [[bytes(edge.bytes)]];
  if (edge.errors >= WARNED) return [[rate(edge.requests)], ['✕ ' + percent(edge.errors), 'bad']];
  if (edge.refusals >= WARNED) return [[rate(edge.requests)], ['4xx ' + percent(edge.refusals), 'soft']];
  return edge.p50 === null ? [[rate(edge.requests)]] : [[rate(edge.requests)], [duration(edge.p50), 'soft']];
}

function words(edge, names) {
  const traffic = edge.active ? figures(edge).map(([text]) => text).join(', ') : 'no traffic now';
  return `${names(edge.from)} calls ${names(edge.to)}: ${traffic}, ${secured(edge.mode)}`;
}

function detail(node) {
  if (node.kind === 'folded') return plural(node.members, 'workload');
  if (node.reason && node.health !== 'healthy') return node.reason;
  if (KINDS[node.kind]) return KINDS[node.kind];
  const parts = [node.kind === 'gateway' ? 'gateway' : node.version];
  if (node.inbound?.requests) parts.push(rate(node.inbound.requests), node.inbound.p50_ms === null ? '' : duration(node.inbound.p50_ms));
  else if (node.inbound && node.inbound.bytes_received + node.inbound.bytes_sent > 0) parts.push(bytes(node.inbound.bytes_received + node.inbound.bytes_sent));
  else if (node.replicas) parts.push(`${node.ready} of ${node.replicas} ready`);
  return parts.filter(Boolean).join(' · ');
}

/** The direction in which the graph is largest on the screen. */
function best(view, { width: w, height: h }, labels) {
  const scale = ({ layout }) => Math.min(w / layout.graph().width, h / layout.graph().height);
  const directions = view.nodes.length <= MAX_TRIED ? [false, true] : [w < h];
  const all = directions.map((vertical) => place(view, vertical, labels));
  return all.sort((a, b) => scale(b) - scale(a))[0];
}

/** Places nodes within their namespaces; without them if dagre cannot, as with some large graphs. */
function place(view, vertical, labels) {
  try {
    return placeAs(view, { vertical, labels, grouped: true });
  } catch {
    return placeAs(view, { vertical, labels, grouped: false });
  }
}

function placeAs(view, { vertical, labels, grouped }) {
  const layout = new dagre.graphlib.Graph({ compound: true });
  layout.setGraph({ rankdir: vertical ? 'TB' : 'LR', nodesep: 28, edgesep: 18, ranksep: labels ? 32 : 64, marginx: 16, marginy: 16 });
  layout.setDefaultEdgeLabel(() => ({}));
  const groups = new Set(grouped ? view.nodes.map((node) => node.namespace).filter(Boolean) : []);
  for (const group of groups) layout.setNode(`group ${group}`, { name: group });
  for (const node of view.nodes) {
    const text = Math.max(width(node.name, '600 13.5px'), width(detail(node), '11.5px') + 6);
    const box = Math.min(244, Math.max(148, text + 48));
    layout.setNode(node.id, { width: box, height: NODE_HEIGHT });
    if (groups.has(node.namespace)) layout.setParent(node.id, `group ${node.namespace}`);
  }
  for (const edge of view.edges) {
    layout.setEdge(edge.from, edge.to, labels ? { ...LABEL, labelpos: 'c' } : {});
  }
  dagre.layout(layout);
  return { layout, groups: [...groups] };
}

/** A smooth line through the points. */
function line(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  rest.forEach((point, at) => {
    const next = rest[at + 1];
    path += next ? `Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}` : `L${point.x} ${point.y}`;
  });
  return path;
}

function tip(points) {
  const [before, end] = points.slice(-2);
  const angle = (Math.atan2(end.y - before.y, end.x - before.x) * 180) / Math.PI;
  return `translate(${end.x} ${end.y}) rotate(${angle})`;
}

export class Picture {
  constructor(choose, fold) {
    this.root = byId('picture');
    this.choose = choose;
    this.fold = fold;
    this.structure = '';
    this.moved = false;
    this.box = { x: 0, y: 0, w: 100, h: 100 };
    this.drawn = { nodes: new Map(), edges: new Map() };
    this.watchPointer();
    new ResizeObserver(() => this.resized()).observe(this.root);
  }

  /** Shows a selection. Nodes stay where they are as long as the same nodes and edges are shown. */
  show(view, { labels, find, chosen }) {
    this.view = view;
    const area = { width: Math.max(1, this.root.clientWidth), height: Math.max(1, this.root.clientHeight) };
    // Nodes stay where they are unless the shape of the area changes much.
    const shape = Math.round(Math.log2(area.width / area.height));
    const structure = JSON.stringify([shape, labels, view.nodes.map((node) => [node.id, node.namespace]), view.edges.map((edge) => edge.key)]);
    if (structure !== this.structure) {
      this.structure = structure;
      this.build(view, area, labels);
      if (!this.moved) this.fit();
    }
    this.update(view, find, chosen);
  }

  build(view, area, labels) {
    const focused = document.activeElement?.getAttribute('data-key');
    const { layout, groups } = best(view, area, labels);
    this.size = layout.graph();
    this.layout = layout;
    const names = new Map(view.nodes.map((node) => [node.id, node.name]));
    this.names = (id) => names.get(id) ?? id;
    this.drawn = { nodes: new Map(), edges: new Map() };
    const edges = view.edges.map((edge, at) => this.drawEdge(edge, layout.edge(edge.from, edge.to), { at, labels }));
    const nodes = view.nodes.map((node) => this.drawNode(node, layout.node(node.id)));
    this.root.replaceChildren(...groups.map((group) => this.drawGroup(group, layout.node(`group ${group}`))),
      svg('g', {}, ...edges.map(({ wire }) => wire)), svg('g', {}, ...nodes), svg('g', {}, ...edges.map(({ label }) => label)));
    if (focused) this.root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  drawGroup(name, { x, y, width: w, height: h }) {
    const top = y - h / 2 - 16;
    const fold = () => this.fold(name);
    return svg('g', { class: 'group' }, svg('rect', { x: x - w / 2, y: top, width: w, height: h + 16, rx: 14 }),
      svg('text', { x: x - w / 2 + 14, y: top + 19, class: 'fold', role: 'button', tabindex: 0, 'aria-label': `Fold namespace ${name}`, onclick: fold, onkeydown: onEnter(fold) },
        cut(`▾ ${name}`, w - 24, '600 12px')));
  }

  drawNode(node, { x, y, width: w, height: h }) {
    const open = () => this.choose({ node });
    const sign = svg('g', { transform: 'translate(13 15)' });
    const name = svg('text', { class: 'name', x: 33, y: 26 }, cut(node.name, w - 44, '600 13.5px'));
    const line = svg('text', { class: 'detail', x: 33, y: 43 });
    const title = svg('title');
    const group = svg('g', { class: 'node', transform: `translate(${x - w / 2} ${y - h / 2})`, tabindex: 0, role: 'button', 'data-key': node.id,
      onclick: open, onkeydown: (event) => this.onKey(event, node.id, open) },
      title, svg('rect', { class: 'box', width: w, height: h, rx: 11 }), sign, name, line);
    this.drawn.nodes.set(node.id, { group, sign, line, title, room: w - 44 });
    return group;
  }

  drawEdge(edge, placed, { at, labels }) {
    const open = () => this.choose({ edge });
    const d = line(placed.points);
    const path = svg('path', { class: 'line', d, id: `wire-${at}` });
    const pulse = svg('g');
    const wire = svg('g', { class: 'edge', onclick: open }, svg('path', { class: 'hit', d }), path,
      svg('path', { class: 'tip', d: 'M0 0L-9 -4.5V4.5z', transform: tip(placed.points) }), pulse);
    const middle = labels ? placed : placed.points[Math.floor(placed.points.length / 2)];
    const content = svg('g');
    const plate = svg('rect', { class: 'plate', y: -11, height: 22, rx: 11 });
    const label = svg('g', { class: 'edge label', transform: `translate(${middle.x} ${middle.y})`, tabindex: 0, role: 'button', 'data-key': edge.key,
      onclick: open, onkeydown: onEnter(open) }, svg('title'), plate, content);
    this.drawn.edges.set(edge.key, { wire, path, label, plate, content, pulse, at, labels });
    return { wire, label };
  }

  update(view, find, chosen) {
    const found = new Set(matching(view.nodes, find).map((node) => node.id));
    for (const node of view.nodes) this.updateNode(node, { isDimmed: !found.has(node.id), isChosen: chosen === node.id });
    const pulses = view.edges.length <= MAX_PULSES;
    for (const edge of view.edges) {
      this.updateEdge(edge, { pulses, isDimmed: !found.has(edge.from) && !found.has(edge.to), isChosen: chosen === edge.key });
    }
  }

  updateNode(node, { isDimmed, isChosen }) {
    const drawn = this.drawn.nodes.get(node.id);
    const text = detail(node);
    drawn.group.setAttribute('class', ['node', node.kind, node.health, isDimmed && 'dimmed', isChosen && 'chosen'].filter(Boolean).join(' '));
    drawn.group.setAttribute('aria-label', `${node.name}${node.namespace ? ` in ${node.namespace}` : ''}, ${node.health}, ${text}`);
    drawn.sign.replaceChildren(mark(node.health));
    drawn.line.setAttribute('class', node.reason ? 'detail why' : 'detail');
    drawn.line.textContent = cut(text, drawn.room, '11.5px');
    drawn.title.textContent = [`${node.name}${node.namespace ? `.${node.namespace}` : ''}`, text].join('\n');
  }

  updateEdge(edge, { pulses, isDimmed, isChosen }) {
    const drawn = this.drawn.edges.get(edge.key);
    const state = !edge.active ? 'idle' : edge.errors >= FAILING ? 'failing' : edge.errors >= WARNED ? 'warned' : 'good';
    const classes = ['edge', state, isDimmed && 'dimmed', isChosen && 'chosen'].filter(Boolean).join(' ');
    drawn.wire.setAttribute('class', classes);
    drawn.label.setAttribute('class', `${classes} label`);
    drawn.label.setAttribute('aria-label', words(edge, this.names));
    drawn.label.querySelector('title').textContent = words(edge, this.names);
    drawn.path.setAttribute('stroke-width', edge.active ? Math.min(5, 1.4 + Math.log10(1 + edge.requests + edge.bytes / 1e4)).toFixed(2) : 1.4);
    this.label(drawn, edge);
    const moves = pulses && edge.active;
    if (moves !== Boolean(drawn.pulse.firstChild)) drawn.pulse.replaceChildren(...(moves ? [pulse(drawn.at)] : []));
  }

  label(drawn, edge) {
    const parts = drawn.labels ? figures(edge) : [];
    const text = parts.map(([part]) => part).join('  ');
    const sign = lock(edge.mode);
    const room = text ? width(text, '11.5px') + 4 : 0;
    const all = (sign ? 14 : 0) + room + 16;
    drawn.plate.setAttribute('x', -all / 2);
    drawn.plate.setAttribute('width', all);
    drawn.label.setAttribute('display', sign || text ? 'inline' : 'none');
    sign?.setAttribute('transform', `translate(${-all / 2 + 8} -7)`);
    const spans = parts.map(([part, kind], at) => svg('tspan', { class: kind, dx: at ? 6 : null }, part));
    drawn.content.replaceChildren(...(sign ? [sign] : []),
      svg('text', { class: 'figures', x: -all / 2 + 8 + (sign ? 16 : 0), y: 4 }, ...spans));
  }

  /** Arrow keys lead to the nearest node in their direction. */
  onKey(event, id, open) {
    onEnter(open)(event);
    const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (!dx && !dy) return;
    event.preventDefault();
    const here = this.layout.node(id);
    const far = (other) => {
      const [x, y] = [other.x - here.x, other.y - here.y];
      const along = x * dx + y * dy;
      return along <= 1 ? Infinity : along + 3 * Math.abs(x * dy + y * dx);
    };
    const nearest = this.view.nodes.filter((node) => node.id !== id).map((node) => [far(this.layout.node(node.id)), node.id])
      .sort((a, b) => a[0] - b[0])[0];
    if (nearest && nearest[0] < Infinity) this.drawn.nodes.get(nearest[1]).group.focus();
  }

  fit() {
    this.moved = false;
    if (!this.size || !Number.isFinite(this.size.width)) return;
    const { clientWidth: w, clientHeight: h } = this.root;
    // Small meshes are not blown up, and on a phone names stay readable: the rest is a drag away.
    const whole = Math.min(1.15, w / this.size.width, h / this.size.height);
    const scale = w < NARROW ? Math.max(whole, READABLE) : whole;
    const [width, height] = [w / scale, h / scale];
    this.box = { x: (this.size.width - width) / 2, y: Math.min(0, (this.size.height - height) / 2), w: width, h: height };
    this.apply();
  }

  zoom(factor, at = { x: 0.5, y: 0.5 }) {
    const { x, y, w, h } = this.box;
    const next = Math.min(20000, Math.max(120, w / factor));
    const real = w / next;
    this.box = { x: x + at.x * (w - next), y: y + at.y * (h - h / real), w: next, h: h / real };
    this.moved = true;
    this.apply();
  }

  resized() {
    if (this.moved) {
      this.box.h = (this.box.w * this.root.clientHeight) / Math.max(1, this.root.clientWidth);
      this.apply();
    } else {
      this.fit();
    }
  }

  apply() {
    const { x, y, w, h } = this.box;
    if (w > 0 && h > 0) this.root.setAttribute('viewBox', `${x} ${y} ${w} ${h}`);
  }

  watchPointer() {
    this.root.addEventListener('wheel', (event) => {
      event.preventDefault();
      const area = this.root.getBoundingClientRect();
      const at = { x: (event.clientX - area.left) / area.width, y: (event.clientY - area.top) / area.height };
      this.zoom(Math.exp(-event.deltaY / 400), at);
    }, { passive: false });
    const pointers = new Map();
    this.root.addEventListener('pointerdown', (event) => pointers.set(event.pointerId, event));
    this.root.addEventListener('pointermove', (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const distance = Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
      if (distance < 3 && !this.root.classList.contains('moving')) return;
      this.root.classList.add('moving');
      const scale = this.box.w / this.root.clientWidth;
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) {
        const length = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
        this.zoom(length(event) / Math.max(1, length(before)));
      } else {
        this.box.x -= (event.clientX - before.clientX) * scale;
        this.box.y -= (event.clientY - before.clientY) * scale;
        this.moved = true;
        this.apply();
      }
      pointers.set(event.pointerId, event);
    });
    const end = (event) => {
      pointers.delete(event.pointerId);
      // The click that follows a drag is none.
      setTimeout(() => this.root.classList.remove('moving'));
    };
    for (const name of ['pointerup', 'pointercancel', 'pointerleave']) this.root.addEventListener(name, end);
    this.root.addEventListener('click', (event) => {
      if (this.root.classList.contains('moving')) event.stopPropagation();
    }, true);
  }
}

const onEnter = (open) => (event) => {
  if (event.key !== 'Enter' && event.key !== ' ') return;
  event.preventDefault();
  open();
};

function pulse(at) {
  return svg('circle', { class: 'pulse', r: 2.6 },
    svg('animateMotion', { dur: '2.4s', repeatCount: 'indefinite', begin: `-${(at % 7) * 0.34}s` }, svg('mpath', { href: `#wire-${at}` })));
}
