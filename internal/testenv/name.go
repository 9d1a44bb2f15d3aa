package testenv

import (
	"crypto/rand"
	"strings"
	"testing"
)

// maxName is the limit of a logical topic in Oncemill's message contract.
const maxName = 45

// Name makes a name that no other call gets, for a topic, queue, group or
// stream: the prefix, the end of the test's name and a random part. It has at
// most 45 characters out of letters, digits and hyphens, which every broker takes.
func Name(t testing.TB, prefix string) string {
	random := strings.ToLower(rand.Text()[:10])
	prefix = plain(prefix)
	prefix = prefix[:min(len(prefix), 16)]
	test := plain(t.Name())
	room := maxName - len(prefix) - len(random) - 2
	test = strings.Trim(test[max(0, len(test)-room):], "-")
	parts := []string{prefix, test, random}
	if prefix == "" {
		parts = parts[1:]
	}
	return strings.Join(parts, "-")
}

// plain replaces whatever a broker might object to by a hyphen. Dots would part
// a NATS subject, and Kafka confuses dots with underscores in its metrics.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s)
}
