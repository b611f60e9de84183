"""The page's Jinja2 template. A module, so that the import closure of the stage covers it."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AFM Pipeline report</title>
<style>
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5a6270; --paper: #ffffff; --line: #d9dde3; --card: #f6f7f9;
  --policy: #e4efe0; --environment: #ececf2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --soft: #a2a9b5; --paper: #14171c; --line: #333a45; --card: #1c2027; --policy: #1f3324; --environment: #262a35; }
  figure svg { filter: invert(0.9) hue-rotate(180deg); }
}
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; } h3 { margin-bottom: .4rem; }
nav a { margin-right: 1rem; } p.lead { color: var(--soft); max-width: 60ch; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .7rem; background: var(--card); border-radius: .5rem; } figure svg { width: 100%; height: auto; }
figcaption { font-weight: 600; font-size: .95rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .6rem 0; padding: .5rem .8rem; } summary { cursor: pointer; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .82rem; background: var(--card); padding: .7rem; border-radius: .4rem; margin: .3rem 0; }
pre .policy { background: var(--policy); } pre .environment { background: var(--environment); font-style: italic; }
.key span { padding: 0 .4rem; border-radius: .2rem; } .key .policy { background: var(--policy); } .key .environment { background: var(--environment); font-style: italic; }
</style>
</head>
<body>
<header>
<h1>From teacher trajectories to an agent foundation model</h1>
<p class="lead">Every number on this page was measured by the stages of this run. Teacher: {{ teacher }}.</p>
<nav aria-label="Sections">{% for section in sections %}<a href="#{{ section.id }}">{{ section.title }}</a>{% endfor %}</nav>
</header>
<main>
{% for section in sections %}
<section id="{{ section.id }}" aria-labelledby="h-{{ section.id }}">
<h2 id="h-{{ section.id }}">{{ section.title }}</h2>
{% if section.note %}<p>{{ section.note }}</p>{% endif %}
{% for table in section.tables %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.caption }}">
<table><caption>{{ table.caption }}</caption>
<thead><tr>{% for cell in table.head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>{% else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody></table>
</div>
{% endfor %}
<div class="plots">
{% for plot in section.plots %}
<figure id="{{ plot.name }}" role="img" aria-label="{{ plot.title }}. {{ plot.alt }}"><figcaption>{{ plot.title }}</figcaption>{{ plot.svg | safe }}</figure>
{% endfor %}
</div>
{% if section.pairs %}
<p class="key">Text by <span class="policy">the policy</span> and by <span class="environment">the tools</span>; only the former is trained.</p>
{% for pair in section.pairs %}
<details{% if loop.first %} open{% endif %}><summary>{{ pair.question }} <em>({{ pair.answers | join(", ") }})</em></summary>
<div class="pair">
{% for name, run in (("SFT", pair.sft), ("RL", pair.rl)) %}
<div><h3>{{ name }}: {{ run.answer if run.answer is not none else "no answer" }}</h3>
<pre>{% for segment in run.segments %}<span class="{{ segment.author }}">{{ segment.text }}</span>{% endfor %}</pre></div>
{% endfor %}
</div></details>
{% endfor %}
{% endif %}
</section>
{% endfor %}
</main>
</body>
</html>
"""
