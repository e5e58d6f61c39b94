BEGIN TRANSACTION;
CREATE TABLE form (
        workload INTEGER NOT NULL REFERENCES workload (id) ON DELETE CASCADE,
        layouts TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (workload, layouts)) WITHOUT ROWID;
INSERT INTO "form" VALUES(1,'NCHW8c->','{"operators":[{"accesses":[[0,0,"Many-to-Many",144,9,-1],[1,1,"Many-to-Many",1,1,1]],"attrs":{"strides":[1,1],"variant":"blocked"},"blocks":2,"form":"f","inputs":[0,1],"kind":"nn.conv2d","outputs":[2],"reduction":[2,3,3,8],"spatial":[1,2,4,4,8],"work":[36864,0,0,0,0]},{"accesses":[[0,2,"One-to-One",1,1,1]],"attrs":{},"blocks":1,"form":"r","inputs":[2],"kind":"nn.relu","outputs":[3],"reduction":[],"spatial":[],"work":[0,0,0,0,256]}],"outputs":[2,3],"tensors":[[[1,2,4,4,8],"float32","input","",[]],[[2,2,3,3,8,8],"float32","constant","",[]],[[1,2,4,4,8],"float32","value","NCHW8c",[]],[[1,2,4,4,8],"float16","value","",[]]],"version":1}');
CREATE TABLE hardware (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        detail TEXT NOT NULL,
        arithmetic_baseline REAL,
        memory_baseline REAL, product_baseline REAL);
INSERT INTO "hardware" VALUES(1,'hw1','a machine','{"isa":["avx2"],"threads":2}',0.0002,NULL,NULL);
INSERT INTO "hardware" VALUES(2,'hw2','another machine','{"threads":4}',NULL,NULL,NULL);
CREATE TABLE membership (
        workload INTEGER NOT NULL REFERENCES workload (id) ON DELETE CASCADE,
        model TEXT NOT NULL,
        PRIMARY KEY (workload, model)) WITHOUT ROWID;
INSERT INTO "membership" VALUES(1,'resnet50');
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('application','autofuse records');
INSERT INTO "meta" VALUES('schema_version','5');
CREATE TABLE "record" (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        workload INTEGER NOT NULL REFERENCES workload (id),
        hardware INTEGER NOT NULL REFERENCES hardware (id),
        software INTEGER NOT NULL REFERENCES software (id),
        config TEXT NOT NULL,
        layouts TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ok', 'wrong', 'build_failed', 'crashed', 'timeout', 'oom')),
        message TEXT NOT NULL,
        samples TEXT NOT NULL,
        reference_samples TEXT NOT NULL,
        reference TEXT NOT NULL CHECK (reference IN ('arithmetic', 'memory', 'product')),
        latency REAL CHECK (latency > 0),
        reference_latency REAL CHECK (reference_latency > 0),
        ratio REAL CHECK (ratio > 0),
        tir_digest TEXT NOT NULL,
        created TEXT NOT NULL,
        cold_latency REAL CHECK (cold_latency > 0),
        cold_ratio REAL CHECK (cold_ratio > 0),
        cold_samples TEXT NOT NULL DEFAULT '[]',
        cold_reference_samples TEXT NOT NULL DEFAULT '{}',
        CHECK ((status = 'ok') = (latency IS NOT NULL)));
INSERT INTO "record" VALUES(1,'9509f1dc4299ef71eb6767a958675cd7',1,1,1,'a=1','','ok','','[0.001,0.001,0.0015]','{"arithmetic":[0.0002,0.0002,0.0003],"memory":[0.001,0.001,0.001]}','arithmetic',0.001,0.0002,5.0,'','2025-01-01T00:00:00.000000Z',NULL,NULL,'[]','{}');
INSERT INTO "record" VALUES(2,'6a71e81a11c5b5121838fb481b5b0cb7',1,1,1,'a=1','','ok','','[0.002,0.002,0.003]','{"arithmetic":[0.0002,0.0002,0.0003],"memory":[0.001,0.001,0.001]}','arithmetic',0.002,0.0002,10.0,'','2025-01-01T00:00:01.000000Z',NULL,NULL,'[]','{}');
INSERT INTO "record" VALUES(3,'a1fa9891b429c4ea76b08068603a8322',1,1,1,'a=2','','crashed','SIGSEGV','[]','{}','arithmetic',NULL,NULL,NULL,'','2025-01-01T00:00:02.000000Z',NULL,NULL,'[]','{}');
INSERT INTO "record" VALUES(4,'47d5c8a39ca0109ca0d00a39d8fbffca',1,1,1,'a=3','NCHW8c->','ok','','[0.001,0.001,0.0015]','{"arithmetic":[0.0002,0.0002,0.0003],"memory":[0.001,0.001,0.001]}','arithmetic',0.001,0.0002,5.0,'0123456789abcdef','2025-01-01T00:00:03.000000Z',0.003,15.0,'[0.003,0.003,0.006]','{"arithmetic":[0.0002,0.0002,0.0002],"memory":[0.001,0.001,0.001]}');
CREATE TABLE "software" (
        id INTEGER PRIMARY KEY,
        tvm TEXT NOT NULL,
        autofuse TEXT NOT NULL,
        family TEXT NOT NULL,
        family_version INTEGER NOT NULL,
        codegen_version INTEGER NOT NULL,
        UNIQUE (family, family_version, codegen_version, tvm, autofuse));
INSERT INTO "software" VALUES(1,'0.27','','conv',1,1);
CREATE TABLE workload (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        text TEXT NOT NULL,
        label TEXT NOT NULL);
INSERT INTO "workload" VALUES(1,'w1','conv 1','conv');
INSERT INTO "workload" VALUES(2,'w2','matmul 1','');
CREATE INDEX membership_model ON membership (model);
CREATE INDEX record_lookup ON record (workload, hardware, config, layouts);
CREATE INDEX record_hardware ON record (hardware, status);
CREATE INDEX record_software ON record (software);
COMMIT;
