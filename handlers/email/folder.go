package email

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/mail"
	"os"
	"path/filepath"
)

// folderTransport writes each letter to a file named by its Message-ID.
type folderTransport struct {
	dir  string
	from *mail.Address
}

var _ transport = (*folderTransport)(nil)

func (f *folderTransport) path(l letter) string { return filepath.Join(f.dir, l.messageID+".eml") }

// send returns nil once the letter is on the disk, by this attempt or an earlier one. Every error means that trying again is safe.
func (f *folderTransport) send(_ context.Context, l letter) (string, error) {
	if err := f.write(l); err != nil {
		return "", fmt.Errorf("write letter to folder: %w", err)
	}
	return "", nil
}

func (f *folderTransport) write(l letter) error {
	body, err := l.encode(f.from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	temporary, err := f.writeTemporary(body)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary) }()
	// A link, unlike a rename, does not take the place of the file that an earlier attempt, or a rival, has written.
	if err := os.Link(temporary, f.path(l)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(f.dir)
}

func (f *folderTransport) writeTemporary(body []byte) (name string, err error) {
	file, err := os.CreateTemp(f.dir, ".letter-*")
	if err != nil {
		return "", err
	}
	_, err = file.Write(body)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// has reports whether the letter is there.
func (f *folderTransport) has(l letter) (bool, error) {
	_, err := os.Stat(f.path(l))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// syncDir makes a new name survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
