from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, StrictUndefined, Template, UndefinedError

from server.model.template_variables import variables_of

ENVIRONMENT = Environment(undefined=StrictUndefined, extensions=["jinja2.ext.loopcontrols"])


def variables(source: str) -> set[str]:
    return set(variables_of(ENVIRONMENT.parse(source)))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ a }}{{ b.c }}{{ d['e'] }}{{ range(f) }}", {"a", "b", "d", "f"}),
        ("{% set a = a %}{{ a }}", {"a"}),
        ("{% set a = 1 %}{{ a }}", set()),
        ("{% if x %}{% set a = 1 %}{% endif %}{{ a }}", {"x", "a"}),
        ("{% if x %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", {"x"}),
        ("{% if x %}{% set a = 1 %}{% elif y %}{% set a = 2 %}{% endif %}{{ a }}", {"x", "y", "a"}),
        ("{% if x %}{% set a = 1 %}{% elif a %}{% else %}{% endif %}", {"x", "a"}),
        ("{% if not a is defined %}{% set a = 1 %}{% endif %}{{ a }}", {"a"}),
        ("{% for i in x %}{% set a = i %}{{ a }}{{ loop.index }}{% endfor %}", {"x"}),
        ("{% for i in x %}{% set a = i %}{% endfor %}{{ a }}", {"x", "a"}),
        ("{% for i in x if i > y %}{% else %}{{ i }}{% endfor %}", {"x", "y", "i"}),
        ("{% for i, j in x %}{{ i }}{{ j }}{% endfor %}", {"x"}),
        ("{% set ns = namespace(a=b) %}{% set ns.a = c %}{{ ns.a }}", {"b", "c"}),
        ("{% set a %}{{ b }}{% set c = 1 %}{% endset %}{{ a }}{{ c }}", {"b", "c"}),
        ("{{ b }}{% set a | replace(b, 'c') %}d{% endset %}{{ a }}", {"b"}),
        ("{% macro m(a, b=c) %}{{ a }}{{ b }}{{ d }}{% endmacro %}{{ m(e) }}", {"c", "d", "e"}),
        ("{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(a) m() %}{{ a }}{{ b }}{% endcall %}", {"b"}),
        ("{% with a = b %}{{ a }}{% set c = 1 %}{% endwith %}{{ c }}", {"b", "c"}),
        ("{% filter replace(a, 'b') %}{% set c = 1 %}{{ c }}{% endfilter %}{{ c }}", {"a", "c"}),
        ("{{ a if b else c }}{{ [d, {'e': f}] | map(attribute=g) }}{% if h is in i %}{% endif %}", set("abcdfghi")),
    ],
)
def test_a_variable_is_what_may_be_read_before_it_is_set(source: str, expected: set[str]) -> None:
    assert variables(source) == expected


NAMES = st.sampled_from("abc")
STATEMENTS = st.recursive(
    st.builds("{{{{ {} }}}}".format, NAMES) | st.builds("{{% set {} = 1 %}}".format, NAMES),
    lambda parts: (
        st.builds("{{% if choose() %}}{}{{% else %}}{}{{% endif %}}".format, parts, parts)
        | st.builds("{{% for i in [0] %}}{}{{% endfor %}}".format, parts)
        | st.builds("{}{}".format, parts, parts)
    ),
    max_leaves=7,
)


@settings(deadline=None)
@given(STATEMENTS, st.lists(st.booleans(), min_size=7, max_size=7))
def test_a_template_renders_with_its_variables_and_nothing_else(source: str, choices: list[bool]) -> None:
    given_values = dict.fromkeys(variables(source) - {"choose"}, 0)
    remaining = iter(choices)
    ENVIRONMENT.from_string(source).render(given_values, choose=lambda: next(remaining))


@settings(deadline=None)
@given(STATEMENTS)
def test_without_one_of_them_some_path_fails(source: str) -> None:
    template = ENVIRONMENT.from_string(source)
    for missing in variables(source) - {"choose"}:
        values = dict.fromkeys(set("abc") - {missing}, 0)
        assert any(fails(template, values, path) for path in range(1 << source.count("choose()")))


def fails(template: Template, values: dict[str, int], path: int) -> bool:
    """`path` has a bit for each choice."""
    turns = count()
    try:
        template.render(values, choose=lambda: path >> next(turns) & 1)
    except UndefinedError:
        return True
    return False
