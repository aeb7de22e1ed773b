// Package observe has observers for [ratelimit.WithObserver]: [TopDenied] finds the keys that are
// denied most, and [Slog] logs denials and failures. The observer of package otellimit counts
// decisions for OpenTelemetry.
package observe
