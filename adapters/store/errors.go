package store

import "errors"

// ErrDialect is returned by Migrate and Pending when a set of migrations has no folder for the store's dialect.
var ErrDialect = errors.New("store: no migrations for this database")
