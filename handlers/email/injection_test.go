package email_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/email"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

func TestF076InjectionIsRefused(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{})
	e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
	for name, c := range map[string]struct {
		letter email.Requested
		code   string
	}{
		"subject with CR LF Bcc":        {request("bob@example.org", "Hi\r\nBcc: eve@evil.example"), "subject"},
		"subject with LF":               {request("bob@example.org", "Hi\nX: y"), "subject"},
		"subject with NUL":              {request("bob@example.org", "Hi\x00"), "subject"},
		"subject with hidden CR LF":     {request("bob@example.org", "=?utf-8?q?Hi=0D=0ABcc:_eve@evil.example?="), "subject"},
		"subject with hidden base64 LF": {request("bob@example.org", "Re: =?UTF-8?B?SGkKQmNjOiBl?="), "subject"},
		"subject hidden twice":          {request("bob@example.org", "=?utf-8?q?=3D=3Futf-8=3Fq=3Fa=3D0Ab=3F=3D?="), "subject"},
		"subject in unknown charset":    {request("bob@example.org", "=?iso-2022-jp?B?SGk=?="), "subject"},
		"subject of 10 KB":              {request("bob@example.org", strings.Repeat("x", 10<<10)), "subject"},
		"no subject":                    {request("bob@example.org", ""), "subject"},
		"recipient with CR LF DATA":     {request("bob@example.org>\r\nDATA\r\n", "Hi"), "to"},
		"recipient with LF":             {request("bob@example.org\n", "Hi"), "to"},
		"name with LF":                  {request("Bob\nBcc: eve@evil.example <bob@example.org>", "Hi"), "to"},
		"quoted name with CR LF":        {request("\"Bob\r\nX: y\" <bob@example.org>", "Hi"), "to"},
		"name with hidden CR LF":        {request("=?utf-8?q?Bob=0D=0AX:_y?= <bob@example.org>", "Hi"), "to"},
		"quoted name with hidden LF":    {request(`"=?utf-8?q?=0A?=" <bob@example.org>`, "Hi"), "to"},
		"two recipients":                {request("bob@example.org, eve@evil.example", "Hi"), "to"},
		"group":                         {request("friends: bob@example.org;", "Hi"), "to"},
		"comment":                       {request("bob@example.org (eve@evil.example)", "Hi"), "to"},
		"quoted local part":             {request(`"bob eve"@example.org`, "Hi"), "to"},
		"parameter":                     {request("bob@example.org> NOTIFY=NEVER", "Hi"), "to"},
		"no domain":                     {request("bob", "Hi"), "to"},
		"address literal":               {request("bob@[127.0.0.1]", "Hi"), "to"},
		"not ASCII":                     {request("bób@example.org", "Hi"), "to"},
		"long local part":               {request(strings.Repeat("b", 65)+"@example.org", "Hi"), "to"},
		"no recipient":                  {request("", "Hi"), "to"},
		"no text":                       {email.Requested{To: "bob@example.org", Subject: "Hi"}, "text"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call(t, e, "k", c.letter)
			text := txtest.RequirePermanent(t, err, c.code)
			require.NotContains(t, text, "bob", "errors do not show addresses")
			require.NotContains(t, text, "eve", "errors do not show addresses")
		})
	}
	require.Empty(t, sink.Letters())
}

func TestF076HarmlessLettersArriveIntact(t *testing.T) {
	for name, c := range map[string]struct{ to, name, subject, text string }{
		"plain":           {"bob@example.org", "", "Hi", "Hello.\n"},
		"Unicode":         {"bob@example.org", "", "Grüße aus 東京 🎉: " + strings.Repeat("ä", 200), "Schöne Grüße\n"},
		"name":            {"Bob Doe <bob@example.org>", "Bob Doe", "Hi", "Hello.\n"},
		"Unicode name":    {"\"Böb, der Erste\" <bob@example.org>", "Böb, der Erste", "Hi", "Hello.\n"},
		"signs":           {"b.o'b+tag=1@mail.example.org", "", `"quotes" <b> a@b; c: d, \ =?`, "Hello.\n"},
		"dots":            {"bob@example.org", "", "Hi", ".\n..\n.\r\n.\nMAIL FROM:<eve@evil.example>\n"},
		"long lines":      {"bob@example.org", "", strings.Repeat("long ", 51), strings.Repeat("x", 5000) + "\n"},
		"one long word":   {"bob@example.org", "", strings.Repeat("x", 255), "Hello.\n"},
		"encoded word":    {"bob@example.org", "", "=?utf-8?q?Hi?=", "Hello.\n"},
		"header in text":  {"bob@example.org", "", "Hi", "Bcc: eve@evil.example\n\n"},
		"bare CR in text": {"bob@example.org", "", "Hi", "a\rb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			sink := smtpsink.Start(t, smtpsink.Options{})
			e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
			sent, err := call(t, e, "k", email.Requested{To: c.to, Subject: c.subject, Text: c.text})
			require.NoError(t, err)

			letters := sink.Letters()
			require.Len(t, letters, 1)
			require.Equal(t, "shop@example.org", letters[0].From)
			require.Equal(t, []string{sent.To}, letters[0].To, "the envelope has the one recipient")
			header, body := parse(t, letters[0].Data)
			to, err := header.AddressList("To")
			require.NoError(t, err)
			require.Len(t, to, 1)
			require.Equal(t, sent.To, to[0].Address)
			require.Equal(t, c.name, to[0].Name)
			for _, absent := range []string{"Bcc", "Cc", "X"} {
				require.Empty(t, header.Get(absent))
			}
			wantSubject := c.subject
			if name == "encoded word" {
				wantSubject = "Hi"
			}
			require.Equal(t, strings.TrimSpace(wantSubject), subjectOf(t, header))
			require.Equal(t, lines(c.text), lines(decodeQuoted(t, body)))
			for _, line := range strings.Split(string(letters[0].Data), "\r\n") {
				require.LessOrEqual(t, len(line), 998)
				require.NotContains(t, line, "\n")
			}
		})
	}
}

// lines brings all line ends to one form, as mail does.
func lines(text string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
}
