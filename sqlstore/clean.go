package sqlstore

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A write in so many sweeps. Each sweep examines more rows than were written since the last
	// one, so that sweeps come round.
	writesPerSweep = 1000
	rowsPerSweep   = 2 * writesPerSweep

	// Rows stay for so long after they have expired, because a process whose clock is behind may
	// still need them.
	grace = time.Minute
)

// A sweep deletes expired rows along with writes.
type sweep struct {
	writes atomic.Int64 // so far

	mu    sync.Mutex // protects the fields below
	begun bool
	after string // the last id that was examined; "" if the table begins anew
}

// init lets processes that restart before their thousandth write sweep as often as others.
func (s *sweep) init() { s.writes.Store(rand.Int64N(writesPerSweep)) }

// sweepSometimes counts a write of key, and sweeps after each thousandth one. What it could not
// delete, a later sweep will.
func (t *table) sweepSometimes(ctx context.Context, key string) {
	s := &t.sweep
	if s.writes.Add(1)%writesPerSweep != 0 {
		return
	}
	s.mu.Lock()
	after := s.after
	if !s.begun {
		after = key // so that processes that restart often do not examine the same rows each time
	}
	s.mu.Unlock()
	last, _, err := t.cleanPage(ctx, after)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.begun, s.after = true, last
	s.mu.Unlock()
}

// cleanAll deletes all expired rows.
func (t *table) cleanAll(ctx context.Context) (deleted int64, err error) {
	if err := t.prepare(ctx); err != nil {
		return 0, err
	}
	for last := ""; ; {
		var n int64
		last, n, err = t.cleanPage(ctx, last)
		deleted += n
		if last == "" || err != nil {
			return deleted, err
		}
	}
}

// cleanPage deletes the rows that have expired among the next ones after an id. It returns the last
// of these, or "" if there are no more, and how many rows it has deleted.
func (t *table) cleanPage(
	ctx context.Context, after string,
) (last string, deleted int64, err error) {
	var end sql.NullString
	var rows int
	err = untilWon(func() error {
		row := t.db.QueryRowContext(ctx, t.sql.page, t.dialect.id(after), rowsPerSweep)
		return row.Scan(&end, &rows)
	})
	if err != nil || rows == 0 {
		return "", 0, t.failed("cleaning", err)
	}
	err = untilWon(func() error {
		deleted, err = t.write(ctx, t.sql.clean, t.dialect.id(after), t.dialect.id(end.String),
			t.config.clk.Now().Add(-grace).Unix())
		return err
	})
	if rows < rowsPerSweep {
		end.String = ""
	}
	return end.String, deleted, t.failed("cleaning", err)
}
