// Package complete_test compares the kernels of all algorithms with the definitions in
// docs/algorithms.md, in every state to which any history of a small limit leads.
//
// States are finite relative to the present: instants are only so far ago that they still count.
// So the tests walk all pairs of a kernel's state and a definition's state that any history
// reaches, and compare all answers in each of them, for each number of events. A wait of one tick
// leads to the next pair, so that every longer wait is covered as well. By induction, kernel and
// definition then agree in every history, however long. docs/checked.md says what this proves, and
// what it does not.
//
// Requests are walked in the same way. Their definition, a history, has a world for each way in
// which the open holds may be settled. That of a key whose limit changes, changing, has what each of
// two limits has counted.
//
// The definitions share nothing with the kernels. They are written as docs/algorithms.md words them.
// internal/model is a second definition, of large numbers, which the walks of requests ask as well.
package complete_test
