package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDeploy: what a customer has used stays used when the server starts again, and while an old and a new process
// run.
func TestDeploy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan.db")
	start := func() (report func(customer string) string, stop func()) {
		db, store, err := open(t.Context(), file)
		require.NoError(t, err)
		h := handler(store)
		report = func(customer string) string {
			r := httptest.NewRequest("GET", "/report", nil)
			r.Header.Set("X-Customer", customer)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
			return w.Header().Get("RateLimit")
		}
		return report, func() {
			require.NoError(t, store.Close(t.Context()))
			require.NoError(t, db.Close())
		}
	}
	report, stop := start()
	assert.Contains(t, report("acme"), "r=9999;")
	assert.Contains(t, report("acme"), "r=9998;")
	stop()
	report, stop = start()
	defer stop()
	assert.Contains(t, report("acme"), "r=9997;")
	assert.Contains(t, report("other"), "r=9999;")
	again, stopAgain := start()
	defer stopAgain()
	assert.Contains(t, again("acme"), "r=9996;")
	assert.Contains(t, report("acme"), "r=9995;")
}

// TestUnwritable: while the file cannot be written, nothing is given away.
func TestUnwritable(t *testing.T) {
	db, store, err := open(t.Context(), filepath.Join(t.TempDir(), "plan.db"))
	require.NoError(t, err)
	h := handler(store)
	require.NoError(t, db.Close())
	r := httptest.NewRequest("GET", "/report", nil)
	r.Header.Set("X-Customer", "acme")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
}
