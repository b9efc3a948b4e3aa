package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// The wire format is described in cri/helper/proto.h; this file mirrors it.
// A keeper lives as long as its pod, so an upgraded agent meets old keepers:
// numbers are never reused, unknown tags are skipped by both sides, and a
// keeper answers an operation it does not know with an error.
const (
	wireMagic   = 0x314b5242 // "BRK1"
	wireVersion = 4
	headerSize  = 16
	// maxInline stays under the default SO_SNDBUF, so that a packet never
	// fails with EMSGSIZE; what is larger travels in a sealed memfd.
	maxInline = 60 << 10
	// maxPayload is more than execve(2) takes for arguments and environment.
	maxPayload = 16 << 20
	// flagMemfd marks a message whose payload is in the first file passed.
	flagMemfd = 1 << 31
)

type op uint16

const (
	opHello    op = 1
	opRun      op = 2
	opWatch    op = 3
	opForget   op = 4
	opExec     op = 5
	opSignal   op = 6
	opAttach   op = 7
	opData     op = 8
	opResize   op = 9
	opReopen   op = 10
	opStop     op = 11
	opStdinEOF op = 12
	opOK       op = 64
	opError    op = 65
	opExit     op = 66
)

type tag uint16

const (
	tagID       tag = 1
	tagBundle   tag = 2
	tagState    tag = 3
	tagLogPath  tag = 4
	tagLogMax   tag = 5
	tagLogFiles tag = 6
	tagFlags    tag = 7
	tagMemCG    tag = 8
	tagPid      tag = 9
	tagPid1     tag = 10
	tagStatus   tag = 11
	tagOOM      tag = 12
	tagStarted  tag = 13
	tagFinished tag = 14
	tagText     tag = 15
	tagSignal   tag = 18
	tagWidth    tag = 19
	tagHeight   tag = 20
	tagVersion  tag = 21

	tagNetNS        tag = 30
	tagHostname     tag = 31
	tagSysctl       tag = 32
	tagCgroup       tag = 33
	tagLaunchCgroup tag = 34
	tagOOMAdj       tag = 35
	tagNamespaces   tag = 36
	tagUserNS       tag = 37
	tagRootUID      tag = 38
	tagInitCgroup   tag = 39
	tagFreezeLimit  tag = 40
	tagLaunchLimit  tag = 41

	tagArg      tag = 50
	tagEnv      tag = 51
	tagCwd      tag = 52
	tagUID      tag = 53
	tagGID      tag = 54
	tagGroups   tag = 55
	tagUmask    tag = 56
	tagCaps     tag = 57
	tagRlimit   tag = 58
	tagNoNewPrv tag = 59
	tagAppArmor tag = 60
	tagSELinux  tag = 61
	tagSeccomp  tag = 62
	tagFiles    tag = 63
	tagStdout   tag = 64
	tagStderr   tag = 65

	tagRuntime tag = 70
	tagProcess tag = 71

	tagPIDNS   tag = 72
	tagFreezer tag = 73

	tagRoot     tag = 80
	tagRootRO   tag = 81
	tagNS       tag = 82
	tagMount    tag = 83
	tagTree     tag = 84
	tagMasked   tag = 85
	tagReadonly tag = 86
)

// Flags of a container in tagFlags; stdio of an attach uses stdin as well.
const (
	flagTTY       = 1
	flagStdin     = 2
	flagStdinOnce = 4
	flagCgroupV1  = 8
	flagNoSpare   = 16 // of a keeper
	flagCapture   = 32 // of opExec
)

// Namespaces in tagNamespaces.
const (
	nsIPC = 1
	nsUTS = 2
	nsPID = 4
)

// Streams in the flags of an opData header.
const (
	// 0 is stdin, as flags are when there are none
	streamStdout = 1
	streamStderr = 2
)

// fields is a payload under construction: a run of tag, length, value.
type fields []byte

func (f *fields) bytes(t tag, v []byte) {
	b := binary.LittleEndian.AppendUint16(*f, uint16(t))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(v)))
	*f = append(b, v...)
}

func (f *fields) str(t tag, v string) {
	b := binary.LittleEndian.AppendUint16(*f, uint16(t))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(v)))
	*f = append(b, v...)
}

func (f *fields) u32(t tag, v uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	f.bytes(t, b[:])
}

func (f *fields) u64(t tag, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	f.bytes(t, b[:])
}

// begin begins a payload with the room for the header before it.
func begin(buf []byte) fields {
	return append(buf[:0], make([]byte, headerSize)...)
}

