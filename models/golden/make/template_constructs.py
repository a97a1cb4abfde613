"""Constructs of Jinja2 that chat templates use, with what transformers renders.

    pip install transformers jinja2
    python3 models/golden/make/template_constructs.py > models/golden/template-constructs.json

Each entry of TEMPLATES is rendered by the environment that transformers' apply_chat_template uses; a template that
raises has `rendered` null and the exception's text as `error`.
"""

import json

from transformers.utils.chat_template_utils import _compile_jinja_template

ARGUMENTS = {"a": 1, "b": [1.5, True, None, "x'y"], "items": {"k": "v"}}
MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": " Hi <b>&'\"\n"},
    {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}]},
]

TEMPLATES = [
    '{{ messages[0].content }}',
    '{{ messages[2].content }}',
    '{{ messages[2] }}',
    '{{ messages[2].tool_calls[0].function.arguments }}',
    '{{ messages[2].tool_calls[0].function.arguments | tojson }}',
    '{{ messages[2].tool_calls[0].function.arguments | tojson(indent=2) }}',
    "{{ messages[2].tool_calls[0].function.arguments | tojson(separators=(',',':')) }}",
    '{{ messages[2].tool_calls[0].function.arguments | string }}',
    '{{ messages[2].tool_calls[0].function.arguments.items() | list }}',
    '{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{k}}={{v}};{% endfor %}',
    '{% for k, v in messages[2].tool_calls[0].function.arguments | items %}{{k}}={{v}};{% endfor %}',
    '{% for k, v in messages[2].tool_calls[0].function.arguments | dictsort %}{{k}}={{v}};{% endfor %}',
    '{{ messages[1].content | trim }}|{{ messages[1].content.strip() }}|{{ messages[1].content | e }}',
    '{{ 1e20 }} {{ 0.1+0.2 }} {{ 1/2 }} {{ 4/2 }} {{ 7//2 }} {{ -7//2 }} {{ 2**10 }} {{ 7 % 3 }} {{ 1.0 }} {{ 3|float }} {{ 1e-7 }}',
    "{{ messages is iterable }} {{ 'abc' is iterable }} {{ 'abc' is sequence }} {{ {} is mapping }} {{ {} is sequence }} {{ none is iterable }} {{ 1 is iterable }} {{ messages[0] is iterable }}",
    "{{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ 'a' is string }} {{ none is none }} {{ x is defined }} {{ true is boolean }}",
    "{{ messages[::-1][0].role }} {{ 'abc'[::-1] }} {{ 'abcdef'[1:3] }} {{ 'abc'[-1] }} {{ messages[-1].role }} {{ messages[1:]|length }}",
    "{{ messages|length }} {{ 'äöü'|length }} {{ 'abc'|upper }} {{ 'a b c'.split() }} {{ 'a,b'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'x'.join(['a','b']) }}",
    "{{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ 'a</think>b'.rsplit('</think>') }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x','a')) }} {{ 'abc'.endswith('c') }} {{ 'aXbX'.replace('X','-') }} {{ 'aXbX'.replace('X','-',1) }} {{ 'abc'.find('c') }} {{ 'Hello'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }}",
    "{{ 'xxabcxx'.strip('x') }} {{ 'xxabcxx'.lstrip('x') }} {{ 'xxabcxx'.rstrip('x') }} {{ '\\n a \\n'.rstrip('\\n') }}|",
    "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role','equalto','user') | list | length }} {{ messages | rejectattr('role','equalto','user') | map(attribute='role') | list }}",
    "{% set ns = namespace(a=1, b='x') %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }};{% endfor %}",
    '{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}',
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if not loop.last }};{% else %}none{% endfor %}",
    '  {% if true %}\n  a\n  {% endif %}\n  b\n{%- if true -%}\n c \n{%- endif %}\n\n',
    'a\n    {%- set x = 1 %}\n    {{ x }}\n{# comment #}\nb\n',
    "{{- 'x' -}}   \n  y {{ 'z' }}\n\nend\n",
    '{%+ if true %} a{% endif +%}\nb',
    "{% macro f(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}",
    '{{ undefined_thing }}|{{ undefined_thing.x }}',
    "{{ undefined_thing }}|{% if undefined_thing %}a{% else %}b{% endif %}|{{ undefined_thing is defined }}|{{ undefined_thing | default('d') }}|{{ messages[0].nope }}|{{ messages[0]['nope'] is defined }}|{{ messages[0].get('nope') }}|{{ messages[0].get('nope', 'd') }}",
    '{{ messages[0].nope.deeper }}',
    '{{ messages[9] }}|{{ messages[9] is defined }}',
    '{{ none.x }}',
    "{{ 'a' + 1 }}",
    "{{ 'a' + none }}",
    "{{ 'a' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1,2) }} {{ (1,) }} {{ {'a': 1, 'b': [1.0, 'x']} }}",
    "{{ 'x' in 'xyz' }} {{ 'role' in messages[0] }} {{ 1 in [1,2] }} {{ 'q' not in 'xyz' }} {{ not true }} {{ true and false or true }} {{ 1 if false }}|{{ 1 if false else 2 }}",
    "{{ messages[1].content | replace('Hi', 'Ho') }} {{ 'a\nb' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ 'abc' | first }} {{ [1,2,3] | last }} {{ [3,1,2] | sort }} {{ [1,2,3] | sum }} {{ [1,1,2] | unique | list }} {{ ['b','a'] | sort(reverse=true) }} {{ [1,2,3] | reverse | list }} {{ 3.7 | int }} {{ '5' | int }} {{ 3.14159 | round(2) }} {{ [1,2,3] | max }}",
    '{% generation %}g{% set z = 1 %}{% endgeneration %}{{ z }}|',
    '{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}',
    '{% set x %}block {{ 1 }}{% endset %}{{ x }}{{ x is string }}',
    '{% filter upper %}abc{% endfilter %}',
    '{% raw %}{{ x }}{% endraw %}',
    '{{ range(3) | list }} {{ range(1, 10, 3) | list }} {% for i in range(2) %}{{ i }}{% endfor %}',
    "{{ dict(a=1) }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'b':1,'a':2}.items() | list }}",
    '{{ \'line1\\nline2\'.splitlines() }} {{ \'a\' ~ 1 ~ 2.0 }} {{ \'tab\\tq"\' }} {{ \'é\' | tojson }} {{ \'<>&\' | tojson }} {{ \'é\' | tojson(ensure_ascii=true) }} {{ none | tojson }} {{ [1, 2.0, true] | tojson }}',
    '{{ messages | tojson }}',
    '{{ messages | tojson(indent=4) }}',
    '{{ tools is none }} {{ tools is not none }} {{ documents is defined }} {{ tools }}',
    "{{ raise_exception('boom ' ~ 1) }}",
    "{{ messages | length == 3 and messages[0]['role'] == 'system' }} {{ (messages|length) % 2 == 1 }} {{ loop is defined }}",
    '{{ \'a\\\\b\' }} {{ "it\'s" }} {{ \'multi\nline\' }} {{ [\'it\\\'s\', \'q"\', \'n\\n\'] }}',
    "{{ messages | groupby('role') | list | length }} {{ [[1,2],[3]] | map('first') | list }} {{ 'a-b_c' | replace('-', ' ') | title }} {{ ['a','b'] | batch(1) | list }}",
    "{{ 'abc' | list }} {{ {'a':1} | list }} {{ 'ABC'.isupper() }} {{ '12'.isdigit() }} {{ ' x '.strip() | length }} {{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ '1' == 1 }}",
    '{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{% if messages %}m{% endif %}{% if [] %}e{% elif {} %}f{% else %}g{% endif %}',
    "{{ messages[0] | length }} {{ messages[0] | first }} {{ messages[0].keys() | list }} {{ messages[0] | tojson }} {{ 'x' if messages[0].content is string else 'y' }} {{ messages[2].tool_calls is defined and messages[2].tool_calls is not none }} {{ messages[2].tool_calls is iterable and messages[2].tool_calls is not mapping }}",
    "{%- for m in messages %}\n    {{- '<' + m.role + '>\\n' }}\n    {%- if m.content is string %}\n{{ m.content }}\n    {%- endif %}\n{%- endfor %}\n",
    "{{ messages[0].content[0] }}{{ messages[0]['con' ~ 'tent'] }}{{ messages|map(attribute='content')|select('string')|list }} {{ messages|selectattr('tool_calls','defined')|list|length }} {{ messages|selectattr('content')|list|length }}",
    "{{ 'a\r\nb\rc' }}\r\nline\r\n",
    "{{ 'x'.removeprefix('x') }}",
    "{{ 'abc'.partition('b') }}",
    "{{ 'a b'.rsplit(' ', 1) }}",
    "{{ 'aXb'.rpartition('X') }}",
    "{{ {'a':1,'b':2} | items | list }}",
    "{{ 'é'.isalpha() }} {{ 'abc'.islower() }} {{ ' '.isspace() }}",
    "{{ 'abc'.count('b') }} {{ [1,1].count(1) }}",
    '{{ strftime_now is defined }}',
    "{{ 'a,b,c'.rsplit(',', 1)[0] }}",
    '{{ messages | last }}',
    "{{ '{:>5}|{:.1f}'.format('a', 2.55) }}",
    '{{ messages[1].content | tojson | length }}',
    "{{ 'ab' | batch(1) | list }}",
    '{{ [none, 1] | select | list }}',
    "{{ [1, 2] | join }} {{ [[1, none]] | join(',') }} {{ [true, 1.0, none] | join(',') }}",
    "{{ '' is defined }} {{ '' or 'x' }} {{ none or 'x' }} {{ [] and 1 }} {{ 0 or '' }}|",
    "{{ undefined_thing + 'a' }}",
    "{{ undefined_thing ~ 'a' }}",
    '{{ undefined_thing | length }}',
    '{{ undefined_thing | tojson }}',
    '{{ undefined_thing | trim }}|',
    '{{ none | trim }}|',
    '{{ none | length }}',
    '{% for x in undefined_thing %}{% endfor %}ok',
    '{{ 1 | trim }}|',
    "{{ 'x' | default('y') }} {{ '' | default('y') }}|{{ '' | default('y', true) }}",
    "{{ messages.foo }}|{{ 'abc'.foo }}|{{ 5 .foo }}",
    '{{ nofunc() }}',
    '{{ messages[0].content() }}',
    "{{ '5' + 5 | string }}",
    "{{ ('a' ~ 'b') | upper }} {{ -1 | abs }} {{ [1,2] | length > 1 }}",
]


def render(template):
    try:
        compiled = _compile_jinja_template(template)
        text = compiled.render(messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True)
        return {"template": template, "rendered": text, "error": None}
    except Exception as error:
        return {"template": template, "rendered": None, "error": f"{type(error).__name__}: {error}"}


document = {"messages": MESSAGES, "cases": [render(template) for template in TEMPLATES]}
print(json.dumps(document, ensure_ascii=False, indent=1))
