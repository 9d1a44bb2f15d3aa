// Package smtpsink is a mail server for tests: it takes every letter, keeps it
// with what was said about it on the wire, and fails on request.
//
// Inside a test, [Start] returns a running sink. Other processes read its
// letters and set its faults over HTTP:
//
//	GET    /healthz      200 while the sink runs
//	GET    /letters      {"letters": [...], "absorbed": 0}; data is base64
//	DELETE /letters      forget all of them, and the count of absorbed ones
//	GET    /faults       the faults to come, as JSON
//	PUT    /faults       replace them
//	GET    /certificate  the certificate for STARTTLS, as PEM
package smtpsink

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
)

// Options configure a [Sink]. The zero value listens on free ports, without TLS and login.
type Options struct {
	// SMTPAddr is the address for mail.
	//
	// Defaults to a free port on 127.0.0.1.
	SMTPAddr string

	// HTTPAddr is the address of the HTTP interface.
	//
	// Defaults to a free port on 127.0.0.1.
	HTTPAddr string

	// StartTLS offers STARTTLS with a self-made certificate for 127.0.0.1 and localhost.
	StartTLS bool

	// Username and Password, if set, must be given with AUTH PLAIN before a
	// letter is taken. With StartTLS they are refused on an open connection.
	Username, Password string

	// AbsorbRepeats accepts a second letter with the same Message-ID without
	// keeping it, as some mailbox providers do. It is counted by [Sink.Absorbed].
	AbsorbRepeats bool

	// Faults are what goes wrong, from the start.
	Faults Faults
}

// Faults say what goes wrong with the letters to come. A count is used up
// letter by letter; -1 stands for every letter.
type Faults struct {
	// Delay is waited between the end of the body and the answer. The letter
	// is kept before the wait.
	Delay time.Duration `json:"delay,omitempty"`

	// DropKept keeps so many letters and drops their connection instead of
	// answering: the receiver has the letter, the sender does not know.
	DropKept int `json:"drop_kept,omitempty"`

	// DropLost drops the connection after the body of so many letters and does
	// not keep them. To the sender it looks like DropKept.
	DropLost int `json:"drop_lost,omitempty"`

	// RefuseData answers 451 after the body of so many letters, which are not kept.
	RefuseData int `json:"refuse_data,omitempty"`

	// RefuseRecipients answers 550 to RCPT TO for these addresses; "*" is every address.
	RefuseRecipients []string `json:"refuse_recipients,omitempty"`
}

// Letter is one mail as it came in.
type Letter struct {
	// From is the address of MAIL FROM.
	From string `json:"from"`
	// To are the accepted addresses of RCPT TO, in order.
	To []string `json:"to"`
	// MessageID is the header of that name, without angle brackets; empty if there is none.
	MessageID string `json:"message_id"`
	// Data is the letter itself, headers and body, with CRLF and without dot-stuffing.
	Data []byte `json:"data"`
	// TLS says that the letter came over an encrypted connection.
	TLS bool `json:"tls"`
	// User is who logged in, or empty.
	User string `json:"user,omitempty"`
	// Unanswered says that the connection was dropped instead of confirming the letter.
	Unanswered bool `json:"unanswered,omitempty"`
	// ReceivedAt is when the body was complete.
	ReceivedAt time.Time `json:"received_at"`
}

// Sink is a running mail server. Its methods may be called by several goroutines.
type Sink struct {
	options Options
	smtp    *smtp.Server
	http    *http.Server
	smtpAt  net.Addr
	httpAt  net.Addr
	cert    tls.Certificate
	closed  chan struct{}
	serving sync.WaitGroup
	close   func() error

	mu       sync.Mutex
	faults   Faults
	letters  []Letter
	absorbed int
}

// Start runs a sink until the test ends. It fails the test if it cannot listen.
func Start(t testing.TB, o Options) *Sink {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatalf("smtpsink: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("smtpsink: close: %v", err)
		}
	})
	return s
}

