package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are files in PEM form, for a server on this machine and for its clients. Keys are in PKCS #8.
type Certificates struct {
	// Dir holds ca.pem, server.pem and server-key.pem, which is what docker/services reads.
	Dir string
	// CA is the authority of both certificates.
	CA string
	// OtherCA is an authority that signed neither.
	OtherCA string
	// Client and ClientKey are a client's certificate, whose common name is "client".
	Client    string
	ClientKey string
	// Server and ServerKey are the server's certificate, for localhost, and not for 127.0.0.1.
	Server    string
	ServerKey string
}

// NewCertificates makes an authority and what it signs, for an hour, in a folder that goes with the test.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	c := Certificates{
		Dir: dir, CA: file("ca.pem"), OtherCA: file("other-ca.pem"), Client: file("client.pem"), ClientKey: file("client-key.pem"),
		Server: file("server.pem"), ServerKey: file("server-key.pem"),
	}
	authority := newAuthority(t, c.CA)
	newAuthority(t, c.OtherCA)
	authority.sign(t, x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"},
	}, c.Server, c.ServerKey)
	authority.sign(t, x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.Client, c.ClientKey)
	return c
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, file string) authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatalf("testenv: make an authority: %v", err)
	}
	writePEM(t, file, "CERTIFICATE", der)
	return authority{certificate: template, key: key}
}

// sign makes a certificate and its key.
func (a authority) sign(t testing.TB, template x509.Certificate, file, keyFile string) {
	t.Helper()
	key := newKey(t)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = a.certificate.NotBefore, a.certificate.NotAfter
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatalf("testenv: make a certificate: %v", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	writePEM(t, file, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", private)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("testenv: %v", err)
	}
}
