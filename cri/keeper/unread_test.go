package keeper

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is two ends of a connection as the keeper has them.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// TestLastWordsBehindUnread: a container ends while the end of its input is still on its way to the keeper. What it
// wrote last is read all the same.
func TestLastWordsBehindUnread(t *testing.T) {
	ours, keepers := pair(t)
	if err := send(ours, opStdinEOF, nil); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"last", "words"} {
		if err := send(keepers, opData, []byte(word)); err != nil {
			t.Fatal(err)
		}
	}
	keepers.Close()
	s := &Stream{conn: ours}
	outR, outW := io.Pipe()
	_, errW := io.Pipe()
	go func() { _ = outW.CloseWithError(s.copy(outW, errW)) }()
	if got, err := io.ReadAll(outR); string(got) != "lastwords" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestLineBehindUnread is the same for a command's output.
func TestLineBehindUnread(t *testing.T) {
	ours, keepers := pair(t)
	file, err := ours.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	l, err := newLine(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.kill(); err != nil {
		t.Fatal(err)
	}
	if err := send(keepers, opData, []byte("word")); err != nil {
		t.Fatal(err)
	}
	keepers.Close()
	buf := make([]byte, headerSize+maxInline)
	n, err := l.receive(buf)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := decode(buf[:n]); err != nil || string(m.data) != "word" {
		t.Errorf("read %q, %v", m.data, err)
	}
	if _, err := l.receive(buf); !errors.Is(err, io.EOF) {
		t.Errorf("then %v", err)
	}
}
