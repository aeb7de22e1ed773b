// Package zoneless_test has the laws of programs that may have no zone data. `make arch` runs it as
// a program for WASI, which sees no files. So the package imports neither time/tzdata nor what
// imports it, such as package storetest. It imports little else, because all of that is compiled
// for WASI first.
package zoneless_test
