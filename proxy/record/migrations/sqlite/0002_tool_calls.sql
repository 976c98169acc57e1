-- Tool-call ids as clients know them, so that what they echo can be told to the engine in its own.

create table tool_calls (
    rollout_id text not null,
    client_id text not null,
    engine_id text not null,
    unique (rollout_id, client_id)
) strict;

insert or ignore into tool_calls (rollout_id, client_id, engine_id)
select calls.rollout_id, told.value ->> '$.id', said.value ->> '$.id'
from calls, json_each(calls.document, '$.message.tool_calls') as told,
    json_each(calls.document, '$.engine_message.tool_calls') as said
where told.key = said.key and told.value ->> '$.id' is not null and said.value ->> '$.id' is not null;
