package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// redacted stands wherever a secret would.
const redacted = "redacted"

// Secret is a text that no printing shows: not fmt, not slog, not JSON, not YAML. Convert it to a string where it is used.
type Secret string

// String returns "redacted", or "" where there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// Format prints String for every verb, %x and %q too.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is String, for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML is String.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// SecretSource is a secret that stands in the configuration or in a file.
type SecretSource struct {
	Value Secret
	File  string
}

// Read returns the secret. A file is read again each time, so that a rotated password needs no restart; its last line
// break is no part of the secret. An empty file is an error: a secret that is being written is not the secret "".
func (s SecretSource) Read() (string, error) {
	if s.File == "" {
		return string(s.Value), nil
	}
	if s.Value != "" {
		return "", errors.New("a secret is given both as a value and as a file; keep one")
	}
	content, err := os.ReadFile(s.File)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("read secret: file %s is empty", s.File)
	}
	return text, nil
}

// Authorization returns where the value of the collector's Authorization header comes from.
func (t Telemetry) Authorization() SecretSource {
	return SecretSource{Value: t.OTLPAuthorization, File: t.OTLPAuthorizationFile}
}
