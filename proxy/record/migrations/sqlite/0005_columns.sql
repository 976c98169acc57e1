-- What statements look for in documents stands in columns of its own, and a delivery says which process reads it out.

alter table calls add column message text;  -- the reply as the client got it; documents of older versions hold it too
alter table calls add column prefix_eligible integer;
alter table calls add column prefix_supplied integer;
alter table calls add column prefix_reason text;

update calls set
    message = document ->> '$.message',
    prefix_eligible = document ->> '$.prefix.eligible',
    prefix_supplied = document ->> '$.prefix.supplied',
    prefix_reason = document ->> '$.prefix.reason'
where document is not null;

alter table deliveries add column owner text;  -- null where an older version began it
