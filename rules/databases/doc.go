// Package databases has no code: its tests run package rules on real databases. It
// is a module of its own so that their drivers are nobody else's dependencies.
package databases
