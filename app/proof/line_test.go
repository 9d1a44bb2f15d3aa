package proof

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// A broken connection looks to both ends as one that its peer has reset; a line that is cut refuses, and comes back.
func TestALineBreaks(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	ends := make(chan error, 2)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, err := io.Copy(io.Discard, conn)
				ends <- err
			}()
		}
	}()
	var line Line
	conn, err := line.Dial(t.Context(), "tcp", server.Addr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)

	require.Equal(t, 1, line.Break())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = conn.Write([]byte("hello"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorIs(t, <-ends, syscall.ECONNRESET)
	require.NoError(t, conn.Close(), "whose user closes it finds nothing wrong")
	require.Zero(t, line.Break())

	line.Cut(50 * time.Millisecond)
	_, err = line.Dial(t.Context(), "tcp", server.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	testenv.Eventually(t, time.Minute, func() error {
		again, err := line.Dial(t.Context(), "tcp", server.Addr().String())
		if err == nil {
			err = again.Close()
		}
		return err
	})
}
