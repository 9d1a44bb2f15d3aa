//go:build unix

package sqlitestore

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// flock is a lock on an open file. Two opens of one file exclude each other, also in one process.
type flock struct{ file *os.File }

func openLock(path string) (fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	return flock{f}, nil
}

func (l flock) tryLock() (bool, error) {
	err := l.call(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func (l flock) lock() error   { return l.call(unix.LOCK_EX) }
func (l flock) unlock() error { return l.call(unix.LOCK_UN) }
func (l flock) close() error  { return l.file.Close() }

func (l flock) call(how int) error {
	for {
		err := unix.Flock(int(l.file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
