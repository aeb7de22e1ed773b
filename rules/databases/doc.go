// Package databases contains only tests, which run package rules and CASStores on real databases. It
// is a separate module so that other modules do not depend on the database drivers.
package databases
