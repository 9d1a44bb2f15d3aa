package keystore

import "context"

// Statement is one statement with its arguments, in the words of the database.
type Statement struct {
	Query string
	Args  []any
}

// Pipeline is implemented by a Tx that can send several statements in one round trip.
type Pipeline interface {
	// ExecAll runs the statements in order and returns how many rows each of them changed. On an error it returns the
	// numbers of those before the failed one (of fewer where the database refused to prepare a statement at all); the transaction
	// can then only be rolled back.
	ExecAll(ctx context.Context, statements []Statement) ([]int64, error)
}
