//go:build race

package budget

const race = true