// packet makes a message of what was begun with [begin]. What is too large for a packet is in the memfd that goes with
// it.
func (f fields) packet(o op) ([]byte, *os.File, error) {
	n := len(f) - headerSize
	if n <= maxInline {
		return putHeader(f[:0], o, 0, n)[:len(f)], nil, nil
	}
	if n > maxPayload {
		return nil, nil, fmt.Errorf("message of %d bytes is over the limit of %d", n, maxPayload)
	}
	memfd, err := sealed("berth-message", f[headerSize:])
	return header(o, flagMemfd, n), memfd, err
}

// message is a decoded packet: the header's parts and the payload's values by
// tag. Values that repeat are not needed in this direction.
type message struct {
	op      op
	flags   uint32
	version uint16
	data    []byte
	values  map[tag][]byte
}

var errShort = errors.New("message is cut short")

// decode parses one packet. Packets come from a root-owned socket, but the
// keeper at its other end may be of another version, or broken.
func decode(b []byte) (message, error) {
	var m message
	if len(b) < headerSize {
		return m, errShort
	}
	if binary.LittleEndian.Uint32(b) != wireMagic {
		return m, errors.New("message has a wrong magic number")
	}
	m.version = binary.LittleEndian.Uint16(b[4:])
	m.op = op(binary.LittleEndian.Uint16(b[6:]))
	m.flags = binary.LittleEndian.Uint32(b[8:])
	n := binary.LittleEndian.Uint32(b[12:])
	b = b[headerSize:]
	if uint64(n) != uint64(len(b)) {
		return m, errShort
	}
	if m.op == opData {
		m.data = b
		return m, nil
	}
	m.values = make(map[tag][]byte)
	for len(b) > 0 {
		if len(b) < 8 {
			return m, errShort
		}
		t := tag(binary.LittleEndian.Uint16(b))
		l := binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		if uint64(l) > uint64(len(b)) {
			return m, errShort
		}
		m.values[t] = b[:l:l]
		b = b[l:]
	}
	return m, nil
}

func (m message) text(t tag) string { return string(m.values[t]) }

func (m message) u32(t tag) uint32 {
	if v := m.values[t]; len(v) == 4 {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (m message) u64(t tag) uint64 {
	if v := m.values[t]; len(v) == 8 {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func header(o op, flags uint32, n int) []byte {
	return putHeader(make([]byte, 0, headerSize), o, flags, n)
}

func putHeader(b []byte, o op, flags uint32, n int) []byte {
	b = binary.LittleEndian.AppendUint32(b, wireMagic)
	b = binary.LittleEndian.AppendUint16(b, wireVersion)
	b = binary.LittleEndian.AppendUint16(b, uint16(o))
	b = binary.LittleEndian.AppendUint32(b, flags)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// send writes one message, its payload in a memfd when it is too large for a
// packet, with the files as SCM_RIGHTS.
func send(c *net.UnixConn, o op, payload []byte, files ...*os.File) error {
	fds := make([]int, 0, len(files)+1)
	packet, memfd, err := append(begin(nil), payload...).packet(o)
	if err != nil {
		return err
	}
	if memfd != nil {
		defer memfd.Close()
		fds = append(fds, int(memfd.Fd()))
	}
	for _, f := range files {
		// Fd would put the file into blocking mode and take it from the poller.
		fd, err := rawFd(f)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(packet, oob, nil)
	return err
}

func rawFd(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	if err := rc.Control(func(fd uintptr) { n = int(fd) }); err != nil {
		return -1, err
	}
	return n, nil
}

// wasUnread is what the kernel tells first, and once, of a socket whose other side has closed with something of ours
// unread. What that side has sent before is still there to be read.
const wasUnread = unix.ECONNRESET

// receive reads one message and the files that came with it.
func receive(c *net.UnixConn, buf []byte) (message, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if errors.Is(err, wasUnread) {
		n, oobn, flags, _, err = c.ReadMsgUnix(buf, oob)
	}
	if err != nil {
		return message{}, nil, err
	}
	var files []*os.File
	if oobn > 0 {
		files = rights(oob[:oobn])
	}
	if n == 0 {
		closeAll(files)
		return message{}, nil, io.EOF
	}
	if flags&unix.MSG_TRUNC != 0 {
		closeAll(files)
		return message{}, nil, errShort
	}
	m, err := decode(buf[:n])
	if err != nil {
		closeAll(files)
		return message{}, nil, err
	}
	return m, files, nil
}

func rights(oob []byte) []*os.File {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			// Non-blocking before NewFile, so that it joins the poller.
			_ = unix.SetNonblock(fd, true)
			files = append(files, os.NewFile(uintptr(fd), "keeper"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// sealed puts bytes into a memfd that nobody can change or cut any more: the
// keeper maps it, and a file cut under a mapping is a SIGBUS.
func sealed(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	if err := seal(f, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func seal(f *os.File, more int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
		more|unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	return os.NewSyscallError("fcntl F_ADD_SEALS", err)
}