// New listens and serves until [Sink.Close]. It returns the error of listening.
func New(o Options) (*Sink, error) {
	s := &Sink{options: o, faults: o.Faults, closed: make(chan struct{})}
	s.close = sync.OnceValue(s.shut)

	s.smtp = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{sink: s, conn: c}, nil
	}))
	s.smtp.Domain = "smtpsink"
	s.smtp.ErrorLog = log.New(io.Discard, "", 0)
	s.smtp.AllowInsecureAuth = !o.StartTLS
	s.smtp.EnableSMTPUTF8 = true
	if o.StartTLS {
		var err error
		if s.cert, err = selfSigned(); err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		s.smtp.TLSConfig = &tls.Config{Certificates: []tls.Certificate{s.cert}, MinVersion: tls.VersionTLS12}
	}
	s.http = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}

	smtpListener, err := net.Listen("tcp", cmp.Or(o.SMTPAddr, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	httpListener, err := net.Listen("tcp", cmp.Or(o.HTTPAddr, "127.0.0.1:0"))
	if err != nil {
		return nil, errors.Join(err, smtpListener.Close())
	}
	s.smtpAt, s.httpAt = smtpListener.Addr(), httpListener.Addr()
	s.serving.Go(func() { _ = s.smtp.Serve(smtpListener) })
	s.serving.Go(func() { _ = s.http.Serve(httpListener) })
	return s, nil
}

// Close drops all connections and stops listening. It is safe to call it twice.
func (s *Sink) Close() error { return s.close() }

func (s *Sink) shut() error {
	close(s.closed)
	err := s.smtp.Close()
	if errors.Is(err, smtp.ErrServerClosed) {
		err = nil
	}
	err = errors.Join(err, s.http.Close())
	s.serving.Wait()
	return err
}

// Addr is the host and port for mail.
func (s *Sink) Addr() string { return s.smtpAt.String() }

// URL is the root of the HTTP interface.
func (s *Sink) URL() string { return "http://" + s.httpAt.String() }

// Letters returns the letters kept so far, in the order of their arrival.
func (s *Sink) Letters() []Letter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.letters)
}

// Absorbed returns how many letters were accepted but not kept because a letter
// with their Message-ID was there.
func (s *Sink) Absorbed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.absorbed
}

// Reset forgets all letters and the count of absorbed ones. The faults stay.
func (s *Sink) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letters, s.absorbed = nil, 0
}

// SetFaults replaces the faults, also for connections that are open.
func (s *Sink) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.RefuseRecipients = slices.Clone(f.RefuseRecipients)
	s.faults = f
}

// Faults returns the faults with what is left of their counts.
func (s *Sink) Faults() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.faults
	f.RefuseRecipients = slices.Clone(f.RefuseRecipients)
	return f
}

// CertPool holds the certificate of STARTTLS, for a client that shall trust it.
// It is empty without [Options.StartTLS].
func (s *Sink) CertPool() *x509.CertPool {
	pool := x509.NewCertPool()
	if s.cert.Leaf != nil {
		pool.AddCert(s.cert.Leaf)
	}
	return pool
}

// refuses says whether RCPT TO this address is answered with 550.
func (s *Sink) refuses(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.faults.RefuseRecipients, func(r string) bool {
		return r == "*" || strings.EqualFold(r, address)
	})
}

// outcome is what becomes of a letter whose body is complete.
type outcome int

const (
	confirm outcome = iota
	drop
	refuse
)

// take decides about a letter, keeps it unless it is lost, and says how long the answer waits.
func (s *Sink) take(l Letter) (outcome, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.faults
	switch {
	case use(&f.RefuseData):
		return refuse, f.Delay
	case use(&f.DropLost):
		return drop, f.Delay
	case use(&f.DropKept):
		l.Unanswered = true
		s.keep(l)
		return drop, f.Delay
	}
	s.keep(l)
	return confirm, f.Delay
}

func (s *Sink) keep(l Letter) {
	if s.options.AbsorbRepeats && l.MessageID != "" &&
		slices.ContainsFunc(s.letters, func(k Letter) bool { return k.MessageID == l.MessageID }) {
		s.absorbed++
		return
	}
	s.letters = append(s.letters, l)
}

// wait waits for d, and reports false when the sink was closed before.
func (s *Sink) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closed:
		return false
	}
}

// use takes one from a count and says whether there was one; -1 never ends.
func use(count *int) bool {
	if *count > 0 {
		*count--
		return true
	}
	return *count < 0
}

// messageID reads the header Message-ID.
func messageID(data []byte) string {
	m, err := mail.ReadMessage(bytes.NewReader(data))
	if err != nil {
		return ""
	}
	return strings.Trim(strings.TrimSpace(m.Header.Get("Message-Id")), "<>")
}
