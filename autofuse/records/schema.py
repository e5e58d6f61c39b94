"""The tables of the SQLite store. Documented here, created and changed by `migrations.py` alone.

meta        name → value; `schema_version` is the version of the schema, `application` marks the file as ours,
            `evaluation_only` = 1 one that nothing may be learned from.
hardware    one row per machine description: digest, readable name, detail (JSON), and the usual times, in seconds, of
            the reference kernels on it (medians over its records; NULL until there are some).
software    what made a kernel: TVM's and autofuse's versions, schedule family and its version; from version 4 on the
            version of the code generation too (0: not known).
workload    key, canonical text of the group, readable label.
membership  which models contain a workload.
form        the group as it was stored when measured (`groups.py`): workload and border layouts → JSON text.
record      one measurement of one kernel: the three above, configuration, border layouts, how it ended, samples (JSON
            list, seconds), reference samples (JSON object of lists as long as `samples`), the reference that counts,
            and what look-ups need of them: latency (median, seconds), reference_latency (mean of the reference's least
            tenth, seconds), ratio (`record.ratio_of`: samples / reference samples). tir_digest identifies
            the scheduled code. created is UTC. digest makes merging idempotent. From version 2 on: cold_latency,
            cold_ratio, cold_samples, cold_reference_samples, the same of the samples with cold weights (NULL or empty
            where there are none). Before version 3 the lower quartile stood for the mean of the least tenth,
            before version 5 ratios were those of the least tenths alone, and there was no reference "product".
"""

from __future__ import annotations

from autofuse.records.record import REFERENCES, STATUSES

SCHEMA_VERSION = 5
APPLICATION = "autofuse records"
EVALUATION_ONLY = "evaluation_only"


def _one_of(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


VERSION_1 = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE hardware (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        detail TEXT NOT NULL,
        arithmetic_baseline REAL,
        memory_baseline REAL)""",
    """CREATE TABLE software (
        id INTEGER PRIMARY KEY,
        tvm TEXT NOT NULL,
        autofuse TEXT NOT NULL,
        family TEXT NOT NULL,
        family_version INTEGER NOT NULL,
        UNIQUE (family, family_version, tvm, autofuse))""",
    """CREATE TABLE workload (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        text TEXT NOT NULL,
        label TEXT NOT NULL)""",
    """CREATE TABLE membership (
        workload INTEGER NOT NULL REFERENCES workload (id) ON DELETE CASCADE,
        model TEXT NOT NULL,
        PRIMARY KEY (workload, model)) WITHOUT ROWID""",
    """CREATE TABLE form (
        workload INTEGER NOT NULL REFERENCES workload (id) ON DELETE CASCADE,
        layouts TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (workload, layouts)) WITHOUT ROWID""",
    f"""CREATE TABLE record (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        workload INTEGER NOT NULL REFERENCES workload (id),
        hardware INTEGER NOT NULL REFERENCES hardware (id),
        software INTEGER NOT NULL REFERENCES software (id),
        config TEXT NOT NULL,
        layouts TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ({_one_of(STATUSES)})),
        message TEXT NOT NULL,
        samples TEXT NOT NULL,
        reference_samples TEXT NOT NULL,
        reference TEXT NOT NULL CHECK (reference IN ('arithmetic', 'memory')),
        latency REAL CHECK (latency > 0),
        reference_latency REAL CHECK (reference_latency > 0),
        ratio REAL CHECK (ratio > 0),
        tir_digest TEXT NOT NULL,
        created TEXT NOT NULL,
        CHECK ((status = 'ok') = (latency IS NOT NULL)))""",
    "CREATE INDEX record_lookup ON record (workload, hardware, config, layouts)",
    "CREATE INDEX record_hardware ON record (hardware, status)",
    "CREATE INDEX record_software ON record (software)",
    "CREATE INDEX membership_model ON membership (model)",
)
"""The statements that make an empty database one of version 1."""

VERSION_2 = (
    "ALTER TABLE record ADD COLUMN cold_latency REAL CHECK (cold_latency > 0)",
    "ALTER TABLE record ADD COLUMN cold_ratio REAL CHECK (cold_ratio > 0)",
    "ALTER TABLE record ADD COLUMN cold_samples TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE record ADD COLUMN cold_reference_samples TEXT NOT NULL DEFAULT '{}'",
)
"""The statements that make a database of version 1 one of version 2: its records have no cold samples."""

VERSION_4 = (
    """CREATE TABLE software_4 (
        id INTEGER PRIMARY KEY,
        tvm TEXT NOT NULL,
        autofuse TEXT NOT NULL,
        family TEXT NOT NULL,
        family_version INTEGER NOT NULL,
        codegen_version INTEGER NOT NULL,
        UNIQUE (family, family_version, codegen_version, tvm, autofuse))""",
    "INSERT INTO software_4 SELECT id, tvm, autofuse, family, family_version, 0 FROM software",
    "DROP TABLE software",
    "ALTER TABLE software_4 RENAME TO software",
)
"""The statements that make a database of version 3 one of version 4: nobody knows what its records' code was made by.

Foreign keys must not be enforced meanwhile.
"""

_RECORD_5 = """id, digest, workload, hardware, software, config, layouts, status, message, samples, reference_samples,
    reference, latency, reference_latency, ratio, tir_digest, created, cold_latency, cold_ratio, cold_samples,
    cold_reference_samples"""

VERSION_5 = (
    "ALTER TABLE hardware ADD COLUMN product_baseline REAL",
    f"""CREATE TABLE record_5 (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        workload INTEGER NOT NULL REFERENCES workload (id),
        hardware INTEGER NOT NULL REFERENCES hardware (id),
        software INTEGER NOT NULL REFERENCES software (id),
        config TEXT NOT NULL,
        layouts TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ({_one_of(STATUSES)})),
        message TEXT NOT NULL,
        samples TEXT NOT NULL,
        reference_samples TEXT NOT NULL,
        reference TEXT NOT NULL CHECK (reference IN ({_one_of(REFERENCES)})),
        latency REAL CHECK (latency > 0),
        reference_latency REAL CHECK (reference_latency > 0),
        ratio REAL CHECK (ratio > 0),
        tir_digest TEXT NOT NULL,
        created TEXT NOT NULL,
        cold_latency REAL CHECK (cold_latency > 0),
        cold_ratio REAL CHECK (cold_ratio > 0),
        cold_samples TEXT NOT NULL DEFAULT '[]',
        cold_reference_samples TEXT NOT NULL DEFAULT '{{}}',
        CHECK ((status = 'ok') = (latency IS NOT NULL)))""",
    f"INSERT INTO record_5 ({_RECORD_5}) SELECT {_RECORD_5} FROM record",
    "DROP TABLE record",
    "ALTER TABLE record_5 RENAME TO record",
    "CREATE INDEX record_lookup ON record (workload, hardware, config, layouts)",
    "CREATE INDEX record_hardware ON record (hardware, status)",
    "CREATE INDEX record_software ON record (software)",
)
"""The statements that make a database of version 4 one of version 5: another reference kernel may count.

Foreign keys must not be enforced meanwhile; ratios are computed anew after it.
"""
