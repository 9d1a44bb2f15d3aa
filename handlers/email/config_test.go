package email_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/email"
)

const smtpConfig = "{transport: smtp, from: shop@example.org, smtp: {host: mail.example.org}}"

func openWith(text string) error {
	return email.Plugin().Open(func(target any) error {
		return yaml.UnmarshalWithOptions([]byte(text), target, yaml.Strict())
	}, handlers.NewBindings("email"))
}

func TestConfigurationIsChecked(t *testing.T) {
	require.NoError(t, openWith(smtpConfig))
	require.NoError(t, openWith("{transport: smtp, from: a@b, smtp: {host: localhost, tls: none, username: u}}"))
	for text, want := range map[string]string{
		"transport: pigeon": "transport:",
		"folder: ''":        "folder:",
		"from: nobody":      "from:",
		"from: ''":          "from:",
		"domain: 'a b'":     "domain:",
		"{transport: smtp, smtp: {host: mail.example.org}}":                                                  "from: is needed",
		"{transport: smtp, from: a@b}":                                                                       "smtp.host:",
		"{transport: smtp, from: a@b, smtp: {host: h, tls: maybe}}":                                          "smtp.tls:",
		"{transport: smtp, from: a@b, smtp: {host: h, port: 70000}}":                                         "smtp.port:",
		"{transport: smtp, from: a@b, smtp: {host: h, timeout: 0s}}":                                         "smtp.timeout:",
		"{transport: smtp, from: a@b, smtp: {host: h, hello_name: 'a b'}}":                                   "smtp.hello_name:",
		"{transport: smtp, from: a@b, smtp: {host: h, username: u, tls: none}}":                              "smtp.username:",
		"{transport: smtp, from: a@b, smtp: {host: h, password: s3cr3t-Zq, password_file: /p, username: u}}": "smtp.password:",
		"confirmation: {to: '{nobody}@example.org'}":                                                         "confirmation.to:",
		"confirmation: {to: 'all'}":                                                                          "confirmation.to:",
		"confirmation: {subject: ''}":                                                                        "confirmation.subject:",
		"confirmation: {subject: \"a\\nb\"}":                                                                 "confirmation.subject:",
		"confirmation: {text: ''}":                                                                           "confirmation.text:",
		"{fodler: x}":                                                                                        "fodler",
	} {
		err := openWith(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "s3cr3t", text)
	}
	err := openWith("{transport: smtp, smtp: {tls: maybe}}")
	for _, want := range []string{"from:", "smtp.host:", "smtp.tls:"} {
		require.ErrorContains(t, err, want, "all problems at once")
	}
}

func TestF083ConfigurationHidesThePassword(t *testing.T) {
	var c email.Config
	require.NoError(t, yaml.Unmarshal([]byte("smtp: {password: 's3cr3t-Zq!', username: u}"), &c))
	require.Equal(t, "s3cr3t-Zq!", string(c.SMTP.Password))
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", c, "password", c.SMTP.Password)
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(c)
	require.NoError(t, err)
	for _, text := range []string{
		fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%v %q", c.SMTP, c.SMTP.Password),
		log.String(), string(asJSON), string(asYAML),
	} {
		require.NotContains(t, text, "s3cr3t")
		require.Contains(t, text, "redacted")
	}
}
