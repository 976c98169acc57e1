-- What trainers do to engines: pauses with their leases, and which weights each engine has.

create table pauses (
    number integer primary key,
    pause_id text not null unique,
    mode text not null,
    asked_at real not null,
    lease_until real not null,
    ended_at real  -- null while it is in force
) strict;

create unique index one_pause_in_force on pauses (ended_at is null) where ended_at is null;

-- Replicas that hold no calls back yet keep a pause from being acknowledged.
create table replicas (
    owner text primary key,
    alive_until real not null,
    pause_id text  -- the newest pause that it acknowledged
) strict;

create table weights (
    url text primary key,
    version text,
    epoch integer not null,  -- raised with each change, so that a name that comes back is not the same weights
    told_by text,
    is_flushed integer not null,  -- the prefix cache was emptied after they came
    kv text not null,  -- what became of the cache of calls that ran across the change
    noted_at real not null
) strict;
