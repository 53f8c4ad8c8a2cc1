"""How the page looks: one style sheet, for wide and narrow screens, dark and light, and paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --raised: #f4f6f8; --ink: #1a2027; --muted: #54606c; --line: #d5dbe1;
  --own: #1f5fa8; --bar: #76828e; --third: #a8501c; --link: #1a5296;
  --warn-ink: #5c3d00; --warn: #fff3d6; --warn-line: #b98500;
  --bad-ink: #7c1420; --bad: #fde8ea; --bad-line: #c03040;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --raised: #1d2329; --ink: #e4e8ec; --muted: #a3aeb9; --line: #3a444e;
    --own: #7ab2f2; --bar: #97a3af; --third: #e8a070; --link: #8fbff5;
    --warn-ink: #ffe0a0; --warn: #33290f; --warn-line: #c79a2c;
    --bad-ink: #ffc4ca; --bad: #3a171c; --bad-line: #e06070;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.page { max-width: 80rem; margin: 0 auto; padding: 1.25rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 0 0 .75rem; }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: 0 0 .75rem; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--link); }
a:focus-visible, button:focus-visible, input:focus-visible, select:focus-visible,
summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--own);
  outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
.kicker, .remark { color: var(--muted); font-size: .875rem; }
.kicker { margin: 0; }
.claim { font-size: 1.05rem; }
nav { margin: 1.25rem 0 0; padding: .5rem 0; border-block: 1px solid var(--line); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; margin: 0;
  padding: 0; }
nav a { display: inline-block; padding: .25rem 0; }
section { margin: 2.25rem 0 0; padding-top: 1.5rem; border-top: 1px solid var(--line); }
nav + main > section:first-child { border-top: 0; margin-top: .5rem; }
.notice, .mark { padding: .5rem .75rem; border-left: 4px solid; max-width: none; }
.notice { margin: 0 0 .5rem; }
html[data-lost] header::before { display: block; font-weight: 600;
  content: "Not followed at the moment: privsyn watch does not answer."; }
.state { background: var(--raised); border-color: var(--own); }
.warn, .mark { background: var(--warn); color: var(--warn-ink); border-color: var(--warn-line); }
.covered { background: var(--raised); color: var(--ink); border-color: var(--own); }
.bad { background: var(--bad); color: var(--bad-ink); border-color: var(--bad-line); }
.notice + .claim { margin-top: 1rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
  gap: .75rem; }
.card { background: var(--raised); padding: .75rem; border-radius: 6px; min-width: 0;
  overflow-wrap: anywhere; }
.card > * { display: block; }
.card .name { font-size: .875rem; color: var(--muted); }
.card strong { font-size: 1.35rem; line-height: 1.3; font-weight: 600; }
.card.outside { border: 2px dashed var(--warn-line); grid-column: span 2; }
div.outside:not(.card) { border: 2px dashed var(--warn-line); border-radius: 6px;
  padding: 0 1rem 1rem; margin-top: 1.5rem; }
div.outside:not(.card) > h3 { margin-top: 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr));
  gap: .5rem 1.5rem; margin: 0 0 1rem; }
.facts > div { min-width: 0; border-top: 1px solid var(--line); padding-top: .35rem; }
dt { color: var(--muted); font-size: .875rem; }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
figcaption { margin-bottom: .5rem; max-width: 46rem; overflow-wrap: anywhere; }
.plot { width: 100%; min-width: 0; }
.plot svg { max-width: 100%; }
.plot.vega-embed { display: block; padding: 0; }
.scroll { overflow-x: auto; max-width: 100%; margin-bottom: 1rem; }
figcaption span { color: var(--muted); font-size: .875rem; }
figcaption strong { display: block; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  min-width: min(100%, 22rem); }
caption { text-align: left; color: var(--muted); font-size: .875rem; padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
tbody th { font-weight: 400; min-width: 4rem; max-width: 22rem; }
th, td { max-width: 30rem; overflow-wrap: break-word; }
.number { text-align: right; }
td.number { white-space: nowrap; }
.stacked tbody th { min-width: 14rem; }
.stacked td:not(.number) { min-width: 5rem; }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; color: var(--link); padding: .2rem 0; }
code, pre { font: .875em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--raised); padding: .75rem; overflow: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
ul { padding-left: 1.25rem; margin: 0 0 1rem; }
li { overflow-wrap: anywhere; max-width: 46rem; }
.log { font-size: .875rem; }
.controls { display: none; flex-wrap: wrap; gap: .5rem .75rem; align-items: center;
  margin: 0 0 .5rem; }
.js .controls { display: flex; }
input, select, button { font: inherit; color: inherit; background: var(--paper);
  border: 1px solid var(--muted);
  border-radius: 4px; padding: .4rem .6rem; min-height: 2.75rem; max-width: 100%; min-width: 0; }
input[type=search] { flex: 1 1 12rem; }
select { flex: 1 1 10rem; }
button { cursor: pointer; background: var(--raised); }
.words { display: flex; flex-wrap: wrap; gap: .4rem; max-width: none; }
.words button { min-height: 2.25rem; padding: .2rem .6rem; font-size: .875rem; }
.texts { list-style: none; padding: 0; margin: 0 0 1rem; max-height: 32rem; overflow: auto;
  border-top: 1px solid var(--line); }
.js .texts { max-height: none; overflow: visible; }
.texts li { padding: .6rem 0; border-bottom: 1px solid var(--line); max-width: none;
  overflow: hidden; unicode-bidi: isolate; }
.texts .text { white-space: pre-line; }
.tag { display: block; color: var(--muted); font-size: .8125rem; }
[hidden] { display: none !important; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line);
  color: var(--muted); font-size: .875rem; }
#vg-tooltip-element { visibility: hidden; position: fixed; z-index: 10; padding: .4rem .6rem;
  max-width: 22rem;
  background: var(--paper); color: var(--ink); border: 1px solid var(--muted);
  border-radius: 4px; font-size: .8125rem; }
#vg-tooltip-element.visible { visibility: visible; }
#vg-tooltip-element td { border: 0; padding: 0 .5rem 0 0; }
@media (max-width: 34rem) {
  .page { padding: .9rem; }
  h1 { font-size: 1.4rem; }
  .cards { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .card strong { font-size: 1.15rem; }
  .facts { grid-template-columns: 1fr; }
  div.outside:not(.card) { padding: 0 .6rem .6rem; }
  tbody th { max-width: 11rem; }
  .stacked thead { display: none; }
  .stacked :is(table, caption, tbody, tr, th, td) { display: block; max-width: none; }
  .stacked tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .stacked :is(th, td) { border: 0; padding: .1rem 0; overflow-wrap: anywhere; }
  .stacked tbody :is(th, td) { min-width: 0; text-align: left; white-space: normal; }
  .stacked td::before { content: attr(data-label) ": "; color: var(--muted); }
}
@media print {
  :root {
    --paper: #ffffff; --raised: #f4f6f8; --ink: #1a2027; --muted: #54606c; --line: #d5dbe1;
    --own: #1f5fa8; --bar: #76828e; --third: #a8501c; --link: #1a5296;
    --warn-ink: #5c3d00; --warn: #fff3d6; --bad-ink: #7c1420; --bad: #fde8ea;
  }
  nav, .controls, button, .skip { display: none !important; }
  body { font-size: 11pt; }
  figure, .card, tr { break-inside: avoid; }
  .scroll, .texts { overflow: visible; max-height: none; }
  .texts li:nth-child(n+31) { display: none; }
  table { font-size: 8.5pt; }
}
"""
