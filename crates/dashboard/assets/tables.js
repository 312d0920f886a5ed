// The views beside the graph: recent requests, and the configuration.

import { clock, duration, el } from './dom.js';
import { finding } from './panel.js';

const notes = (all) => all.map((note) => el('p', { class: 'sub' }, el('b', {}, note.subject), `: ${note.message}`));

function requestTable(requests, names, empty) {
  if (!requests.length) return el('p', { class: 'none' }, empty);
  const row = (one) => {
    const status = one.status ? String(one.status) : 'none';
    const isBad = one.status === 0 || one.status >= 500;
    return el('tr', {},
      el('td', { class: 'narrow soft' }, clock(one.started_ms)),
      el('td', { class: 'narrow' }, el('a', { href: `#graph/${encodeURIComponent(one.node)}` }, names(one.node)), el('span', {}, one.direction === 'outbound' ? ' →' : one.direction === 'inbound' ? ' ←' : '')),
      el('td', { class: 'wide' }, `${one.method} ${one.authority}${one.path}`),
      el('td', { class: 'narrow' }, el('span', { class: isBad ? 'bad' : '' }, status), one.flags ? ` ${one.flags}` : ''),
      el('td', { class: 'n' }, duration(one.duration_us / 1000)),
      el('td', { class: 'wide soft' }, [one.cause, one.route && `route ${one.route}`, one.cluster].filter(Boolean).join(' · ')),
      el('td', { class: 'narrow' }, el('code', {}, one.id.slice(0, 13))));
  };
  const heads = ['Time', 'Proxy', 'Request', 'Status', 'Duration', 'Cause', 'Id'].map((name) => el('th', { class: name === 'Duration' ? 'n' : '' }, name));
  return el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...requests.map(row))));
}

/** The recent requests of the mesh, or of one workload. */
export function requests(root, page, { node, names }) {
  const whole = node ? el('p', { class: 'sub' }, `of ${names(node)} · `, el('a', { href: '#requests' }, 'of the whole mesh')) : el('p', { class: 'sub' }, 'The last that the proxies keep. ', el('code', {}, 'evenkeel explain --last --id ID'), ' shows what happened to one, with file and line.');
  const top = root.scrollTop;
  root.replaceChildren(el('div', { class: 'page' }, el('h2', {}, 'Recent requests'), whole,
    el('h3', {}, 'Failed'), requestTable(page.failed, names, 'None of the requests that the proxies keep has failed.'),
    el('h3', {}, 'Slowest'), requestTable(page.slow.slice(0, 30), names, 'No requests yet.'), ...notes(page.notes)));
  root.scrollTop = top;
}

const tile = (value, name, kind = '') => el('div', { class: `tile ${kind}` }, el('b', {}, value), el('span', {}, name));

/** Whether the configuration is live, what is wrong with it, and how the control plane is. */
export function configuration(root, status, objects) {
  const top = root.scrollTop;
  if (status.unreachable) {
    root.replaceChildren(el('div', { class: 'page' }, el('h2', {}, 'Configuration'), el('p', { class: 'why failing' },
      `The control plane cannot be reached since ${clock(status.unreachable_since_ms)}: ${status.unreachable}. Proxies keep the configuration that they have; changes wait.`)));
    return;
  }
  const all = status.live === status.proxies;
  const count = (severity) => status.findings.filter((one) => one.severity === severity).length;
  const tiles = el('div', { class: 'tiles' },
    tile(`${status.live} of ${status.proxies}`, 'proxies live', all ? 'good' : 'warn'), tile(String(status.generation), 'generation'),
    tile(duration(status.age_p50_ms), 'age p50'), tile(duration(status.age_p99_ms), 'age p99'), tile(String(status.pushes), 'pushes'),
    tile(String(status.in_flight), 'in flight', status.in_flight ? 'warn' : ''), tile(String(status.rejects), 'rejects', status.rejects ? 'bad' : ''),
    tile(String(count('error')), 'errors', count('error') ? 'bad' : ''), tile(String(count('warning')), 'warnings', count('warning') ? 'warn' : ''));
  const parts = [];
  if (status.late.length) parts.push(el('h3', {}, 'Not live, and why'), ...notes(status.late));
  if (status.not_ready.length) parts.push(el('h3', {}, 'Receive no traffic'), el('p', { class: 'sub' }, status.not_ready.join(', ')));
  parts.push(el('h3', {}, 'Findings'), ...(status.findings.length ? status.findings.map(finding) : [el('p', { class: 'none' }, 'No findings: every object is in force as written.')]));
  if (objects) {
    const row = (one) => el('tr', {}, el('td', { class: 'narrow soft' }, one.namespace), el('td', { class: 'narrow' }, one.kind), el('td', { class: 'wide' }, one.name),
      el('td', { class: 'wide' }, el('code', {}, one.origin)));
    const heads = ['Namespace', 'Kind', 'Name', 'Where'].map((name) => el('th', {}, name));
    parts.push(el('h3', {}, 'Objects in force'), el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...objects.objects.map(row)))));
    if (objects.left_out) parts.push(el('p', { class: 'none' }, `and ${objects.left_out} more`));
  }
  root.replaceChildren(el('div', { class: 'page' }, el('h2', {}, 'Configuration'),
    el('p', { class: 'sub' }, 'Age: from a change to its being applied, at the proxy where it took longest.'), tiles, ...parts));
  root.scrollTop = top;
}

/** The summary in the header. */
export function live(pill, status) {
  const set = (kind, text) => {
    pill.className = `pill ${kind}`;
    pill.textContent = text;
  };
  if (status.unreachable) set('bad', '✕ control plane away');
  else if (!status.proxies) set('', 'no proxy connected');
  else if (status.late.length) set('warn', `▲ live on ${status.live} of ${status.proxies}`);
  else set('good', `● live on ${status.live} of ${status.proxies}`);
  pill.title = status.unreachable ?? `generation ${status.generation}`;
}
