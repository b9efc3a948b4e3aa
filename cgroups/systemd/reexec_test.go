package systemd

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// listen has the calling thread see a socket of systemd that is the test's own. The thread ends with the test.
func listen(t *testing.T) net.Listener {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts of its own")
	}
	runtime.LockOSThread() // and the thread ends with the test, since it is not unlocked
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/run/systemd", 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", "/run/systemd/private")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// manager answers as systemd does to those who start and stop units.
type manager struct {
	answers []answer // to one question after the other, the last of them to all that follow

	mu    sync.Mutex
	conns []*net.UnixConn
	calls []string
}

// answer is what is done about a job that somebody asks for: it ends, it is refused, or all connections are closed
// before it ends.
type answer string

const (
	ends    answer = ""
	untold  answer = "untold"
	unknown answer = "NoSuchUnit"
)

func (m *manager) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		m.conns = append(m.conns, c.(*net.UnixConn))
		m.mu.Unlock()
		go m.talk(c)
	}
}

// cut ends the connections, as systemd does before it executes itself anew.
func (m *manager) cut(from int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns[from:] {
		_ = c.CloseWrite()
	}
}

// next is the answer to a question.
func (m *manager) next(member string) answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, member)
	return m.answers[min(len(m.calls), len(m.answers))-1]
}

func (m *manager) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.calls, " ")
}

func (m *manager) talk(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := "ERROR"
		switch words := strings.Fields(strings.Trim(line, "\x00\r\n")); {
		case len(words) == 1 && words[0] == "AUTH":
			answer = "REJECTED EXTERNAL"
		case words[0] == "AUTH":
			answer = "OK 0123456789abcdef0123456789abcdef"
		case words[0] == "BEGIN":
			m.converse(c, in)
			return
		}
		if _, err := io.WriteString(c, answer+"\r\n"); err != nil {
			return
		}
	}
}

const (
	jobPath     = godbus.ObjectPath("/org/freedesktop/systemd1/job/1")
	managerPath = godbus.ObjectPath("/org/freedesktop/systemd1")
)

func (m *manager) converse(c net.Conn, in io.Reader) {
	for {
		msg, err := godbus.DecodeMessage(in)
		if err != nil {
			return
		}
		member, _ := msg.Headers[godbus.FieldMember].Value().(string)
		if msg.Type != godbus.TypeMethodCall || len(msg.Body) == 0 {
			continue
		}
		unit, _ := msg.Body[0].(string)
		a := unknown
		if member != "AddMatch" { // which a bus knows
			a = m.next(member)
		}
		reply := &godbus.Message{Type: godbus.TypeMethodReply, Headers: map[godbus.HeaderField]godbus.Variant{
			godbus.FieldReplySerial: godbus.MakeVariant(msg.Serial()),
		}}
		if a == unknown {
			reply.Type = godbus.TypeError
			reply.Headers[godbus.FieldErrorName] = godbus.MakeVariant("org.freedesktop.systemd1." + string(a))
		} else {
			reply.Body = []any{jobPath}
			reply.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(reply.Body...))
		}
		if reply.EncodeTo(c, binary.LittleEndian) != nil {
			return
		}
		switch a {
		case ends:
			m.tell(unit)
		case untold:
			m.cut(0)
		}
	}
}

// tell says on all connections that the job has ended.
func (m *manager) tell(unit string) {
	body := []any{uint32(1), jobPath, unit, "done"}
	signal := &godbus.Message{Type: godbus.TypeSignal, Body: body, Headers: map[godbus.HeaderField]godbus.Variant{
		godbus.FieldPath:      godbus.MakeVariant(managerPath),
		godbus.FieldInterface: godbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		godbus.FieldMember:    godbus.MakeVariant("JobRemoved"),
		godbus.FieldSignature: godbus.MakeVariant(godbus.SignatureOf(body...)),
	}}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = signal.EncodeTo(c, binary.LittleEndian)
	}
}

// TestEndUntold: systemd takes a job, closes all connections since it executes itself anew, and tells nobody of the
// job's end. Whoever waits asks again at once.
func TestEndUntold(t *testing.T) {
	start := func(s *Driver) error { return s.start("a.scope", nil) }
	stop := func(s *Driver) error { return s.StopScope("/a.scope") }
	for name, tt := range map[string]struct {
		act     func(*Driver) error
		answers []answer
		calls   string
		refused bool
	}{
		"start":   {act: start, answers: []answer{untold, ends}, calls: "StartTransientUnit StartUnit"},
		"twice":   {act: start, answers: []answer{untold, untold, ends}, calls: "StartTransientUnit StartUnit StartUnit"},
		"ended":   {act: start, answers: []answer{untold, unknown}, calls: "StartTransientUnit StartUnit", refused: true},
		"stop":    {act: stop, answers: []answer{untold, ends}, calls: "StopUnit StopUnit"},
		"stopped": {act: stop, answers: []answer{untold, unknown}, calls: "StopUnit StopUnit"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &manager{answers: tt.answers}
			go m.serve(listen(t))
			s := &Driver{calls: make(chan struct{}, maxCalls)}
			t.Cleanup(func() { _ = s.Close() })
			if err := tt.act(s); tt.refused != isBusError(err, string(unknown)) || !tt.refused && err != nil {
				t.Errorf("it ends with %v", err)
			}
			if got := m.said(); got != tt.calls {
				t.Errorf("systemd was asked for %s", got)
			}
		})
	}
}

// TestDeaf: of the two connections the one that ends of jobs are told on is closed, as systemd closes one that is not
// read from. The other one goes on, and who used it would wait for each job in vain.
func TestDeaf(t *testing.T) {
	m := &manager{answers: []answer{ends}}
	go m.serve(listen(t))
	s := &Driver{calls: make(chan struct{}, maxCalls)}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.start("a.scope", nil); err != nil {
		t.Fatal(err)
	}
	m.cut(1)
	<-s.conn.ended
	if err := s.start("b.scope", nil); err != nil {
		t.Fatal(err)
	}
	if got := m.said(); got != "StartTransientUnit StartTransientUnit" {
		t.Errorf("systemd was asked for %s", got)
	}
}
