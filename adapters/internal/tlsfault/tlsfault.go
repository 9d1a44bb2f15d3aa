// Package tlsfault says what to do about a TLS handshake that failed. Errors of crypto/tls hold no secret.
package tlsfault

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// Settings are the names that an adapter's settings have.
type Settings struct {
	// On is what to turn off, such as "TLS by NAME".
	On string
	// CA is the file of authorities.
	CA string
	// Client is the client's certificate and its key.
	Client string
	// Used says that TLS was on. Then a connection that just ends may be a refusal, whose reason came too late to be read.
	Used bool
	// Ended is what else to do then, such as "; where it wants a user, set NAME".
	Ended string
	// Name is what sets the name that the server's certificate has to carry, if there is such a setting.
	Name string
}

// Explain adds to err what to do about it, where TLS is what failed; other errors are returned as they are.
func (s Settings) Explain(err error) error {
	if advice := s.advice(err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return err
}

func (s Settings) advice(err error) string {
	var stranger x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	var invalid x509.CertificateInvalidError
	var noTLS tls.RecordHeaderError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &stranger):
		return fmt.Sprintf("no trusted authority signed the server's certificate: set %s to a file with the one that did", s.CA)
	case errors.As(err, &wrongName):
		advice := "the server's certificate is for another name: connect by a name that it has"
		if s.Name != "" {
			advice += ", or set " + s.Name + " to one"
		}
		return advice
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired, or is not valid yet: renew it, and check this machine's clock"
	case errors.As(err, &noTLS):
		return "the server does not speak TLS at this port: use its TLS port, or turn off " + s.On
	}
	return s.refused(err.Error())
}

// refused explains the alerts by which a server refuses a client's certificate. They have no exported type.
func (s Settings) refused(text string) string {
	_, alert, ok := strings.Cut(text, "remote error: tls: ")
	switch {
	case !ok && s.Used && ended(text):
		return fmt.Sprintf("the server closed the connection: check that it speaks TLS at this port; where it wants a client's certificate, set %s%s", s.Client, s.Ended)
	case !ok:
		return ""
	case strings.HasPrefix(alert, "certificate required"), strings.HasPrefix(alert, "bad certificate"), strings.HasPrefix(alert, "handshake failure"):
		return fmt.Sprintf("the server wants a client's certificate that it trusts: set %s", s.Client)
	case strings.HasPrefix(alert, "unknown certificate authority"), strings.HasPrefix(alert, "unknown certificate"):
		return fmt.Sprintf("the server does not trust the authority of the client's certificate: set %s to one that it does", s.Client)
	case strings.HasPrefix(alert, "expired certificate"):
		return fmt.Sprintf("the client's certificate has expired: renew %s", s.Client)
	}
	return ""
}

// ended goes by the text: some clients keep no more of the error.
func ended(text string) bool {
	for _, end := range []string{"EOF", "connection reset by peer", "broken pipe"} {
		if strings.Contains(text, end) {
			return true
		}
	}
	return false
}
