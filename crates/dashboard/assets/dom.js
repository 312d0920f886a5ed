// Elements and figures. Text from the mesh only ever becomes a text node: nothing here parses HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
}

/** An HTML element. Children that are strings become text. */
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Fetches a page of data; an error says why there is none. */
export async function load(path) {
  const response = await fetch(path, { cache: 'no-store' });
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  return response.json();
}

/** `0.4/s`, `12/s`, `1.2k/s`. */
export function rate(value) {
  if (!value) return '0/s';
  if (value < 0.095) return '<0.1/s';
  if (value < 9.95) return `${value.toFixed(1)}/s`;
  return value < 999.5 ? `${Math.round(value)}/s` : `${(value / 1000).toFixed(1)}k/s`;
}

/** `<1 ms`, `12 ms`, `1.4 s`. */
export function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1) return '<1 ms';
  if (ms < 999.5) return `${ms < 9.95 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(1)} s`;
}

/** `1.2 kB/s`. */
export function bytes(value) {
  if (value < 999.5) return `${Math.round(value)} B/s`;
  if (value < 999500) return `${(value / 1e3).toFixed(1)} kB/s`;
  return `${(value / 1e6).toFixed(1)} MB/s`;
}

/** `0 %`, `0.3 %`, `12 %`. */
export function percent(share) {
  if (!share) return '0 %';
  const value = share * 100;
  return value < 0.1 ? '<0.1 %' : `${value < 9.95 ? value.toFixed(1) : Math.round(value)} %`;
}

/** The time of day. */
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

/** `3 s`, `12 min`, `4 h`, `9 d`. */
export function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export const plural = (count, one) => `${count} ${one}${count === 1 ? '' : 's'}`;

const MODES = {
  mutual: ['closed', 'mutual TLS'],
  tls: ['half', 'TLS without a client identity'],
  mixed: ['half', 'partly plain text'],
  plain: ['open', 'plain text'],
};

/** How an edge is secured, in words. */
export const secured = (mode) => MODES[mode]?.[1] ?? 'not known';

/** A lock of 12 by 14: closed, half open, or open; with its shape, not its colour alone, as the sign. */
export function lock(mode) {
  const state = MODES[mode]?.[0];
  if (!state) return null;
  const shackle = { closed: 'M3 6V4a3 3 0 0 1 6 0v2', half: 'M3 6V4a3 3 0 0 1 6 0', open: 'M3 6V3a3 3 0 0 1 5.6-1.5' }[state];
  const strike = state === 'open' ? svg('path', { d: 'M0 14L12 0' }) : null;
  return svg('g', { class: `lock ${state}`, 'data-lock': mode },
    svg('title', {}, secured(mode)), svg('path', { d: shackle }), svg('rect', { class: 'body', x: 1.5, y: 6, width: 9, height: 7, rx: 1.5 }), strike);
}

/** The sign of a node's health: a disc, a triangle or a cross. */
export function mark(health) {
  const shapes = {
    healthy: 'M6 1a5 5 0 1 1 0 10a5 5 0 1 1 0-10z',
    degraded: 'M6 1L11.5 11H.5z',
    failing: 'M2.5 1L6 4.5 9.5 1 11 2.5 7.5 6 11 9.5 9.5 11 6 7.5 2.5 11 1 9.5 4.5 6 1 2.5z',
    unknown: 'M1 5h10v2H1z',
  };
  return svg('path', { class: `mark ${health}`, d: shapes[health] ?? shapes.unknown });
}

/** A sign for a line of text. */
export const icon = (shape) => (shape ? svg('svg', { viewBox: '-2 -1 16 16', 'aria-hidden': 'true' }, shape) : el('span'));
