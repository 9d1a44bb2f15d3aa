package email_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
)

// drop is an answer that closes the connection instead.
const drop = ""

// answering is a mail server that gives its own answer to one step of the conversation ("EHLO", "MAIL", "RCPT", "DATA" or "." for
// the letter) and the usual one to all others. It returns its address.
func answering(t *testing.T, step, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan struct{})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		<-served
	})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			converse(conn, step, answer)
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

func converse(conn net.Conn, step, answer string) {
	usual := map[string]string{
		"EHLO": "250-test\r\n250 SIZE 1000000", "MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go on", ".": "250 2.0.0 taken as 4711", "QUIT": "221 bye",
	}
	usual[step] = answer
	lines, inLetter := bufio.NewScanner(conn), false
	if _, err := fmt.Fprint(conn, "220 test\r\n"); err != nil {
		return
	}
	for lines.Scan() {
		verb, _, _ := strings.Cut(lines.Text(), " ")
		if inLetter && verb != "." {
			continue
		}
		reply := usual[strings.ToUpper(verb)]
		if reply == drop {
			return
		}
		inLetter = strings.HasPrefix(reply, "354") && verb == "DATA"
		if _, err := fmt.Fprint(conn, reply+"\r\n"); err != nil {
			return
		}
	}
}

func TestAnswersOfTheServer(t *testing.T) {
	for _, c := range []struct{ step, answer, want string }{
		{"EHLO", "421 busy", "transient"},
		{"EHLO", "554 no", "transient"},
		{"EHLO", drop, "transient"},
		{"MAIL", "451 later", "transient"},
		{"MAIL", "550 5.7.1 <shop@example.org> may not send", "transient"}, // the configuration's fault, not the letter's
		{"MAIL", "530 5.7.0 log in", "transient"},
		{"MAIL", "552 5.3.4 too large", "permanent"},
		{"MAIL", drop, "transient"},
		{"RCPT", "450 4.2.1 greylisted", "transient"},
		{"RCPT", "550 5.1.1 <bob@example.org>: unknown", "permanent"},
		{"RCPT", "530 5.7.0 log in", "transient"},
		{"RCPT", drop, "transient"},
		{"DATA", "421 busy", "transient"},
		{"DATA", "554 no valid recipients", "permanent"},
		{"DATA", drop, "transient"},
		{".", "250 2.0.0 taken", "sent"},
		{".", "421 4.3.2 shutting down", "transient"},
		{".", "452 4.2.2 mailbox of bob@example.org is full", "transient"},
		{".", "552 5.2.2 mailbox of bob@example.org is full", "permanent"},
		{".", "554 5.7.1 spam", "permanent"},
		{".", "354 go on", "unknown"},
		{".", "251 will forward to <bob@example.org>", "unknown"},
		{".", "hello bob@example.org", "unknown"},
		{"RCPT", "hello bob@example.org", "transient"},
		{".", drop, "unknown"},
		{"QUIT", drop, "sent"},
		{"QUIT", "500 what", "sent"},
	} {
		t.Run(strings.TrimSpace(c.step+" "+c.answer), func(t *testing.T) {
			e := external(t, onRequested, addrConfig(t, answering(t, c.step, c.answer), "tls: none"))
			_, err := call(t, e, "k", request("bob@example.org", "Hi"))
			require.Equal(t, c.want, kind(err), "%v", err)
			if err != nil {
				require.NotContains(t, err.Error(), "bob@", "errors do not show addresses")
				require.NotContains(t, err.Error(), "shop@", "errors do not show addresses")
			}
		})
	}
}

func kind(err error) string {
	var permanent *handlers.PermanentError
	var unknown *handlers.UnknownError
	switch {
	case err == nil:
		return "sent"
	case errors.As(err, &permanent):
		return "permanent"
	case errors.As(err, &unknown):
		return "unknown"
	}
	return "transient"
}

func TestAnswerToTheLetterIsKept(t *testing.T) {
	e := external(t, onRequested, addrConfig(t, answering(t, ".", "250 2.0.0 taken as 4711\tby x"), "tls: none"))
	sent, err := call(t, e, "k", request("bob@example.org", "Hi"))
	require.NoError(t, err)
	require.Equal(t, "2.0.0 taken as 4711 by x", sent.Reply)
	_, err = call(t, e, "k", request("bob@example.org", "Hi\r\n"))
	txtest.RequirePermanent(t, err, "subject")
}
