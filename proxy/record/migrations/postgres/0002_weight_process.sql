-- A trainer's word on weights is of the process that was told of, and of none that takes its place.

alter table weights add column process text;  -- null where nothing told processes apart
