// Package observe has observers for [ratelimit.WithObserver]: [TopDenied] finds the keys that are
// denied most, and [Slog] logs denials and failures. Package otellimit has one that counts for
// OpenTelemetry.
package observe
