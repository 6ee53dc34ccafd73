'use strict';

// How many moments a chart shows, and how many events are kept.
const MOMENTS = 60;
const EVENTS = 200;

const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

let before = null;
let rows = new Map();

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Bytes as people read them.
function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${count < 10 && at > 0 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

function kindOf(state) {
  if (state === 'Active') return 'active';
  return state === 'Down' ? 'down' : 'between';
}

// A line of what passed in each of the last moments.
class Chart {
  constructor() {
    this.points = [];
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('class', 'chart');
    this.svg.setAttribute('viewBox', `0 0 ${MOMENTS} 20`);
    this.svg.setAttribute('preserveAspectRatio', 'none');
    this.line = document.createElementNS(SVG, 'polyline');
    this.svg.append(this.line);
  }

  add(total) {
    if (this.last !== undefined) {
      this.points.push(Math.max(0, total - this.last));
      if (this.points.length > MOMENTS) this.points.shift();
    }
    this.last = total;
    const most = Math.max(1, ...this.points);
    const left = MOMENTS - this.points.length;
    const at = this.points.map((count, x) => `${left + x + 1},${(19 - 18 * count / most).toFixed(1)}`);
    this.line.setAttribute('points', at.join(' '));
    this.svg.setAttribute('aria-label', `at most ${bytes(most)} at a time`);
  }
}

function happened(text) {
  const item = element('li');
  const now = new Date();
  const time = element('time', now.toLocaleTimeString());
  time.dateTime = now.toISOString();
  item.append(time, text);
  $('events').prepend(item);
  while ($('events').children.length > EVENTS) $('events').lastChild.remove();
}

async function change(path, wish, button) {
  button.disabled = true;
  try {
    const answer = await fetch(path, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(wish),
    });
    if (!answer.ok) {
      const text = await answer.text();
      let message = text;
      try { message = JSON.parse(text).error; } catch { /* The text is the message. */ }
      happened(message);
    }
  } catch (error) {
    happened(`not done: ${error.message}`);
  } finally {
    button.disabled = false;
  }
}

// The row of this key, which is made once and kept, so that a choice in it stays.
function row(body, key, make) {
  let known = rows.get(key);
  if (!known) {
    known = make();
    known.row = element('tr');
    known.row.dataset.key = key;
    known.row.append(...known.cells);
    rows.set(key, known);
    body.append(known.row);
  }
  known.seen = true;
  return known;
}

function showVfs(state) {
  const body = $('vfs').tBodies[0];
  for (const vf of state.vfs) {
    const shown = row(body, `vf ${vf.name}`, () => {
      const chart = new Chart();
      const choice = element('select');
      const button = element('button', 'move');
      choice.setAttribute('aria-label', `hypervisor for ${vf.name}`);
      const cells = ['', '', '', '', 'number', 'code', 'code', 'number', 'number', ''].map((kind) => element('td', '', kind));
      cells[9].append(chart.svg);
      const move = element('td', undefined, 'change');
      move.append(choice, ' ', button);
      cells.push(move);
      const known = { cells, chart, choice, button };
      button.addEventListener('click', () => change('/migrate', { vm: known.holds, to: choice.value }, button));
      return known;
    });
    const { cells, chart, choice, button } = shown;
    shown.holds = vf.holds;
    const texts = [vf.name, vf.hypervisor, vf.holds ? vf.holds + (vf.connected ? ' (running)' : '') : '–', vf.state,
      vf.cluster ? `${vf.lid} (${vf.cluster})` : `${vf.lid}`, vf.guid, vf.pkeys.join(' '),
      bytes(vf.xmit_bytes), bytes(vf.rcv_bytes)];
    texts.forEach((text, at) => { if (cells[at].textContent !== text) cells[at].textContent = text; });
    cells[3].className = kindOf(vf.state);
    chart.add(vf.xmit_bytes + vf.rcv_bytes);
    const others = state.hypervisors.filter((name) => name !== vf.hypervisor);
    if ([...choice.options].map((it) => it.value).join() !== others.join()) {
      choice.replaceChildren(...others.map((name) => element('option', name)));
    }
    choice.disabled = button.disabled = !vf.holds || others.length === 0;
  }
  const names = ['', ...state.vfs.map((vf) => vf.name)];
  const select = $('capture-vf');
  if ([...select.options].map((it) => it.value).join() !== names.join()) {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...names.slice(1).map((name) => {
      const option = element('option', name);
      option.value = name;
      return option;
    }));
    select.value = names.includes(chosen) ? chosen : '';
  }
}

function showAdapters(state) {
  const body = document.querySelector('#adapters tbody');
  for (const adapter of state.adapters) {
    for (const port of adapter.ports) {
      const { cells } = row(body, `port ${port.guid}`, () => (
        { cells: ['', '', 'number', 'code', '', ''].map((kind) => element('td', '', kind)) }));
      const texts = [`${adapter.name}:${port.port}`, port.state, `${port.lid ?? 0}`, port.guid, port.rate ?? '–', port.cable ?? 'none'];
      texts.forEach((text, at) => { if (cells[at].textContent !== text) cells[at].textContent = text; });
      cells[1].className = kindOf(port.state);
    }
  }
  const warnings = $('warnings');
  if ([...warnings.children].map((it) => it.textContent).join() !== state.warnings.join()) {
    warnings.replaceChildren(...state.warnings.map((text) => element('li', text)));
  }
}

