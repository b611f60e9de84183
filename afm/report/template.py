"""The page's Jinja2 templates. A module, so that the import closure of the stage covers it."""

STYLE = """:root { color-scheme: light dark; --ink: #1d2129; --soft: #5a6270; --paper: #ffffff; --line: #d9dde3; --card: #f6f7f9; --link: #1f5a96;
  --thought: #e6e9ee; --plan: #dcebfa; --tool_call: #fde6cf; --observation: #f3f3f6; --reflection: #f6dff0;
  --suggested_answer: #e2f3d5; --double_check: #fdf3bf; --answer: #c4ebcb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --soft: #a2a9b5; --paper: #14171c; --line: #333a45; --card: #1c2027; --link: #8bbcf0;
    --thought: #2b303a; --plan: #1b3552; --tool_call: #4d3214; --observation: #22252d; --reflection: #47233f;
    --suggested_answer: #2a4018; --double_check: #453c0e; --answer: #17492a; }
  figure svg { filter: invert(0.9) hue-rotate(180deg); }
}
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; } h3 { margin-bottom: .4rem; }
nav a { margin-right: 1rem; display: inline-block; padding: .15rem 0; } p.lead { color: var(--soft); max-width: 60ch; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .7rem; background: var(--card); border-radius: .5rem; } figure svg { width: 100%; height: auto; }
.plot { min-width: 0; } .rows .scroll { max-height: 20rem; overflow-y: auto; }
figcaption { font-weight: 600; font-size: .95rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .6rem 0; padding: .5rem .8rem; } summary { cursor: pointer; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; background: var(--card); padding: .7rem; border-radius: .4rem; margin: .3rem 0; }
a { color: var(--link); } :focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
pre span, .key span { border-radius: .2rem; } .key span { padding: 0 .4rem; margin-right: .3rem; white-space: nowrap; display: inline-block; }
.masked { font-style: italic; text-decoration: underline dotted; text-underline-offset: .2em; }
.thought { background: var(--thought); }
.plan { background: var(--plan); }
.tool_call { background: var(--tool_call); }
.observation { background: var(--observation); }
.reflection { background: var(--reflection); }
.suggested_answer { background: var(--suggested_answer); }
.double_check { background: var(--double_check); }
.answer { background: var(--answer); }
"""
"""Style sheet of the page, and of others that show the same sections."""

SECTIONS = """{% for section in sections %}
<section id="{{ section.id }}" aria-labelledby="h-{{ section.id }}">
<h2 id="h-{{ section.id }}">{{ section.title }}</h2>
{% if section.note %}<p>{{ section.note }}</p>{% endif %}
{% for table in section.tables %}
{% if table.is_folded %}<details><summary>{{ table.caption }} ({{ table.rows | length }})</summary>{% endif %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.caption }}">
<table><caption>{{ table.caption }}</caption>
<thead><tr>{% for cell in table.head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>{% else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody></table>
</div>
{% if table.is_folded %}</details>{% endif %}
{% endfor %}
{% if section.plots %}<div class="plots">
{% for plot in section.plots %}
<div class="plot">
<figure id="{{ plot.name }}" role="img" aria-label="{{ plot.title }}. {{ plot.alt }}"><figcaption>{{ plot.title }}</figcaption>{{ plot.svg | safe }}</figure>
{% if plot.rows %}<details class="rows"><summary>{{ plot.title }} in numbers</summary>
<div class="scroll" tabindex="0" role="region" aria-label="{{ plot.title }} in numbers">
<table><thead><tr>{% for name in plot.rows[0] %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in plot.rows %}<tr>{% for value in row.values() %}<td>{{ value | number if value is number or value is none else value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>
</div></details>{% endif %}
</div>
{% endfor %}
</div>{% endif %}
{% if section.pairs %}
<p class="key">{% for role, name in roles.items() %}<span class="{{ role }}{% if role == 'observation' %} masked{% endif %}">{{ name }}</span>{% endfor %}
<br>Everything is trained on but what is <span class="observation masked">written by a tool</span>: the mask.</p>
{% for pair in section.pairs %}
<details{% if loop.first %} open{% endif %}><summary>{{ pair.question }} <em>({{ pair.answers | join(", ") }})</em></summary>
<div class="pair">
{% for name, run in (("SFT", pair.sft), ("RL", pair.rl)) %}
<div><h3>{{ name }}: {{ run.answer if run.answer is not none else "no answer" }}</h3>
<pre>{% for piece in run.segments | pieces %}<span{% if piece.role %} class="{{ piece.role }}{% if piece.is_masked %} masked{% endif %}"{% endif %}>{{ piece.text }}</span>{% endfor %}</pre></div>
{% endfor %}
</div></details>
{% endfor %}
{% endif %}
</section>
{% endfor %}
"""
"""Tables, plots and trajectories of `sections`."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AFM Pipeline report</title>
<style>
{{ style | safe }}</style>
</head>
<body>
<header>
<h1>From teacher trajectories to an agent foundation model</h1>
<p class="lead">Every number on this page was measured by the stages of this run. Teacher: {{ teacher }}.</p>
<nav aria-label="Sections">{% for section in sections %}<a href="#{{ section.id }}">{{ section.title }}</a>{% endfor %}</nav>
</header>
<main>
{% include "sections" %}
</main>
</body>
</html>
"""
