-- For PostgreSQL, MySQL, MariaDB and SQLite. A row throttles one call: each subject, such as an address, may make it
-- MAX_CALLS times in WINDOW_SECONDS. (A row becomes a Rule, in rule.go, which says the same in more words.)
CREATE TABLE THROTTLED_CALLS (
    THROTTLE_ID          varchar(255) PRIMARY KEY,
    NORMALIZED_CALL      varchar(255) NOT NULL UNIQUE, -- a path with # for each variable segment, perhaps after a method
    MAX_CALLS            int          CHECK (MAX_CALLS > 0),      -- null only for unlimited and blocked
    WINDOW_SECONDS       int          CHECK (WINDOW_SECONDS > 0), -- null only for these, and with EVERY
    THROTTLE_EXPIRATION  bigint,               -- when the rule ends, in Unix seconds; null means never
    -- The columns below are optional.
    ALGORITHM            varchar(20),          -- null means sliding-log, or with EVERY calendar-window
    EVERY                varchar(10),          -- MAX_CALLS in each day, week, month, quarter or year
    ZONE                 varchar(64),          -- of these, such as Europe/London; null means UTC
    START                int,                  -- the day on which these begin, such as 31 of a month; null means the first
    HOUR                 int,                  -- at which these begin; null means midnight
    FIRST_LOCKOUT_SECONDS   int,               -- of a lockout: how long the first one lasts
    LONGEST_LOCKOUT_SECONDS int,               -- each lasts twice as long as the one before, up to this; null means as the first
    BURST                int,                  -- of a bucket
    SHADOW               boolean      NOT NULL DEFAULT false, -- whether denials are only reported
    ENABLED              boolean      NOT NULL DEFAULT true
);

CREATE TABLE limits (
    config_key      varchar(255) PRIMARY KEY,
    time_window_sec int CHECK (time_window_sec > 0), -- null only for unlimited and blocked
    capacity        int CHECK (capacity >= 0),       -- 0 or null blocks the key, unless it is unlimited
    algorithm       varchar(20)                      -- optional; null means a token bucket
);
