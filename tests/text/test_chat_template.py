from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.core.errors import Reason, Rejected
from inflight.text.chat_template import ChatTemplate
from inflight.text.tokenizer import Tokenizer
from text.tiny import TEMPLATE, byte_level_backend, write_folder

contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": contents}), min_size=1
)
HARD = """
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{ raise_exception('no tools: ' ~ m.role) }}{% endif %}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {% if m.role == 'assistant' %}
{% generation %}{{ m.content }}{% endgeneration %}
  {% else %}
{{ m | tojson }}{{ {'b': 1, 'a': '<é>'} | tojson(indent=2) }}
  {% endif %}
{% endfor %}
{{ strftime_now('%') | length }}{{ tools is none }}{{ documents is none }}{{ bos_token }}{{ eos_token }}
"""


@settings(max_examples=200, deadline=None)
@given(messages=messages, generate=st.booleans())
def test_real_template_equals_transformers(
    tokenizer: Tokenizer, reference: Any, messages: list[dict[str, str]], generate: bool
) -> None:
    want = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    assert tokenizer.render_chat(messages, generate) == want
    ids = reference.apply_chat_template(messages, add_generation_prompt=generate, return_dict=False)
    assert tokenizer.encode(want, add_special_tokens=False) == ids


@settings(max_examples=100, deadline=None)
@given(messages=messages, generate=st.booleans(), template=st.sampled_from([HARD, TEMPLATE]))
def test_template_features_equal_transformers(
    reference: Any, messages: list[dict[str, str]], generate: bool, template: str
) -> None:
    ours = ChatTemplate(template, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    want = reference.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=generate
    )
    assert ours.render(messages, generate) == want


def test_text_parts_and_null_fields() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}|{{ m.name is defined }}{% endfor %}", {})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": "user", "content": parts, "name": None}], True) == "a\nb|False"


@pytest.mark.parametrize(
    ("source", "messages", "words"),
    [
        (None, [{"role": "user", "content": "a"}], "no chat template"),
        ("{{", [{"role": "user", "content": "a"}], "does not compile"),
        (HARD, [{"role": "tool", "content": "a"}], "no tools: tool"),
        ("{{ 'a' + messages[0]['content'] }}", [{"role": "user"}], "refused the messages"),
        ("{{ messages[0]['content'] + 1 }}", [{"role": "user", "content": "a"}], "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", [{"role": "user", "content": "a"}], "unsafe"),
        ("{{ messages.append(1) }}", [{"role": "user", "content": "a"}], "unsafe"),
        ("{% for i in range(10**9) %}x{% endfor %}", [{"role": "user", "content": "a"}], "too big"),
        (TEMPLATE, [], "empty"),
        (TEMPLATE, ["a"], r"messages\[0\] must be an object"),
        (TEMPLATE, [{"role": "user", "content": "a"}, {"content": "a"}], r"messages\[1\] must be an object"),
        (TEMPLATE, [{"role": 1, "content": "a"}], "role"),
        (TEMPLATE, [{"role": "user", "content": 1}], "must be a string or a list"),
        (TEMPLATE, [{"role": "user", "content": {"type": "text"}}], "must be a string or a list"),
        (TEMPLATE, [{"role": "user", "content": [{"type": "image_url"}]}], "'image_url'.*is supported"),
        (TEMPLATE, [{"role": "user", "content": [{"type": "text"}]}], "is supported"),
        (TEMPLATE, [{"role": "user", "content": ["a"]}], "is supported"),
    ],
)
def test_refusals_are_rejected_with_words(source: str | None, messages: Any, words: str) -> None:
    with pytest.raises(Rejected, match=words) as caught:
        ChatTemplate(source, {}).render(messages, True)
    assert caught.value.reason is Reason.INVALID
    assert caught.value.param == "messages"


def test_template_of_a_folder(tmp_path: Any) -> None:
    config = {"bos_token": "<s>", "chat_template": [{"name": "default", "template": "{{ bos_token }}d"}, {"name": "x"}]}
    folder = write_folder(tmp_path, byte_level_backend(), tokenizer_config=config)
    hello = [{"role": "user", "content": "a"}]
    assert Tokenizer.load(folder).render_chat(hello) == "<s>d"
    (folder / "chat_template.jinja").write_text("file wins")
    assert Tokenizer.load(folder).render_chat(hello) == "file wins"
