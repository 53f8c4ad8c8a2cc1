"""What the page does in a browser: draw charts, search texts, and follow a run that goes on.

Text of a run reaches the document by the parser alone, escaped; nothing here writes markup.
"""

SCRIPT = """
'use strict';
(() => {
  const root = document.documentElement;
  root.classList.add('js');

  // Charts. `ast`: expressions are interpreted, so that the page needs no eval.
  const none = () => Promise.reject(new Error('the page loads nothing'));
  const loader = {load: none, sanitize: none, http: none, file: none};
  const options = {ast: true, actions: false, renderer: 'svg', logLevel: 1, loader,
    defaultStyle: false, tooltip: {disableDefaultStyle: true}};
  function draw(figure) {
    if (!window.vegaEmbed || figure.dataset.drawn) return;
    figure.dataset.drawn = 'yes';
    const spec = JSON.parse(figure.querySelector('script.spec').textContent);
    const folded = figure.querySelector('details');
    // A chart that is not drawn leaves its table open.
    window.vegaEmbed(figure.querySelector('.plot'), spec, options).then(
      () => { folded.open = false; }, (error) => console.warn(error.message));
  }
  const charts = () => document.querySelectorAll('figure.chart').forEach(draw);

  // Texts.
  const STEP = 20;
  let room = STEP;
  const by = (id) => document.getElementById(id);
  function filter() {
    const list = by('texts');
    if (!list) return;
    const wanted = by('search').value.toLocaleLowerCase().trim();
    const group = by('group') ? by('group').value : '';
    let found = 0;
    for (const item of list.children) {
      const fits = (!group || item.dataset.group === group) &&
        (!wanted || item.textContent.toLocaleLowerCase().includes(wanted));
      found += fits;
      item.hidden = !fits || found > room;
    }
    const seen = Math.min(found, room);
    by('found').textContent = `${found} of ${list.children.length} texts` +
      (found > seen ? `, the first ${seen} shown` : '');
    by('more').hidden = found <= room;
  }
  document.addEventListener('input', (event) => {
    if (['search', 'group'].includes(event.target.id)) { room = STEP; filter(); }
  });
  document.addEventListener('click', (event) => {
    const word = event.target.dataset.word;
    if (word) { by('search').value = word; room = STEP; filter(); }
    if (event.target.id === 'more') { room += 5 * STEP; filter(); }
  });

  // On paper everything that is folded is open.
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener('afterprint', () => { opened.forEach((one) => { one.open = false; }); });

  // A run that goes on: ask for the page again, and take over the parts that are new.
  function take(fresh) {
    for (const part of fresh.querySelectorAll('header, section')) {
      const own = part.id ? by(part.id) : document.querySelector('header');
      if (!own || own.dataset.seen === part.outerHTML) continue;
      if (own.contains(document.activeElement)) continue;
      const open = new Set([...own.querySelectorAll('details[open] > summary')]
        .map((one) => one.textContent));
      const markup = part.outerHTML;
      const next = document.adoptNode(part);
      next.dataset.seen = markup;
      own.replaceWith(next);
      for (const one of next.querySelectorAll('details > summary')) {
        if (open.has(one.textContent)) one.parentElement.open = true;
      }
    }
    filter();
    charts();
  }
  const live = Number(root.dataset.live || 0);
  async function follow() {
    try {
      const answer = await fetch(location.href, {cache: 'no-store'});
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      take(fresh);
      if (!fresh.documentElement.dataset.live) return;
      delete root.dataset.lost;
    } catch (error) {
      root.dataset.lost = 'yes';
    }
    setTimeout(follow, live * 1000);
  }

  filter();
  charts();
  if (live) setTimeout(follow, live * 1000);
})();
"""
