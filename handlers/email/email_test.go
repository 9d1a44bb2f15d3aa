package email_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/email"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
)

const (
	onCompleted = "payments.completed"
	onRequested = "email.requested"
)

// external returns the handler of a topic with this configuration.
func external(t *testing.T, topic, config string) *handlers.External {
	t.Helper()
	for _, b := range txtest.Bindings(t, email.Plugin(), config) {
		if b.Topic == topic {
			return b.External
		}
	}
	t.Fatalf("no binding for %q", topic)
	return nil
}

// call runs Call once for a key.
func call(t *testing.T, e *handlers.External, key string, payload any) (email.Sent, error) {
	t.Helper()
	return callWith(t, t.Context(), e, key, payload)
}

func callWith(t *testing.T, ctx context.Context, e *handlers.External, key string, payload any) (sent email.Sent, err error) {
	t.Helper()
	result, err := e.Call(ctx, txtest.Message(t, key, payload), handlers.NewKey(txtest.Scope, key))
	if err == nil {
		text, err := json.Marshal(result)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &sent))
	}
	return sent, err
}

func request(to, subject string) email.Requested {
	return email.Requested{To: to, Subject: subject, Text: "Hello.\n"}
}

// read parses the only letter of a folder.
func read(t *testing.T, dir string) (header mail.Header, body string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.eml"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	return parse(t, data)
}

func parse(t *testing.T, data []byte) (header mail.Header, body string) {
	t.Helper()
	m, err := mail.ReadMessage(strings.NewReader(string(data)))
	require.NoError(t, err)
	text, err := io.ReadAll(m.Body)
	require.NoError(t, err)
	return m.Header, string(text)
}

func subjectOf(t *testing.T, header mail.Header) string {
	t.Helper()
	text, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject"))
	require.NoError(t, err)
	return text
}

func TestConfirmationOfAPayment(t *testing.T) {
	dir := t.TempDir()
	e := external(t, onCompleted, "folder: "+dir)
	sent, err := call(t, e, "k", `{"payment_id":"p1","status":"completed","from":"alice","to":"bob","amount":"78.43","currency":"EUR"}`)
	require.NoError(t, err)
	header, body := read(t, dir)
	require.Equal(t, "<bob@example.org>", header.Get("To"))
	require.Equal(t, "Payment p1 completed", subjectOf(t, header))
	require.Contains(t, body, "78.43 EUR were paid from alice to bob.")
	require.Equal(t, "<"+sent.MessageID+">", header.Get("Message-ID"))
	require.Equal(t, handlers.NewKey(txtest.Scope, "k").String()+"@localhost", sent.MessageID)
}

func TestConfirmationFromConfiguration(t *testing.T) {
	dir := t.TempDir()
	e := external(t, onCompleted, "folder: "+dir+`
from: Shop <shop@shop.example>
domain: id.example
confirmation: {to: "pay-{payment_id}@example.com", subject: "{amount} {from}"}`)
	sent, err := call(t, e, "k", `{"payment_id":7,"from":"{to}","to":"x","amount":5,"currency":"EUR"}`)
	require.NoError(t, err)
	require.Equal(t, "pay-7@example.com", sent.To)
	require.Equal(t, "5 {to}", sent.Subject, "a field is not replaced again")
	require.True(t, strings.HasSuffix(sent.MessageID, "@id.example"))
	header, body := read(t, dir)
	require.Equal(t, `"Shop" <shop@shop.example>`, header.Get("From"))
	require.Contains(t, body, "5 EUR were paid", "what is not set keeps its default")
}

func TestConfirmationThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	e := external(t, onCompleted, "folder: "+dir)
	for payload, code := range map[string]string{
		`{"payment_id":"p","from":"a","amount":"1","currency":"EUR"}`:                               "to",
		`{"from":"a","to":"b","amount":"1","currency":"EUR"}`:                                       "payment_id",
		`{"payment_id":"p","from":"a","to":"b","amount":null,"currency":"EUR"}`:                     "amount",
		`{"payment_id":"p","from":"a","to":"eve@evil.example,x","amount":"1","currency":"EUR"}`:     "to",
		`{"payment_id":"p","from":"a","to":"<eve@evil.example>","amount":"1","currency":"EUR"}`:     "to",
		`{"payment_id":"p\nBcc: e@evil.example","from":"a","to":"b","amount":"1","currency":"EUR"}`: "subject",
		`{"payment_id":{},"from":"a","to":"b","amount":"1","currency":"EUR"}`:                       "payload-not-json",
		`[`: "payload-not-json",
	} {
		_, err := call(t, e, "k", payload)
		txtest.RequirePermanent(t, err, code)
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}

// An attempt after a crash, and a rival whose lease is lost, find the first file: one letter for a key.
func TestFolderDeduplicatesByMessageID(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	e := external(t, onRequested, "folder: "+dir)
	require.Equal(t, handlers.UnknownRetry, e.Unknown)

	msg := request("bob@example.org", "Hi")
	_, known, err := e.Probe(t.Context(), txtest.Message(t, "k", msg), handlers.NewKey(txtest.Scope, "k"))
	require.NoError(t, err)
	require.False(t, known)

	var rivals sync.WaitGroup
	results := make([]email.Sent, 8)
	for i := range results {
		rivals.Go(func() {
			text := msg
			text.Text = fmt.Sprint("rival ", i)
			results[i], _ = call(t, e, "k", text)
		})
	}
	rivals.Wait()
	for _, r := range results {
		require.Equal(t, results[0], r)
		require.NotEmpty(t, r.MessageID)
	}
	_, body := read(t, dir)
	_, err = call(t, e, "k", msg)
	require.NoError(t, err)
	_, again := read(t, dir)
	require.Equal(t, body, again, "the first file stays as it is")

	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "no temporary file is left")
	info, err := files[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	result, known, err := e.Probe(t.Context(), txtest.Message(t, "k", msg), handlers.NewKey(txtest.Scope, "k"))
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, results[0], result)
}

func TestFolderThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := call(t, external(t, onRequested, "folder: "+file), "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
}

// Record writes the row and the announcement in one transaction.
func TestLetterIsRecorded(t *testing.T) {
	config := "announce: true\nfolder: " + t.TempDir()
	txtest.Each(t, email.Plugin(), config, func(t *testing.T, db *txtest.DB) {
		e := external(t, onRequested, config)
		sent, err := call(t, e, "k", request("Bob <bob@example.org>", "Grüße"))
		require.NoError(t, err)
		result, err := json.Marshal(sent)
		require.NoError(t, err)
		msg := txtest.Message(t, "k", "{}")
		for range 2 { // the second time after its key has expired
			d := db.Do("k", func(ctx context.Context, tx handlers.Tx) (any, error) {
				return nil, e.Record(ctx, tx, msg, result)
			})
			require.NoError(t, d.Err)
			require.Len(t, d.Published, 1)
			require.Equal(t, "email.sent", d.Published[0].Topic)
			require.JSONEq(t, string(result), string(d.Published[0].Payload))
		}
		require.Equal(t, "1", db.Text(`SELECT count(*) FROM letters`))
		require.Equal(t, "bob@example.org Grüße email.requested", db.Text(
			`SELECT recipient || ' ' || subject || ' ' || topic FROM letters WHERE scope = ? AND idempotency_key = 'k'`, txtest.Scope))
		require.Equal(t, sent.MessageID, db.Text(`SELECT message_id FROM letters`))
		require.NotEmpty(t, db.Text(`SELECT sent_at FROM letters`))
	})
}

func TestBindingNames(t *testing.T) {
	var names []string
	for _, b := range txtest.Bindings(t, email.Plugin(), "") {
		names = append(names, b.Name+" "+b.Topic)
	}
	require.Equal(t, []string{"email payments.completed", "email-requested email.requested"}, names)
}
