package smtpsink_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/smtp"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

const letter = "Message-ID: <1@example.org>\r\nSubject: hello\r\n\r\nbody\r\n.dot\r\n"

func send(s *smtpsink.Sink, to ...string) error {
	return smtp.SendMail(s.Addr(), nil, "from@example.org", to, []byte(letter))
}

func code(err error) int {
	var reply *textproto.Error
	if errors.As(err, &reply) {
		return reply.Code
	}
	return 0
}

func TestKeepsLetters(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{})
	require.NoError(t, send(s, "a@example.org", "b@example.org"))
	letters := s.Letters()
	require.Len(t, letters, 1)
	require.Equal(t, "from@example.org", letters[0].From)
	require.Equal(t, []string{"a@example.org", "b@example.org"}, letters[0].To)
	require.Equal(t, "1@example.org", letters[0].MessageID)
	require.Equal(t, letter, string(letters[0].Data))

	s.Reset()
	require.Empty(t, s.Letters())
}

func TestAbsorbsRepeats(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{AbsorbRepeats: true})
	require.NoError(t, send(s, "a@example.org"))
	require.NoError(t, send(s, "a@example.org"))
	require.Len(t, s.Letters(), 1)
	require.Equal(t, 1, s.Absorbed())
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{RefuseData: 1}})
	require.Equal(t, 451, code(send(s, "a@example.org")))
	require.Empty(t, s.Letters())
	require.NoError(t, send(s, "a@example.org"))
	s.Reset()

	s.SetFaults(smtpsink.Faults{DropLost: 1})
	require.ErrorIs(t, send(s, "a@example.org"), io.EOF)
	require.Empty(t, s.Letters())

	s.SetFaults(smtpsink.Faults{DropKept: 1})
	require.ErrorIs(t, send(s, "a@example.org"), io.EOF)
	require.Len(t, s.Letters(), 1)
	require.True(t, s.Letters()[0].Unanswered)
	require.Zero(t, s.Faults().DropKept)

	s.SetFaults(smtpsink.Faults{RefuseRecipients: []string{"b@example.org"}})
	require.Equal(t, 550, code(send(s, "b@example.org")))
	require.NoError(t, send(s, "a@example.org"))

	s.SetFaults(smtpsink.Faults{Delay: 50 * time.Millisecond})
	started := time.Now()
	require.NoError(t, send(s, "a@example.org"))
	require.GreaterOrEqual(t, time.Since(started), 50*time.Millisecond)
}

func TestCloseEndsADelay(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{Delay: time.Hour}})
	sent := make(chan error, 1)
	go func() { sent <- send(s, "a@example.org") }()
	for len(s.Letters()) == 0 {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, s.Close())
	require.Error(t, <-sent)
}

func TestStartTLSAndLogin(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{StartTLS: true, Username: "user", Password: "pass"})
	deliver := func(password string) error {
		c, err := smtp.Dial(s.Addr())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.StartTLS(&tls.Config{RootCAs: s.CertPool(), ServerName: "127.0.0.1"}); err != nil {
			return err
		}
		if password != "" {
			if err := c.Auth(smtp.PlainAuth("", "user", password, "127.0.0.1")); err != nil {
				return err
			}
		}
		if err := c.Mail("from@example.org"); err != nil {
			return err
		}
		if err := c.Rcpt("a@example.org"); err != nil {
			return err
		}
		w, err := c.Data()
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, letter)
		return errors.Join(err, w.Close())
	}
	require.Equal(t, 530, code(deliver("")))
	require.Equal(t, 535, code(deliver("wrong")))
	require.NoError(t, deliver("pass"))
	require.True(t, s.Letters()[0].TLS)
	require.Equal(t, "user", s.Letters()[0].User)
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s := smtpsink.Start(t, smtpsink.Options{StartTLS: true})
	do := func(method, path, body string) (int, []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		data, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, data
	}
	status, _ := do(http.MethodPut, "/faults", `{"refuse_data": 1}`)
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, 1, s.Faults().RefuseData)
	status, _ = do(http.MethodPut, "/faults", `{"no_such": 1}`)
	require.Equal(t, http.StatusBadRequest, status)

	s.SetFaults(smtpsink.Faults{})
	// net/smtp would upgrade and does not trust the certificate: speak without it.
	c, err := smtp.Dial(s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.Mail("from@example.org"))
	require.NoError(t, c.Rcpt("a@example.org"))
	w, err := c.Data()
	require.NoError(t, err)
	_, err = io.WriteString(w, letter)
	require.NoError(t, err)
	require.NoError(t, w.Close())

	_, data := do(http.MethodGet, "/letters", "")
	var view struct {
		Letters  []smtpsink.Letter
		Absorbed int
	}
	require.NoError(t, json.Unmarshal(data, &view))
	require.Len(t, view.Letters, 1)
	require.Equal(t, letter, string(view.Letters[0].Data))

	_, data = do(http.MethodGet, "/certificate", "")
	require.True(t, bytes.HasPrefix(data, []byte("-----BEGIN CERTIFICATE-----")))
	status, _ = do(http.MethodDelete, "/letters", "")
	require.Equal(t, http.StatusNoContent, status)
	require.Empty(t, s.Letters())
}
