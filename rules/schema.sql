-- For PostgreSQL, MySQL, MariaDB and SQLite.
CREATE TABLE THROTTLED_CALLS (
    THROTTLE_ID          varchar(255) PRIMARY KEY,
    NORMALIZED_CALL      varchar(255) NOT NULL UNIQUE,
    MAX_LOCKS            int          CHECK (MAX_LOCKS > 0),            -- null only for
    LOCK_TIMEOUT_SECONDS int          CHECK (LOCK_TIMEOUT_SECONDS > 0), -- unlimited and blocked
    THROTTLE_EXPIRATION  bigint,               -- in Unix seconds; null means never
    -- The columns below are optional.
    ALGORITHM            varchar(20),          -- null means sliding-log
    BURST                int,
    SHADOW               boolean      NOT NULL DEFAULT false,
    ENABLED              boolean      NOT NULL DEFAULT true
);

CREATE TABLE limits (
    config_key      varchar(255) PRIMARY KEY,
    time_window_sec int CHECK (time_window_sec > 0), -- null only for unlimited and blocked
    capacity        int CHECK (capacity >= 0),       -- 0 or null blocks the key, unless it is unlimited
    algorithm       varchar(20)                      -- optional; null means a token bucket
);
