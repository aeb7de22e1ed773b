// Package browser tests the page of limitpage, and that of examples/replay, in a real browser:
// Chromium, without a window. It has no code of its own. If there is no Chromium, the tests are
// skipped, or fail if RATELIMIT_SERVERS is set, as in CI.
package browser
