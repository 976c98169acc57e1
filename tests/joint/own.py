"""Templates of our own, for habits that none of the published ones in the package has."""

# Call ids are printed, in calls and in results, as Mistral's templates do.
CALL_IDS = """{{ bos_token }}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
[TOOL_RESULTS]{{ message.tool_call_id }}[ARGS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.role == 'assistant' -%}
{{ ' ' + message.content if message.content else '' }}
{%- for call in message.tool_calls or [] -%}
[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor -%}
</s>
{%- else -%}
[INST]{{ message.role }}: {{ message.content }}[/INST]
{%- endif -%}
{%- endfor -%}"""

# Neighbours of the client's side share one turn, whatever their roles.
FOLDING = """{%- for message in messages -%}
{%- set before = messages[loop.index0 - 1].role if not loop.first else 'assistant' -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' if before == 'assistant' else '\\n\\n' }}
{{- '<tool_response>' + message.content + '</tool_response>' if message.role == 'tool' else message.content }}
{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role == 'assistant' }}
{%- endif -%}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"""

# Each header counts the turns before it: no dummy history can stand in for the real one.
NUMBERED = """{%- for message in messages -%}
{{ '<|im_start|>' ~ loop.index ~ ' ' ~ message.role ~ '\\n' ~ (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>' ~ (messages | length + 1) ~ ' assistant\\n' if add_generation_prompt }}"""

# Letters follow a turn's text without a gap, so that no token need end where the text does.
SIGNED = """{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor -%}
{{ 'ing' if message.role == 'assistant' }}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"""

OWN_TEMPLATES = {
    "own_call_ids": CALL_IDS,
    "own_folding": FOLDING,
    "own_numbered": NUMBERED,
    "own_signed": SIGNED,
}
