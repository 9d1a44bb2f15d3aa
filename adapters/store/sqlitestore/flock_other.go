//go:build !unix

package sqlitestore

// flock without flock: writers of one process queue fairly, other processes are kept out by SQLite itself.
type flock struct{}

func openLock(string) (fileLock, error) { return flock{}, nil }

func (flock) tryLock() (bool, error) { return true, nil }
func (flock) lock() error            { return nil }
func (flock) unlock() error          { return nil }
func (flock) close() error           { return nil }
