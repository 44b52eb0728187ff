BEGIN TRANSACTION;
CREATE TABLE stormdrop_meta (
	name VARCHAR(32) NOT NULL,
	value VARCHAR(255) NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "stormdrop_meta" VALUES('version','1');
CREATE TABLE stormdrop_session (
	number INTEGER NOT NULL,
	id VARCHAR(36) NOT NULL,
	workload INTEGER NOT NULL,
	workload_name TEXT NOT NULL,
	target TEXT NOT NULL,
	machine TEXT NOT NULL,
	search VARCHAR(128) NOT NULL,
	seed TEXT NOT NULL,
	options TEXT NOT NULL,
	method TEXT NOT NULL,
	versions TEXT NOT NULL,
	sketches TEXT NOT NULL,
	created VARCHAR(40) NOT NULL,
	state VARCHAR(16) NOT NULL,
	writer TEXT,
	outcome TEXT,
	trials INTEGER NOT NULL,
	failed INTEGER NOT NULL,
	best_seconds DOUBLE,
	PRIMARY KEY (number),
	UNIQUE (id),
	FOREIGN KEY(workload) REFERENCES stormdrop_workload (id)
);
INSERT INTO "stormdrop_session" VALUES(1,'266e1527-c465-45b2-a933-81df80ba62a0',1,'conv2d_relu','llvm -num-cores 2','A CPU, 2 cores','droplet','7','{"confidence":0.95}','{"repeats":3}','{"tvm":"0.27.0"}','{"packed":"f1","streaming":"f2"}','2026-11-23T02:50:11.161096+00:00','finished',NULL,'{"sketch":"packed","config":{"tile":[4,2],"unroll":16},"seconds":0.0015,"interval":[0.0014,0.0016],"baseline_seconds":0.003,"converged":true,"extra":{"note":"\u00e9"}}',3,1,0.002);
INSERT INTO "stormdrop_session" VALUES(2,'a4e35714-a06b-4f26-b7cc-fa9401d0bdc0',1,'conv2d_relu','llvm -num-cores 2','A CPU, 2 cores','droplet','7','{"confidence":0.95}','{"repeats":3}','{"tvm":"0.27.0"}','{"packed":"f1","streaming":"f2"}','2026-11-23T02:50:11.400359+00:00','interrupted',NULL,NULL,1,0,0.003);
CREATE TABLE stormdrop_trial (
	session INTEGER NOT NULL,
	position INTEGER NOT NULL,
	batch INTEGER NOT NULL,
	sketch TEXT NOT NULL,
	config TEXT NOT NULL,
	status VARCHAR(32) NOT NULL,
	seconds TEXT NOT NULL,
	error TEXT NOT NULL,
	schedule_seconds DOUBLE NOT NULL,
	build_seconds DOUBLE NOT NULL,
	run_seconds DOUBLE NOT NULL,
	check_seconds DOUBLE NOT NULL,
	suspect BOOLEAN NOT NULL,
	elapsed DOUBLE NOT NULL,
	PRIMARY KEY (session, position),
	FOREIGN KEY(session) REFERENCES stormdrop_session (number)
);
INSERT INTO "stormdrop_trial" VALUES(1,0,0,'packed','{"tile":[4,2],"unroll":16}','ok','[0.30000000000000004,1e-09]','',0.005,0.05,0.02,0.001,0,1.5);
INSERT INTO "stormdrop_trial" VALUES(1,1,0,'packed','{"tile":[2,4],"unroll":16}','ok','[0.002]','',0.005,0.05,0.02,0.001,0,1.5);
INSERT INTO "stormdrop_trial" VALUES(1,2,1,'streaming','{"tile":[1],"unroll":0}','runtime','[]','é	x',0.0,0.0,0.0,0.0,1,2.5);
INSERT INTO "stormdrop_trial" VALUES(2,0,0,'packed','{"tile":[8,1],"unroll":16}','ok','[0.003]','',0.005,0.05,0.02,0.001,0,1.5);
CREATE TABLE stormdrop_workload (
	id INTEGER NOT NULL,
	"key" VARCHAR(128) NOT NULL,
	digest VARCHAR(64) NOT NULL,
	text TEXT NOT NULL,
	PRIMARY KEY (id),
	UNIQUE ("key", digest)
);
INSERT INTO "stormdrop_workload" VALUES(1,'abababababababababababababababababababababababababababababababab','3f62786426e1ba147f137a022102fb9254ea0ab357b294ef4c5b329f436c39f5','{"function": "main"}');
CREATE INDEX stormdrop_session_workload ON stormdrop_session (workload);
COMMIT;
