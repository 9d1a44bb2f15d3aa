package natsbroker

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mark is the highest stream sequence that was ever handed over for one consumer, shared by the processes
// on one data folder.
//
// An embedded server dies with the handler that killed the process, and with it what it
// delivered in its last tenth of a second: consumers' states are flushed that rarely. After the restart such messages
// look as if they had never been delivered. The mark outlives the process, because memory mapped to a file does; only a
// crash of the machine loses it, which is no handler's fault.
type mark struct {
	mu   sync.RWMutex // guards the mapping's end, not its value
	data []byte
}

const markSize = 8

// openMark maps the mark at path, and makes the file where there is none.
func openMark(path string) (*mark, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(markSize); err != nil {
		return nil, fmt.Errorf("sizing %s: %w", path, err)
	}
	data, err := unix.Mmap(int(file.Fd()), 0, markSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", path, err)
	}
	return &mark{data: data}, nil
}

// word is the mark as one machine word; a mapping is aligned to a page.
func (m *mark) word() *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(m.data))) }

func (m *mark) value() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.data == nil {
		return 0
	}
	return atomic.LoadUint64(m.word())
}

// raise moves the mark up to seq; it never moves it down. After close it does nothing.
func (m *mark) raise(seq uint64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for m.data != nil {
		old := atomic.LoadUint64(m.word())
		if seq <= old || atomic.CompareAndSwapUint64(m.word(), old, seq) {
			return
		}
	}
}

func (m *mark) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return
	}
	// Its only errors are those of wrong arguments.
	_ = unix.Munmap(m.data)
	m.data = nil
}
