package smtpsink

import (
	"crypto/subtle"
	"errors"
	"io"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// session is the conversation on one connection.
type session struct {
	sink *Sink
	conn *smtp.Conn
	user string
	from string
	to   []string
}

var _ smtp.AuthSession = (*session)(nil)

func (s *session) AuthMechanisms() []string {
	if s.sink.options.Username == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(mechanism string) (sasl.Server, error) {
	if s.sink.options.Username == "" || mechanism != sasl.Plain {
		return nil, smtp.ErrAuthUnknownMechanism
	}
	return sasl.NewPlainServer(func(_, username, password string) error {
		o := s.sink.options
		if subtle.ConstantTimeCompare([]byte(username), []byte(o.Username))&
			subtle.ConstantTimeCompare([]byte(password), []byte(o.Password)) != 1 {
			return smtp.ErrAuthFailed
		}
		s.user = username
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.sink.options.Username != "" && s.user == "" {
		return &smtp.SMTPError{Code: 530, EnhancedCode: smtp.EnhancedCode{5, 7, 0}, Message: "Authentication required"}
	}
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if s.sink.refuses(to) {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "No such mailbox"}
	}
	s.to = append(s.to, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, encrypted := s.conn.TLSConnectionState()
	result, delay := s.sink.take(Letter{
		From: s.from, To: s.to, MessageID: messageID(data), Data: data,
		TLS: encrypted, User: s.user, ReceivedAt: time.Now(),
	})
	if delay > 0 && !s.sink.wait(delay) {
		result = drop // whoever waits for an answer has none from a server that is gone
	}
	switch result {
	case refuse:
		return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "Try again later"}
	case drop:
		return errors.Join(errDropped, s.conn.Conn().Close())
	}
	return nil
}

func (s *session) Reset() { s.from, s.to = "", nil }

func (s *session) Logout() error { return nil }

// errDropped ends a session whose connection was closed on purpose; nobody is left to read it.
var errDropped = errors.New("connection dropped on request")