function showLinks(state) {
  const body = $('links').tBodies[0];
  for (const link of state.links) {
    const shown = row(body, `link ${link.node}:${link.port} ${link.peer}:${link.peer_port}`, () => {
      const chart = new Chart();
      const button = element('button');
      const cells = ['', '', '', '', 'number', '', ''].map((kind) => element('td', '', kind));
      cells[5].append(chart.svg);
      const cable = element('td', undefined, 'change');
      cable.append(button);
      cells.push(cable);
      const known = { cells, chart, button };
      button.addEventListener('click', () => {
        change('/link', { node: link.node, port: link.port, up: known.down }, button);
      });
      return known;
    });
    const { cells, chart, button } = shown;
    shown.down = link.state === 'Down';
    const errors = link.errors.map(([name, count]) => `${name} ${count}`).join(', ');
    const texts = [`${link.node}:${link.port}`, `${link.peer}:${link.peer_port}`, link.state, link.rate, bytes(link.bytes)];
    texts.forEach((text, at) => { if (cells[at].textContent !== text) cells[at].textContent = text; });
    cells[2].className = kindOf(link.state);
    cells[6].textContent = errors;
    chart.add(link.bytes);
    button.textContent = shown.down ? 'put in' : 'pull out';
  }
}

// What is different from the moment before.
function tell(old, state) {
  const places = (of) => new Map(of.vfs.filter((vf) => vf.holds).map((vf) => [vf.holds, vf]));
  const were = places(old);
  for (const [vm, vf] of places(state)) {
    const was = were.get(vm);
    if (was && was.name !== vf.name) {
      happened(`${vm} moved from ${was.hypervisor} (${was.name}) to ${vf.hypervisor} (${vf.name}), LID ${vf.lid}`);
    }
  }
  for (const vf of state.vfs) {
    const was = old.vfs.find((it) => it.name === vf.name);
    if (!was) { happened(`VF ${vf.name} is new`); continue; }
    if (was.state !== vf.state) happened(`port of ${vf.name}: ${was.state} → ${vf.state}`);
    if (was.connected !== vf.connected) happened(`VM at ${vf.name} ${vf.connected ? 'has come' : 'has gone'}`);
  }
  for (const vf of old.vfs) {
    if (!state.vfs.some((it) => it.name === vf.name)) happened(`VF ${vf.name} is gone`);
  }
  const name = (link) => `${link.node}:${link.port} – ${link.peer}:${link.peer_port}`;
  const links = new Map(old.links.map((link) => [name(link), link]));
  for (const link of state.links) {
    const was = links.get(name(link));
    if (was && was.state !== link.state) happened(`link ${name(link)}: ${was.state} → ${link.state}`);
  }
}

function show(state) {
  $('away').hidden = state.state === 'serving';
  if (state.state !== 'serving') {
    $('away').textContent = state.message;
    document.body.dataset.state = 'away';
    return;
  }
  document.body.dataset.state = 'serving';
  $('summary').textContent = `${state.version}, up ${state.uptime_s} s; ${state.switches} switches, ${state.vfs.length} VFs; `
    + (state.sm_lid ? `subnet manager at LID ${state.sm_lid}, ${state.sweeps} sweeps` : 'no subnet manager');
  if (before) tell(before, state);
  for (const known of rows.values()) known.seen = false;
  showVfs(state);
  showAdapters(state);
  showLinks(state);
  for (const [key, known] of rows) {
    if (!known.seen) { known.row.remove(); rows.delete(key); }
  }
  if (!before || before.drawing !== state.drawing) {
    const drawing = $('drawing');
    drawing.onload = () => { drawing.hidden = false; };
    // Where the subnet is too large to draw, the tables show it.
    drawing.onerror = () => { drawing.hidden = true; };
    drawing.src = `/topology.svg?of=${state.drawing}`;
  }
  before = state;
}

function aim() {
  const wish = new URLSearchParams({ seconds: $('capture-seconds').value });
  if ($('capture-vf').value) wish.set('vf', $('capture-vf').value);
  if ($('capture-data').checked) wish.set('data', 'true');
  $('capture').href = `/capture?${wish}`;
}

for (const id of ['capture-vf', 'capture-seconds', 'capture-data']) $(id).addEventListener('change', aim);

const source = new EventSource('/events');
source.addEventListener('rights', (event) => {
  document.body.classList.toggle('changes', JSON.parse(event.data).changes);
});
source.addEventListener('message', (event) => show(JSON.parse(event.data)));
source.addEventListener('error', () => show({ state: 'away', message: 'ibvswitch web does not answer' }));
