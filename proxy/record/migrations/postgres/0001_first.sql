-- The first schema: all that SQLite's steps up to 0005 come to, in PostgreSQL's types.

create table rollouts (
    number bigint generated always as identity primary key,  -- order of creation
    rollout_id text not null unique,
    run text not null,
    grp text not null,
    sample integer not null,
    attempt integer not null,
    profile text not null,
    sampling text not null,
    state text not null check (state in ('open', 'finished', 'expired', 'deleted')),
    created_at double precision not null,
    expires_at double precision,
    finished_at double precision,
    token_budget bigint,
    metadata text not null,
    outcome text,
    revision integer not null,
    unique (run, grp, sample, attempt)
);

create index rollouts_of_group on rollouts (run, grp, number);
create index rollouts_in_state on rollouts (state, number);
create index rollouts_to_expire on rollouts (expires_at) where state = 'open' and expires_at is not null;

-- Blobs and documents stand last, so that counting and matching never read past them.
create table calls (
    number bigint generated always as identity primary key,
    call_id text not null unique,
    request_id text not null,
    rollout_id text not null,
    seq integer not null,  -- order of reservation within the rollout
    context text not null,
    occurrence integer not null,
    choice integer not null,
    seed bigint not null,
    state text not null check (state in ('reserved', 'done', 'failed', 'late')),
    owner text not null,
    lease_until double precision,  -- null once the outcome is known
    api text not null,
    stream integer not null,
    asked_at double precision not null,
    history text not null,  -- chain hash of the whole request
    ask_hash text not null,  -- equal for identical requests
    idempotency_key text,
    claimable text check (claimable in ('failed', 'client_gone')),  -- why the next identical request repeats this one
    broken integer not null default 0,  -- how often the draw failed after its first token
    earlier text not null default '[]',  -- failures of the same draw before the present try
    completion_hash bytea,  -- of a first turn's sampled ids, to find samples of a group that are the same
    tools_hash text,
    template_hash text,
    parent_call_id text,
    parent_outcome text,
    parent_reason text,
    failure_kind text,
    uncaptured integer not null default 0,
    prompt_tokens integer not null default 0,
    completion_tokens integer not null default 0,
    prompt_base_call_id text,  -- the call whose prompt and completion this prompt starts with
    prompt_shared integer,  -- how many ids of them it shares
    outcome text,
    prefix_eligible integer,
    prefix_supplied integer,
    prefix_reason text,
    ids_hash text,  -- of prompt and sampled ids; null where they are not whole: such a call is like no other
    prompt_ids bytea,  -- the ids after the shared ones
    completion_ids bytea,
    logprobs bytea,
    message text,  -- the reply as the client got it
    document text,
    unique (rollout_id, seq),
    unique (rollout_id, context, choice, occurrence)
);

create index calls_by_ask on calls (rollout_id, ask_hash, seq);
create index calls_by_request on calls (request_id, choice);
create index calls_by_history on calls (rollout_id, history, state, seq);
create index calls_by_seed on calls (context, seed);
create index calls_to_count on calls (
    rollout_id, state, failure_kind, uncaptured, prompt_tokens, completion_tokens
);
create index calls_on_lease on calls (lease_until) where state = 'reserved';

-- Results that came after their rollout was closed; kept apart from calls, which a deletion drops.
create table late_results (
    call_id text primary key,
    rollout_id text not null
);

create index late_results_of_rollout on late_results (rollout_id);

create table deliveries (
    number bigint generated always as identity primary key,
    delivery_id text not null,  -- one client's reading, of all choices of its request
    call_id text not null,
    claim text,  -- by what right an earlier call was delivered again; null for the first delivery
    started_at double precision not null,
    ended_at double precision,
    outcome text,  -- null while it lasts
    events integer not null default 0,
    owner text not null  -- the process that reads it out
);

create index deliveries_of_call on deliveries (call_id, number);
create index deliveries_by_id on deliveries (delivery_id);
create index deliveries_that_last on deliveries (owner, delivery_id) where outcome is null;

create table group_flags (
    run text not null,
    grp text not null,
    flag text not null,
    raised_at double precision not null,
    detail text not null,
    unique (run, grp, flag)
);

-- JSON values that calls of one rollout share: each message once, chained to the message before it; tools; the rest.
create table bodies (
    rollout_id text not null,
    hash bytea not null,
    previous bytea,
    body text not null,
    unique (rollout_id, hash)
);

create table profiles (
    name text primary key,
    profile text not null,
    base text not null,
    changed_at double precision not null
);

create table idempotency_keys (
    key text not null,
    asked text not null,
    rollout_ids text not null
);

-- By hash: keys may be longer than an ordered index takes.
create index idempotency_by_key on idempotency_keys using hash (key);

create table kept (
    name text primary key,
    value text not null
);

create table pings (
    id integer primary key check (id = 1),
    at double precision not null
);

-- Tool-call ids as clients know them, so that what they echo can be told to the engine in its own.

create table tool_calls (
    rollout_id text not null,
    client_id text not null,
    engine_id text not null,
    unique (rollout_id, client_id)
);

-- What trainers do to engines: pauses with their leases, and which weights each engine has.

create table pauses (
    number bigint generated always as identity primary key,
    pause_id text not null unique,
    mode text not null,
    asked_at double precision not null,
    lease_until double precision not null,
    ended_at double precision  -- null while it is in force
);

create unique index one_pause_in_force on pauses ((ended_at is null)) where ended_at is null;

-- Replicas that hold no calls back yet keep a pause from being acknowledged.
create table replicas (
    owner text primary key,
    alive_until double precision not null,
    pause_id text  -- the newest pause that it acknowledged
);

create table weights (
    url text primary key,
    version text,
    epoch integer not null,  -- raised with each change, so that a name that comes back is not the same weights
    told_by text,
    is_flushed integer not null,  -- the prefix cache was emptied after they came
    kv text not null,  -- what became of the cache of calls that ran across the change
    noted_at double precision not null
);
