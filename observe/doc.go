// Package observe has observers for [ratelimit.WithObserver]: [TopDenied] finds the keys that are
// denied most, [TopUsed] those that use most, [Crossed] tells of keys that have used a fraction of
// their limit, and [Slog] logs denials and failures. The observer of package otellimit counts
// decisions for OpenTelemetry.
package observe
