-- Replies that mean the same are told apart by a hash of their ids, so that no ids are read to find a parent.

-- Of prompt and sampled ids; null where they are not whole: such a call is like no other.
alter table calls add column ids_hash text;

-- The hash that records have had covers logprobs as well: where it is equal the ids are too.
update calls set ids_hash = document ->> '$.tokens_hash'
where state = 'done' and not uncaptured and prompt_ids is not null
  and rollout_id in (select rollout_id from rollouts where state = 'open');

-- With the state in it, so that of a rollout's calls only those are read that answered the history looked for.
drop index calls_by_history;
create index calls_by_history on calls (rollout_id, history, state, seq);
