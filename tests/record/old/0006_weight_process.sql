BEGIN TRANSACTION;
CREATE TABLE bodies (
    rollout_id text not null,
    hash blob not null,
    previous blob,
    body text not null,
    unique (rollout_id, hash)
) strict;
INSERT INTO "bodies" VALUES('r1',X'B6DD6B76EE4B99FA766628104DA9C793306BC1ACDA570AE0A2832B17EB60F58F',NULL,'{"role": "user", "content": "What is 2+2?"}');
INSERT INTO "bodies" VALUES('r1',X'97F5E3A33B1664057AC4E1787FFF13F5F9B2E4EBED06AA96C24A6128837039F2',NULL,'{"model": "policy", "messages": null}');
INSERT INTO "bodies" VALUES('r1',X'43DF67289D13DE01F9C08022A69BE55B9280B65888C05FF414CE6E3633AE3008',X'A77A39D4D5375D7CAA99677A8030615355C9DCA79689DFEECB54F577ED0FF92E','{"role": "user", "content": "and 3+3?"}');
INSERT INTO "bodies" VALUES('r1',X'A77A39D4D5375D7CAA99677A8030615355C9DCA79689DFEECB54F577ED0FF92E',X'B6DD6B76EE4B99FA766628104DA9C793306BC1ACDA570AE0A2832B17EB60F58F','{"role": "assistant", "content": "4"}');
INSERT INTO "bodies" VALUES('r1',X'C2E00729A440490E56AB11809A46FB457A26FCA03C0F7A55F6E0A76CCC8066DF',NULL,'{"role": "user", "content": "Two, please"}');
CREATE TABLE calls (
    number integer primary key,
    call_id text not null unique,
    request_id text not null,
    rollout_id text not null,
    seq integer not null,  -- order of reservation within the rollout
    context text not null,
    occurrence integer not null,
    choice integer not null,
    seed integer not null,
    state text not null check (state in ('reserved', 'done', 'failed', 'late')),
    owner text not null,
    lease_until real,  -- null once the outcome is known
    api text not null,
    stream integer not null,
    asked_at real not null,
    history text not null,  -- chain hash of the whole request
    ask_hash text not null,  -- equal for identical requests
    idempotency_key text,
    claimable text check (claimable in ('failed', 'client_gone')),  -- why the next identical request repeats this one
    broken integer not null default 0,  -- how often the draw failed after its first token
    earlier text not null default '[]',  -- failures of the same draw before the present try
    completion_hash blob,  -- of a first turn's sampled ids, to find samples of a group that are the same
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
    prompt_ids blob,  -- the ids after the shared ones
    completion_ids blob,
    logprobs blob,
    document text, ids_hash text, message text, prefix_eligible integer, prefix_supplied integer, prefix_reason text,
    unique (rollout_id, seq),
    unique (rollout_id, context, choice, occurrence)
) strict;
INSERT INTO "calls" VALUES(1,'call_a','req_a','r1',0,'sha256:259297024e74cb9218ac20f0fd34d4511d9e8d7c4201e8adf086257959956d17',0,0,1000,'done','proxy-1',NULL,'chat',0,1700000000.0,'3cfa6df45db29107f818088a44ce4184b510ff0fd455f97180c3d495abd54fba','ask_a',NULL,NULL,0,'[]',NULL,'sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,'root','first_call',NULL,0,3,3,NULL,0,NULL,X'650000006600000067000000',X'C9000000CA00000002000000',X'66000000BF000000BF000000BF','{"lane_signals": {}, "requested_model": "policy", "has_tools": false, "sampling": {"asked": {}, "effective": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}, "overridden": [], "constrained": [], "ignored": [], "length": {}, "shaping": {}}, "seed": {"source": "minted", "client_seed": null, "run_seed": null}, "logprobs_mode": null, "segments": [{"start": 0, "end": 3, "seed": 1000, "weight_version": null, "engine": "e1", "kv_version": null, "notes": []}], "prefix": {"eligible": false, "requested": false, "supplied": false, "length": 0, "reason": "root", "detail": "", "drift_at": null}, "replayable": {"value": "no", "reasons": ["engine_not_deterministic"]}, "failure": null, "timing": {"asked_at": "2023-11-14T22:13:20.000Z", "first_event_s": 0.1, "ended_s": 0.2}, "engine": {"name": "e1", "kind": "vllm", "version": "0.32", "model": "policy", "deterministic": false, "vocabulary": 1000, "fingerprint": null, "unreached": []}, "profile": {"name": "train", "values": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens_cap": null, "prefix_supply": true, "model": null}}, "volatile": [], "top_logprobs": null, "routed_experts": null, "finish_reason": "stop", "matched_stop": null, "audit_candidates": null, "engine_message": {"role": "assistant", "content": "4"}, "usage": {"prompt_tokens": 3, "completion_tokens": 3}, "capture": {"complete": true, "gaps": []}, "request": {"messages": "b6dd6b76ee4b99fa766628104da9c793306bc1acda570ae0a2832b17eb60f58f", "tools": null, "rest": "97f5e3a33b1664057ac4e1787fff13f5f9b2e4ebed06aa96c24a6128837039f2", "differing": {}, "apart": {}, "chat": null}, "tokens_hash": "sha256:ba669d56bb43aeb80e88e1e4ed63614b243de871fe1efc2d6eff2317bdeb01ee"}','sha256:663ba5b3e831b8f0ca930ec675215f0dbba257c1b94f49645ef9972e00921228','{"role": "assistant", "content": "4"}',0,0,'root');
INSERT INTO "calls" VALUES(2,'call_b','req_b','r1',1,'sha256:e6a95280bb53b31caeaeea2b28ae0a4be6bcf2d939ed5bdbddd99f6547b57f59',0,0,1000,'done','proxy-1',NULL,'chat',0,1700000000.0,'56e5b2087e9328ac1330361f42a9ecdde36e8b8799e257ce4b910a5dd1359be6','ask_b',NULL,NULL,0,'[]',NULL,'sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a','call_a','resolved','exact',NULL,0,7,3,'call_a',6,NULL,X'09000000',X'C9000000CA00000002000000',X'66000000BF000000BF000000BF','{"lane_signals": {}, "requested_model": "policy", "has_tools": false, "sampling": {"asked": {}, "effective": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}, "overridden": [], "constrained": [], "ignored": [], "length": {}, "shaping": {}}, "seed": {"source": "minted", "client_seed": null, "run_seed": null}, "logprobs_mode": null, "segments": [{"start": 0, "end": 3, "seed": 1000, "weight_version": null, "engine": "e1", "kv_version": null, "notes": []}], "prefix": {"eligible": false, "requested": false, "supplied": false, "length": 0, "reason": "root", "detail": "", "drift_at": null}, "replayable": {"value": "no", "reasons": ["engine_not_deterministic"]}, "failure": null, "timing": {"asked_at": "2023-11-14T22:13:20.000Z", "first_event_s": 0.1, "ended_s": 0.2}, "engine": {"name": "e1", "kind": "vllm", "version": "0.32", "model": "policy", "deterministic": false, "vocabulary": 1000, "fingerprint": null, "unreached": []}, "profile": {"name": "train", "values": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens_cap": null, "prefix_supply": true, "model": null}}, "volatile": [], "top_logprobs": null, "routed_experts": null, "finish_reason": "stop", "matched_stop": null, "audit_candidates": null, "engine_message": {"role": "assistant", "content": "4"}, "usage": {"prompt_tokens": 7, "completion_tokens": 3}, "capture": {"complete": true, "gaps": []}, "request": {"messages": "43df67289d13de01f9c08022a69be55b9280b65888c05ff414ce6e3633ae3008", "tools": null, "rest": "97f5e3a33b1664057ac4e1787fff13f5f9b2e4ebed06aa96c24a6128837039f2", "differing": {}, "apart": {}, "chat": null}, "tokens_hash": "sha256:7e916445ba83c172f2c7e2ca1e34f26fef23f301ca3ae9d5020034e537731cd8"}','sha256:80f2d969d471fd4ab19a2b7ea37d5c934e91545c6593cb00e1f22cae947ab7d8','{"role": "assistant", "content": "4"}',0,0,'root');
INSERT INTO "calls" VALUES(3,'call_c0','req_c','r1',2,'sha256:090277da3be56d469ec09ebdec1b0359b8b8b983e490e483d63be54b886ffe47',0,0,1000,'done','proxy-1',NULL,'chat',0,1700000000.0,'75901c154df7e21a01d968cc82b55c3baabaf08e1941b5e5064626c90f25e52c','ask_c',NULL,NULL,0,'[{"kind": "engine_cut", "status": 502, "message": "the engine closed the connection", "param": null, "engine_status": null, "detail": null, "may_retry": true, "retry_after_s": null}]',NULL,'sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,'root','first_call',NULL,0,3,3,NULL,0,NULL,X'650000006600000067000000',X'C9000000CA00000002000000',X'66000000BF000000BF000000BF','{"lane_signals": {}, "requested_model": "policy", "has_tools": false, "sampling": {"asked": {}, "effective": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}, "overridden": [], "constrained": [], "ignored": [], "length": {}, "shaping": {}}, "seed": {"source": "minted", "client_seed": null, "run_seed": null}, "logprobs_mode": null, "segments": [{"start": 0, "end": 3, "seed": 1000, "weight_version": null, "engine": "e1", "kv_version": null, "notes": []}], "prefix": {"eligible": false, "requested": false, "supplied": false, "length": 0, "reason": "root", "detail": "", "drift_at": null}, "replayable": {"value": "no", "reasons": ["engine_not_deterministic"]}, "failure": null, "timing": {"asked_at": "2023-11-14T22:13:20.000Z", "first_event_s": 0.1, "ended_s": 0.2}, "engine": {"name": "e1", "kind": "vllm", "version": "0.32", "model": "policy", "deterministic": false, "vocabulary": 1000, "fingerprint": null, "unreached": []}, "profile": {"name": "train", "values": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens_cap": null, "prefix_supply": true, "model": null}}, "volatile": [], "top_logprobs": null, "routed_experts": null, "finish_reason": "stop", "matched_stop": null, "audit_candidates": null, "engine_message": {"role": "assistant", "content": "4"}, "usage": {"prompt_tokens": 3, "completion_tokens": 3}, "capture": {"complete": true, "gaps": []}, "request": {"messages": "c2e00729a440490e56ab11809a46fb457a26fca03c0f7a55f6e0a76ccc8066df", "tools": null, "rest": "97f5e3a33b1664057ac4e1787fff13f5f9b2e4ebed06aa96c24a6128837039f2", "differing": {}, "apart": {}, "chat": null}, "tokens_hash": "sha256:ba669d56bb43aeb80e88e1e4ed63614b243de871fe1efc2d6eff2317bdeb01ee"}','sha256:663ba5b3e831b8f0ca930ec675215f0dbba257c1b94f49645ef9972e00921228','{"role": "assistant", "content": "4"}',0,0,'root');
INSERT INTO "calls" VALUES(4,'call_c1','req_c','r1',3,'sha256:090277da3be56d469ec09ebdec1b0359b8b8b983e490e483d63be54b886ffe47',0,1,2000,'done','proxy-1',NULL,'chat',0,1700000000.0,'75901c154df7e21a01d968cc82b55c3baabaf08e1941b5e5064626c90f25e52c','ask_c',NULL,NULL,0,'[{"kind": "engine_cut", "status": 502, "message": "the engine closed the connection", "param": null, "engine_status": null, "detail": null, "may_retry": true, "retry_after_s": null}]',NULL,'sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',NULL,'root','first_call',NULL,0,3,3,'call_c0',3,NULL,X'',X'C9000000CA00000002000000',X'66000000BF000000BF000000BF','{"lane_signals": {}, "requested_model": "policy", "has_tools": false, "sampling": {"asked": {}, "effective": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}, "overridden": [], "constrained": [], "ignored": [], "length": {}, "shaping": {}}, "seed": {"source": "minted", "client_seed": null, "run_seed": null}, "logprobs_mode": null, "segments": [{"start": 0, "end": 3, "seed": 2000, "weight_version": null, "engine": "e1", "kv_version": null, "notes": []}], "prefix": {"eligible": false, "requested": false, "supplied": false, "length": 0, "reason": "root", "detail": "", "drift_at": null}, "replayable": {"value": "no", "reasons": ["engine_not_deterministic"]}, "failure": null, "timing": {"asked_at": "2023-11-14T22:13:20.000Z", "first_event_s": 0.1, "ended_s": 0.2}, "engine": {"name": "e1", "kind": "vllm", "version": "0.32", "model": "policy", "deterministic": false, "vocabulary": 1000, "fingerprint": null, "unreached": []}, "profile": {"name": "train", "values": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_tokens_cap": null, "prefix_supply": true, "model": null}}, "volatile": [], "top_logprobs": null, "routed_experts": null, "finish_reason": "stop", "matched_stop": null, "audit_candidates": null, "engine_message": {"role": "assistant", "content": "4"}, "usage": {"prompt_tokens": 3, "completion_tokens": 3}, "capture": {"complete": true, "gaps": []}, "request": {"messages": "c2e00729a440490e56ab11809a46fb457a26fca03c0f7a55f6e0a76ccc8066df", "tools": null, "rest": "97f5e3a33b1664057ac4e1787fff13f5f9b2e4ebed06aa96c24a6128837039f2", "differing": {}, "apart": {}, "chat": null}, "tokens_hash": "sha256:ba669d56bb43aeb80e88e1e4ed63614b243de871fe1efc2d6eff2317bdeb01ee"}','sha256:663ba5b3e831b8f0ca930ec675215f0dbba257c1b94f49645ef9972e00921228','{"role": "assistant", "content": "4"}',0,0,'root');
CREATE TABLE deliveries (
    number integer primary key,
    delivery_id text not null,  -- one client's reading, of all choices of its request
    call_id text not null,
    claim text,  -- by what right an earlier call was delivered again; null for the first delivery
    started_at real not null,
    ended_at real,
    outcome text,  -- null while it lasts
    events integer not null default 0
, owner text) strict;
INSERT INTO "deliveries" VALUES(1,'delivery_a','call_a',NULL,1700000000.0,1700000001.0,'delivered',3,'proxy-1');
INSERT INTO "deliveries" VALUES(2,'delivery_b','call_b',NULL,1700000000.0,1700000001.0,'delivered',3,'proxy-1');
INSERT INTO "deliveries" VALUES(3,'delivery_c','call_c0',NULL,1700000000.0,1700000001.0,'error_told',3,'proxy-1');
INSERT INTO "deliveries" VALUES(4,'delivery_c','call_c1',NULL,1700000000.0,1700000001.0,'error_told',3,'proxy-1');
INSERT INTO "deliveries" VALUES(5,'delivery_d','call_c0','failed',1700000000.0,1700000001.0,'delivered',3,'proxy-1');
INSERT INTO "deliveries" VALUES(6,'delivery_d','call_c1','failed',1700000000.0,1700000001.0,'delivered',3,'proxy-1');
CREATE TABLE group_flags (
    run text not null,
    grp text not null,
    flag text not null,
    raised_at real not null,
    detail text not null,
    unique (run, grp, flag)
) strict;
CREATE TABLE idempotency_keys (
    key text primary key,
    asked text not null,
    rollout_ids text not null
) strict;
CREATE TABLE kept (
    name text primary key,
    value text not null
) strict;
CREATE TABLE late_results (
    call_id text primary key,
    rollout_id text not null
) strict, without rowid;
CREATE TABLE pauses (
    number integer primary key,
    pause_id text not null unique,
    mode text not null,
    asked_at real not null,
    lease_until real not null,
    ended_at real  -- null while it is in force
) strict;
CREATE TABLE pings (
    id integer primary key check (id = 1),
    at real not null
) strict;
CREATE TABLE profiles (
    name text primary key,
    profile text not null,
    base text not null,
    changed_at real not null
) strict;
CREATE TABLE replicas (
    owner text primary key,
    alive_until real not null,
    pause_id text  -- the newest pause that it acknowledged
) strict;
CREATE TABLE rollouts (
    number integer primary key,  -- order of creation
    rollout_id text not null unique,
    run text not null,
    grp text not null,
    sample integer not null,
    attempt integer not null,
    profile text not null,
    sampling text not null,
    state text not null check (state in ('open', 'finished', 'expired', 'deleted')),
    created_at real not null,
    expires_at real,
    finished_at real,
    token_budget integer,
    metadata text not null,
    outcome text,
    revision integer not null,
    unique (run, grp, sample, attempt)
) strict;
INSERT INTO "rollouts" VALUES(1,'r1','default','r1',0,0,'train','{}','open',1700000000.0,NULL,NULL,NULL,'{"task": "sum"}','{"reward": 1}',1);
CREATE TABLE schema_migrations (name text primary key, applied_at text not null) strict
;
INSERT INTO "schema_migrations" VALUES('0001_first','2026-12-01T05:11:24.806Z');
INSERT INTO "schema_migrations" VALUES('0002_tool_calls','2026-12-01T05:11:24.806Z');
INSERT INTO "schema_migrations" VALUES('0003_weights','2026-12-01T05:11:24.806Z');
INSERT INTO "schema_migrations" VALUES('0004_ids_hash','2026-12-01T05:11:24.807Z');
INSERT INTO "schema_migrations" VALUES('0005_columns','2026-12-01T05:11:24.808Z');
INSERT INTO "schema_migrations" VALUES('0006_weight_process','2026-12-01T05:11:24.821Z');
CREATE TABLE tool_calls (
    rollout_id text not null,
    client_id text not null,
    engine_id text not null,
    unique (rollout_id, client_id)
) strict;
CREATE TABLE weights (
    url text primary key,
    version text,
    epoch integer not null,  -- raised with each change, so that a name that comes back is not the same weights
    told_by text,
    is_flushed integer not null,  -- the prefix cache was emptied after they came
    kv text not null,  -- what became of the cache of calls that ran across the change
    noted_at real not null
, process text) strict;
CREATE INDEX rollouts_of_group on rollouts (run, grp, number);
CREATE INDEX rollouts_in_state on rollouts (state, number);
CREATE INDEX rollouts_to_expire on rollouts (expires_at) where state = 'open' and expires_at is not null;
CREATE INDEX calls_by_ask on calls (rollout_id, ask_hash, seq);
CREATE INDEX calls_by_request on calls (request_id, choice);
CREATE INDEX calls_by_seed on calls (context, seed);
CREATE INDEX calls_to_count on calls (
    rollout_id, state, failure_kind, uncaptured, prompt_tokens, completion_tokens
);
CREATE INDEX calls_on_lease on calls (lease_until) where state = 'reserved';
CREATE INDEX late_results_of_rollout on late_results (rollout_id);
CREATE INDEX deliveries_of_call on deliveries (call_id, number);
CREATE INDEX deliveries_by_id on deliveries (delivery_id);
CREATE INDEX deliveries_that_last on deliveries (delivery_id) where outcome is null;
CREATE UNIQUE INDEX one_pause_in_force on pauses (ended_at is null) where ended_at is null;
CREATE INDEX calls_by_history on calls (rollout_id, history, state, seq);
COMMIT;
