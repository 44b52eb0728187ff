CREATE TABLE stormdrop_meta (
    name character varying(32) NOT NULL,
    value character varying(255) NOT NULL
);
CREATE TABLE stormdrop_session (
    number bigint NOT NULL,
    id character varying(36) NOT NULL,
    workload bigint NOT NULL,
    workload_name text NOT NULL,
    target text NOT NULL,
    machine text NOT NULL,
    search character varying(128) NOT NULL,
    seed text NOT NULL,
    options text NOT NULL,
    method text NOT NULL,
    versions text NOT NULL,
    sketches text NOT NULL,
    created character varying(40) NOT NULL,
    state character varying(16) NOT NULL,
    writer text,
    outcome text,
    trials integer NOT NULL,
    failed integer NOT NULL,
    best_seconds double precision
);
CREATE SEQUENCE stormdrop_session_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE stormdrop_session_number_seq OWNED BY stormdrop_session.number;
CREATE TABLE stormdrop_trial (
    session bigint NOT NULL,
    "position" integer NOT NULL,
    batch integer NOT NULL,
    sketch text NOT NULL,
    config text NOT NULL,
    status character varying(32) NOT NULL,
    seconds text NOT NULL,
    error text NOT NULL,
    schedule_seconds double precision NOT NULL,
    build_seconds double precision NOT NULL,
    run_seconds double precision NOT NULL,
    check_seconds double precision NOT NULL,
    suspect boolean NOT NULL,
    elapsed double precision NOT NULL
);
CREATE TABLE stormdrop_workload (
    id bigint NOT NULL,
    key character varying(128) NOT NULL,
    digest character varying(64) NOT NULL,
    text text NOT NULL
);
CREATE SEQUENCE stormdrop_workload_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE stormdrop_workload_id_seq OWNED BY stormdrop_workload.id;
ALTER TABLE ONLY stormdrop_session ALTER COLUMN number SET DEFAULT nextval('stormdrop_session_number_seq'::regclass);
ALTER TABLE ONLY stormdrop_workload ALTER COLUMN id SET DEFAULT nextval('stormdrop_workload_id_seq'::regclass);
INSERT INTO stormdrop_meta VALUES ('version', '1');
INSERT INTO stormdrop_session VALUES (1, 'd26c65f5-2ed0-47b7-a8cf-6ccdd9649869', 1, 'conv2d_relu', 'llvm -num-cores 2', 'A CPU, 2 cores', 'droplet', '7', '{"confidence":0.95}', '{"repeats":3}', '{"tvm":"0.27.0"}', '{"packed":"f1","streaming":"f2"}', '2026-11-23T02:50:29.705793+00:00', 'finished', NULL, '{"sketch":"packed","config":{"tile":[4,2],"unroll":16},"seconds":0.0015,"interval":[0.0014,0.0016],"baseline_seconds":0.003,"converged":true,"extra":{"note":"\u00e9"}}', 3, 1, 0.002);
INSERT INTO stormdrop_session VALUES (2, '3b9e19aa-fc09-48ea-a599-bb31889498a1', 1, 'conv2d_relu', 'llvm -num-cores 2', 'A CPU, 2 cores', 'droplet', '7', '{"confidence":0.95}', '{"repeats":3}', '{"tvm":"0.27.0"}', '{"packed":"f1","streaming":"f2"}', '2026-11-23T02:50:29.827456+00:00', 'interrupted', NULL, NULL, 1, 0, 0.003);
INSERT INTO stormdrop_trial VALUES (1, 0, 0, 'packed', '{"tile":[4,2],"unroll":16}', 'ok', '[0.30000000000000004,1e-09]', '', 0.005, 0.05, 0.02, 0.001, false, 1.5);
INSERT INTO stormdrop_trial VALUES (1, 1, 0, 'packed', '{"tile":[2,4],"unroll":16}', 'ok', '[0.002]', '', 0.005, 0.05, 0.02, 0.001, false, 1.5);
INSERT INTO stormdrop_trial VALUES (1, 2, 1, 'streaming', '{"tile":[1],"unroll":0}', 'runtime', '[]', 'é	x', 0, 0, 0, 0, true, 2.5);
INSERT INTO stormdrop_trial VALUES (2, 0, 0, 'packed', '{"tile":[8,1],"unroll":16}', 'ok', '[0.003]', '', 0.005, 0.05, 0.02, 0.001, false, 1.5);
INSERT INTO stormdrop_workload VALUES (1, 'abababababababababababababababababababababababababababababababab', '3f62786426e1ba147f137a022102fb9254ea0ab357b294ef4c5b329f436c39f5', '{"function": "main"}');
SELECT pg_catalog.setval('stormdrop_session_number_seq', 2, true);
SELECT pg_catalog.setval('stormdrop_workload_id_seq', 1, true);
ALTER TABLE ONLY stormdrop_meta
    ADD CONSTRAINT stormdrop_meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY stormdrop_session
    ADD CONSTRAINT stormdrop_session_id_key UNIQUE (id);
ALTER TABLE ONLY stormdrop_session
    ADD CONSTRAINT stormdrop_session_pkey PRIMARY KEY (number);
ALTER TABLE ONLY stormdrop_trial
    ADD CONSTRAINT stormdrop_trial_pkey PRIMARY KEY (session, "position");
ALTER TABLE ONLY stormdrop_workload
    ADD CONSTRAINT stormdrop_workload_key_digest_key UNIQUE (key, digest);
ALTER TABLE ONLY stormdrop_workload
    ADD CONSTRAINT stormdrop_workload_pkey PRIMARY KEY (id);
CREATE INDEX stormdrop_session_workload ON stormdrop_session USING btree (workload);
ALTER TABLE ONLY stormdrop_session
    ADD CONSTRAINT stormdrop_session_workload_fkey FOREIGN KEY (workload) REFERENCES stormdrop_workload(id);
ALTER TABLE ONLY stormdrop_trial
    ADD CONSTRAINT stormdrop_trial_session_fkey FOREIGN KEY (session) REFERENCES stormdrop_session(number);
