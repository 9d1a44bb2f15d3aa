package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"
)

const (
	// nodeTick is how often a process that does not serve tries to, and one that does looks at its server.
	nodeTick = 100 * time.Millisecond
	// nodeReady bounds the start of a server, which reads its streams.
	nodeReady = 60 * time.Second
)

// node serves JetStream from a data folder in this process, as long as no other does. The process
// that holds an operating-system lock on the folder serves; the lock ends with its process, however that ends.
type node struct {
	dir        string
	port       int
	maxPayload int
	logger     *slog.Logger
	stop       chan struct{}
	stopped    chan struct{}
	once       sync.Once

	mu  sync.Mutex
	err error // of the last attempt to serve
}

func startNode(dir string, port, maxPayload int, logger *slog.Logger) (*node, error) {
	if err := os.MkdirAll(filepath.Join(dir, "nats"), 0o700); err != nil {
		return nil, fmt.Errorf("making the data folder: %w", err)
	}
	n := &node{dir: dir, port: port, maxPayload: maxPayload, logger: logger, stop: make(chan struct{}), stopped: make(chan struct{})}
	go n.run()
	return n, nil
}

// run serves whenever nobody else does.
func (n *node) run() {
	defer close(n.stopped)
	failures := 0
	for {
		err := n.turn()
		n.setErr(err)
		pause := nodeTick
		if err != nil && !errors.Is(err, errLocked) {
			failures++
			pause = reconnectDelay(failures, 5*time.Second)
			n.logger.Error("embedded nats server failed", slog.Any("err", err))
		}
		select {
		case <-time.After(pause):
		case <-n.stop:
			return
		}
	}
}

// errLocked says that another process serves.
var errLocked = errors.New("another process serves the data folder")

// turn takes the lock, serves until the stop or until the server fails, and only
// then gives the lock back: two servers on one folder corrupt it.
func (n *node) turn() error {
	lock, err := lockFile(filepath.Join(n.dir, "nats.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	before := readAddress(n.dir)
	s, err := n.serve(before)
	if err != nil {
		return err
	}
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()
	now := address{Addr: s.Addr().String(), Token: s.token, PID: os.Getpid()}
	if err := now.write(n.dir); err != nil {
		return err
	}
	n.setErr(nil)
	n.logger.Info("embedded nats server is serving", slog.String("address", now.Addr))
	return n.watch(s.Server)
}

func (n *node) watch(s *server.Server) error {
	for {
		select {
		case <-time.After(nodeTick):
			if !s.Running() || !s.JetStreamEnabled() {
				return errors.New("the server stopped by itself; the disk may be full or faulty")
			}
		case <-n.stop:
			return nil
		}
	}
}

// runningServer is a server and what gives access to it.
type runningServer struct {
	*server.Server
	token string
}

// serve starts the server, on the former address where that is free, so that the others find it soonest.
func (n *node) serve(before address) (*runningServer, error) {
	port := n.port
	if port == 0 {
		port = before.port()
	}
	s, err := n.start(port, before.token())
	if err != nil && n.port == 0 && port > 0 {
		n.logger.Debug("former port of the embedded nats server is taken", slog.Any("err", err))
		s, err = n.start(server.RANDOM_PORT, before.token())
	}
	return s, err
}

func (n *node) start(port int, token string) (*runningServer, error) {
	if port == 0 {
		port = server.RANDOM_PORT
	}
	// A port that is taken must be an error here; the server itself would end the process.
	if port > 0 {
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, fmt.Sprint(port)))
		if err != nil {
			return nil, fmt.Errorf("listening: %w; choose another port, or 0 for a free one", err)
		}
		if err := listener.Close(); err != nil {
			return nil, fmt.Errorf("listening: %w", err)
		}
	}
	s, err := server.NewServer(n.options(port, token))
	if err != nil {
		return nil, fmt.Errorf("configuring the server: %w", err)
	}
	fatal := make(chan string, 1)
	s.SetLoggerV2(&serverLog{logger: n.logger, fatal: fatal}, false, false, false)
	go s.Start()
	// A stop waits for the start: a server that is shut down while it reads its streams leaves some of their files open, and
	// may still write to them when another process serves the folder.
	deadline := time.After(nodeReady)
	for !s.ReadyForConnections(nodeTick) {
		var reason string
		select {
		case reason = <-fatal:
		case <-deadline:
			reason = "it does not get ready"
		default:
			continue
		}
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("starting the server: %s", reason)
	}
	return &runningServer{Server: s, token: token}, nil
}

const loopback = "127.0.0.1"

func (n *node) options(port int, token string) *server.Options {
	return &server.Options{
		ServerName: "oncemill", Host: loopback, Port: port, Authorization: token,
		NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(n.dir, "nats"),
		// Without it the server flushes to disk every two minutes, and a power cut takes confirmed messages.
		SyncAlways: true,
		MaxPayload: int32(n.maxPayload + headerRoom), //nolint:gosec // bounded by the configuration
	}
}

// close stops serving, and returns when the folder is free.
func (n *node) close() error {
	n.once.Do(func() { close(n.stop) })
	<-n.stopped
	return nil
}

func (n *node) setErr(err error) {
	n.mu.Lock()
	n.err = err
	n.mu.Unlock()
}

// failure is why there is no server, where this process knows.
func (n *node) failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// lockFile takes the lock, or returns errLocked. Closing the file, or the end of the process, frees it.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("locking %s: %w; the data folder must be on a file system with locks", path, err)
}

// serverLog writes the server's log at debug level.
type serverLog struct {
	logger *slog.Logger
	fatal  chan<- string
}

func (l *serverLog) log(level, format string, v ...any) {
	if l.logger.Enabled(context.Background(), slog.LevelDebug) {
		l.logger.Debug("embedded nats server log", slog.String("level", level), slog.String("text", fmt.Sprintf(format, v...)))
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.log("notice", format, v...) }
func (l *serverLog) Warnf(format string, v ...any)   { l.log("warn", format, v...) }
func (l *serverLog) Errorf(format string, v ...any)  { l.log("error", format, v...) }
func (l *serverLog) Debugf(format string, v ...any)  { l.log("debug", format, v...) }
func (l *serverLog) Tracef(format string, v ...any)  { l.log("trace", format, v...) }

func (l *serverLog) Fatalf(format string, v ...any) {
	l.log("fatal", format, v...)
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
